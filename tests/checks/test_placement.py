"""Rules about the two pools and the nodes they need."""

import pytest

STUDENT = "trainer.nnodes={} trainer.n_gpus_per_node={}"
TEACHER = "distillation.nnodes={} distillation.n_gpus_per_node={}"
HALF_OF_8 = f"{STUDENT.format(1, 4)} {TEACHER.format(1, 4)}"
HALF_OF_2X8 = f"{STUDENT.format(1, 8)} {TEACHER.format(1, 8)}"


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            STUDENT.format(1, 8),
            "Student (1 x 8) and teacher (1 x 4) need 12 accelerators, and 1 node x 8 have 8",
            HALF_OF_8,
        ),
        (
            STUDENT.format(1, 16),
            "The student asks for 16 accelerators of one node, and the cluster is 1 node x 8",
            HALF_OF_8,
        ),
        (TEACHER.format(3, 4), "need 16 accelerators", HALF_OF_8),
        (
            f"cluster=2x8 {STUDENT.format(2, 6)} {TEACHER.format(1, 4)}",
            "are 16 of the 16 accelerators of 2 nodes x 8, but after the others no node has 4 left for the teacher",
            HALF_OF_2X8,
        ),
        (
            f"cluster=2x8 {STUDENT.format(1, 4)} {TEACHER.format(2, 8)}",
            "need 20 accelerators, and 2 nodes x 8 have 16",
            HALF_OF_2X8,
        ),
    ],
)
def test_pools_that_do_not_fit(fires, overrides, message, fix):
    fires("pools_fit", overrides, message, fix)


def test_a_single_accelerator_is_not_enough(check):
    [finding] = [f for f in check("cluster.accelerators_per_node=1") if f.id == "pools_fit"]
    assert finding.fix == "cluster=1x2"


def test_a_student_on_two_half_nodes_may_leave_no_whole_one(fires):
    overrides = f"cluster=2x8 {STUDENT.format(2, 4)} {TEACHER.format(1, 8)}"
    message = "when it spreads them, no node has 8 free for the teacher"
    fires("pools_fit_however_placed", overrides, message, HALF_OF_2X8, severity="warning")


@pytest.mark.parametrize(
    "overrides",
    [
        "",
        "cluster=2x8",
        "cluster=1x16",
        f"cluster=2x8 {STUDENT.format(1, 8)} {TEACHER.format(2, 4)}",
        f"cluster=2x8 {STUDENT.format(2, 4)} {TEACHER.format(2, 4)}",
        f"cluster.nodes=4 {STUDENT.format(2, 8)} {TEACHER.format(2, 8)}",
    ],
)
@pytest.mark.parametrize("rule", ["pools_fit", "pools_fit_however_placed"])
def test_pools_that_fit(quiet, rule, overrides):
    quiet(rule, overrides)


@pytest.mark.parametrize("overrides", [STUDENT.format(0, 4), TEACHER.format(1, 0), "cluster.nodes=0"])
def test_a_pool_has_at_least_one_accelerator(check, overrides):
    [finding] = check(*overrides.split())
    assert (finding.id, finding.severity) == ("wrong_value", "error")
    assert "is 0, not a whole number of at least 1" in finding.message
    assert finding.fix == f"{finding.keys[0]}=1"

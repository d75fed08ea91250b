"""Rules about the two pools and the nodes they need."""

import pytest

from opd_conf.checks import placement

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
            "are 16 of the 16 accelerators of 2 nodes x 8, but Ray gives each entry the emptiest node, "
            "and then no node has 4 left for the teacher",
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


def test_a_student_on_two_half_nodes_leaves_no_whole_one(fires):
    overrides = f"cluster=2x8 {STUDENT.format(2, 4)} {TEACHER.format(1, 8)}"
    fires("pools_fit", overrides, "and then no node has 8 left for the teacher", HALF_OF_2X8)


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
def test_pools_that_fit(quiet, overrides):
    quiet("pools_fit", overrides)


@pytest.mark.parametrize("overrides", [STUDENT.format(0, 4), TEACHER.format(1, 0), "cluster.nodes=0"])
def test_a_pool_has_at_least_one_accelerator(check, overrides):
    [finding] = check(*overrides.split())
    assert (finding.id, finding.severity) == ("wrong_value", "error")
    assert "is 0, not a whole number of at least 1" in finding.message
    assert finding.fix == f"{finding.keys[0]}=1"


# CPUs: three an accelerator, TransferQueue's storage units in turn, its controller somewhere

UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"


def test_cpus_of_one_node(fires, quiet):
    message = (
        "TransferQueue (8 + 1) need 33 CPUs of a node, and cluster.cpus_per_node is 32: the teacher needs 4 "
        "accelerators of one node and 3 CPUs for each, and there remain node 1: 4 accelerators, 11 of 12 CPUs"
    )
    fires("cpus_suffice", "cluster.cpus_per_node=32", message, "cluster.cpus_per_node=33")
    quiet("cpus_suffice", "cluster.cpus_per_node=33")
    quiet("cpus_suffice", f"cluster.cpus_per_node=26 {UNITS}=1")


def test_cpus_of_a_ray_of_our_own(fires, quiet):
    own = "ray_kwargs.ray_init.num_cpus"
    fires("cpus_suffice", f"{own}=16", f"need 33 CPUs of a node, and {own} is 16", f"{own}=33")
    quiet("cpus_suffice", f"{own}=40 cluster.cpus_per_node=8")
    quiet("cpus_suffice", f"cluster=2x8 {own}=4 cluster.cpus_per_node=64")  # of no meaning there: another rule says so


def test_cpus_of_two_nodes(fires, quiet):
    """Four storage units a node; the controller is on one of them, and which one is not known."""
    for cpus in (27, 20):
        message = f"need 29 CPUs of a node, and cluster.cpus_per_node is {cpus}"
        fires("cpus_suffice", f"cluster=2x8 cluster.cpus_per_node={cpus}", message, "cluster.cpus_per_node=29")
    quiet("cpus_suffice", "cluster=2x8 cluster.cpus_per_node=29")


def test_a_node_too_small_for_storage_alone(fires):
    message = "no CPU is left on node 1; node 2 for TransferQueue"
    fires("cpus_suffice", "cluster=2x8 cluster.cpus_per_node=3", message, "cluster.cpus_per_node=29")


def test_cpus_of_this_machine_count_for_training_here_only(view_of, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(placement.os, "cpu_count", lambda: 4)
    monkeypatch.setenv("RAY_USE_MULTIPROCESSING_CPU_COUNT", "1")
    cpu = ("platform=cpu", "student=tiny", "teacher=tiny", "cluster=cpu", "data=tiny")
    free = {"ray_kwargs.ray_init.num_cpus": None}
    [finding] = placement.cpus_suffice(view_of(free, cpu))
    assert "need 8 CPUs of a node, and Ray would count 4 on this machine" in finding.message
    assert finding.fix == "ray_kwargs.ray_init.num_cpus=8"
    assert list(placement.cpus_suffice(view_of(free | {"action": "check"}, cpu))) == []
    assert list(placement.cpus_suffice(view_of({}, cpu))) == []


# Replicas


def test_a_student_replica_on_parts_of_two_nodes(fires, quiet):
    rollout = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    pools = f"cluster=2x8 {STUDENT.format(2, 6)} {TEACHER.format(2, 2)}"
    message = "= 4 accelerators, and the student has 6 of each node: a replica would lie on parts of two nodes"
    fires("rollout_replicas_within_nodes", f"{pools} {rollout}=4", message, f"{rollout}=3")
    quiet("rollout_replicas_within_nodes", f"{pools} {rollout}=3")
    quiet("rollout_replicas_within_nodes", f"{pools} {rollout}=12")


@pytest.mark.parametrize(("sizes", "fires_for"), [((3, 4, 1), "b"), ((4, 4), None), ((8,), None), ((2, 2, 4), None)])
def test_teachers_take_the_pool_in_turn(check, sizes, fires_for):
    """verl's own example: of 2 x 4, a replica of 3 and then one of 4 would lie on parts of two nodes."""
    names = "abc"[: len(sizes)]
    inference = "inference:{{name:vllm,tensor_model_parallel_size:{1}}}"
    teacher = "+distillation.teacher_models.{0}={{model_path:x,key:{0},num_replicas:1," + inference + "}}"
    added = [teacher.format(name, size) for name, size in zip(names, sizes, strict=True)]
    found = check("cluster=2x8", *STUDENT.format(2, 4).split(), *TEACHER.format(2, 4).split(), *added)
    told = [finding.keys[0] for finding in found if finding.id == "teacher_replicas_within_nodes"]
    assert [key.split(".")[2] for key in told] == ([fires_for] if fires_for else [])

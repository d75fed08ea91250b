"""No false alarm: every shipped choice composes into a run without an error or a warning, data files aside."""

import itertools

import pytest

from opd_conf import checks
from opd_conf.compose import compose, conf_folder

PAIRS = [
    ("qwen3_5_2b", "qwen3_5_35b_a3b"),
    ("qwen3_5_4b", "qwen3_5_35b_a3b"),
    ("qwen2_5_0_5b", "qwen2_5_3b_instruct"),
]
SMALL = ("1x2", "cpu")
"""Clusters with one accelerator for the student: a real misfit for the Qwen3.5 students, whose server takes two."""


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_folder() / group).glob("[!_]*.yaml"))


def found(*overrides: str) -> list[checks.Finding]:
    unseen = ("data_files", "model_folder", "bytecode_there", "cluster_answers")  # what this machine has not made yet
    found = checks.findings(compose([*overrides, "run_dir=/shared/run"]).config)  # whatever folder this runs in
    return [finding for finding in found if finding.severity != "note" and finding.id not in unseen]


@pytest.mark.parametrize("cluster", [cluster for cluster in options("cluster") if cluster != "cpu"])
@pytest.mark.parametrize(("student", "teacher"), PAIRS)
@pytest.mark.parametrize("platform", ["gpu", "npu"])
def test_every_pair_on_every_cluster(platform, student, teacher, cluster):
    problems = found(f"platform={platform}", f"student={student}", f"teacher={teacher}", f"cluster={cluster}")
    expected = ["rollout_divides_world"] if cluster in SMALL and student.startswith("qwen3_5") else []
    assert [problem.id for problem in problems] == expected


@pytest.mark.parametrize("loss_mode", options("loss_mode"))
@pytest.mark.parametrize(
    ("engine", "rollout", "data"),
    [*itertools.product(options("engine"), options("rollout"), ["gsm8k"]), ("fsdp2", "vllm", "geo3k")],
)
def test_every_loss_with_every_engine_and_server(loss_mode, engine, rollout, data):
    run = (f"loss_mode={loss_mode}", f"engine={engine}", f"rollout={rollout}", f"data={data}")
    assert found("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", *run) == []


@pytest.mark.parametrize("experiment", options("experiment"))
@pytest.mark.parametrize("platform", ["gpu", "npu", "cpu"])
def test_every_experiment(experiment, platform):
    assert found(f"experiment={experiment}", f"platform={platform}") == []

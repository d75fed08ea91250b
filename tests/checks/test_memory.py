"""Rules about memory: they fire with the numbers and a fix that helps, and shipped choices fit.

The rules are called by themselves, because what a device has must be said for them to speak.
"""

import functools
import itertools
import pickle
import shlex
from dataclasses import replace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from opd_conf import platforms
from opd_conf.checks import memory as rules
from opd_conf.compose import compose
from opd_conf.memory.hardware import Device
from opd_conf.view import view

RULES = {"memory_fits": rules.memory_fits, "server_memory": rules.server_memory}
RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
TEXT = ("platform=gpu", "student=qwen2_5_0_5b", "teacher=qwen2_5_3b_instruct", "data=gsm8k")
PAIRS = [
    ("qwen3_5_2b", "qwen3_5_35b_a3b"),
    ("qwen3_5_4b", "qwen3_5_35b_a3b"),
    ("qwen2_5_0_5b", "qwen2_5_3b_instruct"),
]
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
TEACHER = "distillation.teacher_models.teacher_model.inference"


@pytest.fixture(autouse=True)
def _no_devices(monkeypatch):
    monkeypatch.setattr(platforms, "device_nodes", dict)


@functools.cache
def chosen(groups):
    return pickle.dumps(compose(groups).config)


def composed(given):
    """A run; its choices of groups are composed once, because that takes most of the time."""
    groups = tuple(override for override in given if "." not in override.partition("=")[0])
    config = pickle.loads(chosen(groups))
    for override in OverridesParser.create().parse_overrides([other for other in given if other not in groups]):
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=override.is_add())
    return config


def found(rule, overrides="", base=RUN, gib=64):
    config = composed((*base, *shlex.split(overrides)))
    if gib is not None:
        OmegaConf.update(config, "platform.device_memory_gib", gib, force_add=True)
    return list(RULES[rule](view(config)))


def phases(findings):
    return [finding.message.removeprefix("The phase ").split(" take")[0].split(" may")[0] for finding in findings]


@pytest.mark.parametrize(
    ("overrides", "base", "gib", "severity", "phase", "fix"),
    [
        (
            f"loss_mode=forward_kl_topk {ACTOR}.ppo_max_token_len_per_gpu=65536",
            TEXT,
            80,
            "error",
            "student update, loss",
            f"{ACTOR}.ppo_max_token_len_per_gpu=32768",
        ),
        (
            f"loss_mode=forward_kl_topk {ACTOR}.ppo_max_token_len_per_gpu=32768",
            TEXT,
            80,
            "warning",
            "student update, loss",
            f"{ACTOR}.ppo_max_token_len_per_gpu=16384",
        ),
        (
            f"{ROLLOUT}.gpu_memory_utilization=0.98",
            TEXT,
            80,
            "warning",
            "student rollout",
            f"{ROLLOUT}.gpu_memory_utilization=0.95",
        ),
        (f"{TEACHER}.gpu_memory_utilization=1.0", RUN, 64, "error", "teacher", f"{TEACHER}.gpu_memory_utilization=0.9"),
    ],
)
def test_what_does_not_fit(overrides, base, gib, severity, phase, fix):
    [finding] = found("memory_fits", overrides, base, gib)
    assert finding.severity == severity
    assert phases([finding]) == [phase]
    assert f"of a device's {gib:.1f}" in finding.message
    assert "Largest lever: " in finding.message
    assert finding.fix == fix
    again = found("memory_fits", f"{overrides} {fix}", base, gib)
    assert "error" not in {other.severity for other in again}
    assert severity != "warning" or again == []


def test_the_optimizer_of_a_student_on_one_device():
    overrides = f"cluster=1x2 student=qwen3_5_4b {ROLLOUT}.tensor_model_parallel_size=1"
    [update] = found("memory_fits", overrides)
    assert (update.severity, phases([update])) == ("error", ["student update, optimizer step"])
    assert "takes 85.6 GiB of a device's 64.0 (platform.device_memory_gib): optimizer 33.8" in update.message
    assert update.fix == f"{ACTOR}.fsdp_config.offload_policy=true"
    assert found("memory_fits", f"{overrides} {update.fix}") == []


def test_a_fix_may_be_the_number_of_devices():
    [finding] = found("memory_fits", f"{ACTOR}.fsdp_config.offload_policy=true", gib=6)[:1]
    assert finding.severity in ("error", "warning")
    assert finding.fix


@pytest.mark.parametrize(
    ("overrides", "base", "message", "fix"),
    [
        (
            f"{TEACHER}.tensor_model_parallel_size=1 {TEACHER}.expert_parallel_size=1",
            RUN,
            "gives the teacher 25.6 GiB of a device (platform.device_memory_gib); its weights take 65.4 and "
            "one sequence of 3073 tokens 0.12",
            f"{TEACHER}.tensor_model_parallel_size=2",
        ),
        (
            f"{TEACHER}.gpu_memory_utilization=0.2",
            RUN,
            "gives the teacher 12.8 GiB of a device (platform.device_memory_gib); its weights take 16.3",
            f"{TEACHER}.gpu_memory_utilization=0.3",
        ),
        (
            f"{ROLLOUT}.gpu_memory_utilization=0.01",
            TEXT,
            "gives the student's server 0.6 GiB of a device (platform.device_memory_gib); its weights take 0.9",
            f"{ROLLOUT}.gpu_memory_utilization=0.05",
        ),
    ],
)
def test_a_server_without_room(overrides, base, message, fix):
    [finding] = found("server_memory", overrides, base)
    assert finding.severity == "error"
    assert message in finding.message
    assert finding.fix == fix
    assert "teacher" not in phases(found("memory_fits", overrides, base))  # told once


def test_a_server_without_room_for_one_sequence():
    long = "data.max_response_length=4000000"
    [student, teacher] = found("server_memory", long, TEXT)
    assert "one sequence of 4000513 tokens 45.78" in student.message
    assert "the teacher" in teacher.message


GIB = 2**30


def test_what_is_offloaded_must_fit_a_node():
    """Of 24.7 GiB the optimizer's 16.5 go back to the devices, or, where they lack the room, the parameters."""
    given = f"cluster.host_memory_gib=20 {ROLLOUT}.gpu_memory_utilization=0.3 action=script"
    [host] = found("memory_fits", given)
    assert (host.severity, phases([host])) == ("warning", ["What is offloaded"])
    assert "takes 24.7 GiB of a node's 20.0 (cluster.host_memory_gib): optimizer 16.5, parameters 8.2. " in host.message
    assert "Largest lever: optimizer_offload=false frees 16.5 GiB" in host.message
    assert host.fix == f"{ACTOR}.fsdp_config.optimizer_offload=false"
    assert found("memory_fits", f"{given} {host.fix}") == []
    full = f"{given} {ROLLOUT}.gpu_memory_utilization=0.75"
    [host] = [finding for finding in found("memory_fits", full, gib=26) if "a node's" in finding.message]
    assert (host.severity, host.fix) == ("warning", f"{ACTOR}.fsdp_config.param_offload=false")


def test_what_is_uncertain_of_a_node_does_not_count():
    assert found("memory_fits", "cluster.host_memory_gib=25 action=script") == []  # 24.7, and 33 while models load


def test_a_node_is_judged_without_devices():
    said = found("memory_fits", "cluster.host_memory_gib=20 action=script", gib=None)
    assert [finding.severity for finding in said] == ["note", "warning"]


@pytest.mark.parametrize(
    ("free", "overrides", "message"),
    [
        ([64] * 8, "", None),
        ([64] * 4 + [30] * 4, "", None),  # the student's servers take 0.4 of 64
        ([64] * 3 + [30] * 5, "", "take 38.4 GiB (gpu_memory_utilization=0.6) of a device that has 30.0 of 64.0 free"),
        ([64] * 7 + [20], "", "take 25.6 GiB (gpu_memory_utilization=0.4) of a device that has 20.0 of 64.0 free"),
        ([64] * 7 + [20], "rollout=sglang", None),
        ([20] * 8, "cluster=2x8", None),
        ([64] * 7, "", None),  # another rule counts devices
    ],
)
def test_devices_that_others_use(monkeypatch, free, overrides, message):
    monkeypatch.setattr(rules, "devices", lambda run: tuple(Device(64 * GIB, gib * GIB) for gib in free))
    said = found("server_memory", f"{TEACHER}.gpu_memory_utilization=0.6 {overrides}")
    assert [finding.severity for finding in said] == (["warning"] if message else [])
    assert all(message in finding.message and finding.fix.startswith("nvidia-smi") for finding in said)


def test_unknown_is_a_note():
    [finding] = found("memory_fits", gib=None)
    assert (finding.severity, finding.fix) == ("note", "platform.device_memory_gib=GIB")
    [finding] = found("memory_fits", "actor_rollout_ref.model.path=somebody/model")
    assert (finding.severity, finding.keys) == ("note", ("actor_rollout_ref.model.path",))
    assert "nothing is known of somebody/model" in finding.message
    assert finding.fix.startswith("hf download somebody/model config.json")
    assert found("server_memory", gib=None) == []


def test_an_engine_without_formulas_is_a_note():
    run = replace(view(composed(RUN)), engine="megatron")
    [finding] = rules.memory_fits(run)
    assert (finding.severity, finding.keys) == ("note", ("actor_rollout_ref.actor.strategy",))
    assert "no formulas for the engine of ppo_megatron_trainer" in finding.message


def test_a_cpu_is_not_judged():
    assert found("memory_fits", base=("experiment=smoke",), gib=None) == []
    assert found("server_memory", base=("experiment=smoke",), gib=1) == []


@pytest.mark.parametrize("engine", ["fsdp2", "veomni"])
@pytest.mark.parametrize(("student", "teacher"), PAIRS)
@pytest.mark.parametrize("platform", ["gpu", "npu"])
def test_every_pair_fits(platform, student, teacher, engine):
    """Aside from Qwen3.5 on one device each, where neither the 35B teacher nor its student's server has a place."""
    base = (f"platform={platform}", f"student={student}", f"teacher={teacher}", f"engine={engine}")
    clusters = [(1, 1), (2, 4), (4, 4), (8, 8)]  # 1x2, 1x6, 1x8, and 2x8 as 1x16
    for (mine, its), loss_mode, gib in itertools.product(clusters, ("k1", "forward_kl_topk"), (64, 80)):
        if mine == 1 and student.startswith("qwen3_5"):
            continue
        pools = f"trainer.n_gpus_per_node={mine} distillation.n_gpus_per_node={its}"
        for rule in RULES:
            assert found(rule, f"{pools} distillation.distillation_loss.loss_mode={loss_mode}", base, gib) == []


@pytest.mark.parametrize("experiment", ["qwen2_5_0_5b_gsm8k_veomni", "qwen3_5_2b_geo3k", "qwen3_5_4b_geo3k"])
def test_every_experiment_fits(experiment):
    for rule in ("memory_fits", "server_memory"):
        assert found(rule, base=("platform=npu", f"experiment={experiment}")) == []

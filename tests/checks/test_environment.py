"""Rules about variables and installed packages."""

import functools
import pickle
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from omegaconf import OmegaConf

from opd_conf.checks import Finding, environment
from opd_conf.compose import compose
from opd_conf.platforms import environment as block
from opd_conf.view import View, view

GPU = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
NPU = ("platform=npu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
TEXT = ("platform=gpu", "student=qwen2_5_0_5b", "teacher=qwen2_5_3b_instruct", "data=gsm8k")
ENV = "platform.env"
RULE = {"run": View, "return": Iterator[Finding]}
GOOD = {
    "torch": "2.11.0",
    "TransferQueue": "0.1.11",
    "tensordict": "0.10.0",
    "transformers": "5.9.0",
    "numpy": "2.3.5",
    "veomni": "0.1.12",
    "vllm": "0.24.0",
}


@functools.cache
def _composed(groups: tuple[str, ...]) -> bytes:
    return pickle.dumps(compose(groups).config)


def composed(settings: dict[str, Any], groups: tuple[str, ...]) -> Any:
    config = pickle.loads(_composed(groups))
    for key, value in settings.items():
        OmegaConf.update(config, key, value, force_add=True)
    return config


def say(rule: Any, settings: dict[str, Any], groups: tuple[str, ...] = GPU) -> list[Finding]:
    return list(rule(view(composed(settings, groups))))


def one(rule: Any, settings: dict[str, Any], groups: tuple[str, ...] = GPU) -> tuple[str, str, str]:
    """Severity, message and fix of the only finding; typing the fix silences the rule."""
    [finding] = say(rule, settings, groups)
    if "=" in finding.fix and not finding.fix.startswith(("pip", "#", "engine")):
        pairs = (pair.lstrip("+").split("=", 1) for pair in shlex.split(finding.fix))
        typed = {key: None if value == "null" else OmegaConf.create(f"x: {value}").x for key, value in pairs}
        assert say(rule, settings | typed, groups) == []
    return finding.severity, finding.message, finding.fix


@pytest.fixture(autouse=True)
def _clean_shell(monkeypatch):
    monkeypatch.delenv("OPD_PLATFORM", raising=False)
    for name in ("VERL_PLATFORM", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def install(monkeypatch):
    """Makes these the installed packages; None takes one away."""

    def packages(**changed: str | None) -> None:
        names = GOOD | {name.replace("_", "-"): version for name, version in changed.items()}
        monkeypatch.setattr(environment, "installed", names.get)

    packages()
    return packages


# Variables


def test_a_variable_as_the_trainer_has_it(monkeypatch):
    def value(name: str, settings: dict[str, Any], groups: tuple[str, ...] = NPU) -> str | None:
        return environment.variable(view(composed(settings, groups)), name)

    monkeypatch.setenv("HCCL_BUFFSIZE", "300")
    monkeypatch.setenv("OTHER", "x")
    assert value("HCCL_BUFFSIZE", {}) == "300"
    assert value("HCCL_BUFFSIZE", {f"{ENV}.HCCL_BUFFSIZE": 400}) == "400"
    assert value("HCCL_CONNECT_TIMEOUT", {}) == "1500"
    assert value("HCCL_SOCKET_IFNAME", {}) is None
    assert value("OTHER", {}) == "x"
    assert value("OTHER", {"action": "script"}) is None  # that runs in another shell
    assert value("OTHER", {f"{ENV}.OTHER": None}) is None
    assert value("OTHER", {f"{ENV}.OTHER": True}) == "true"
    config = composed({}, NPU)
    assert {name: environment.variable(view(config), name) for name in block(config)} == block(config)


@pytest.mark.parametrize(
    ("groups", "value", "message", "fix"),
    [
        (NPU, "npu", "VERL_PLATFORM is npu, no name that verl knows; with platform=npu it is huawei", "huawei"),
        (GPU, "cuda", "VERL_PLATFORM is cuda, no name that verl knows", "nvidia"),
        (GPU, "huawei", "is huawei, another platform; with platform=gpu it is nvidia or amd", "nvidia"),
    ],
)
def test_names_of_platforms(groups, value, message, fix):
    severity, said, typed = one(environment.verl_platform_known, {f"{ENV}.VERL_PLATFORM": value}, groups)
    assert severity == "error"
    assert message in said
    assert typed == f"{ENV}.VERL_PLATFORM={fix}"


def test_a_platform_of_the_shell(monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "npu")
    assert len(say(environment.verl_platform_known, {}, NPU)) == 1
    monkeypatch.setenv("VERL_PLATFORM", "amd")
    assert say(environment.verl_platform_known, {}, GPU) == []


def test_connections(monkeypatch):
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    severity, message, fix = one(environment.connections_unlimited, {f"{ENV}.{name}": 1})
    assert (severity, fix) == ("warning", f"++{ENV}.{name}=null")
    assert message.startswith(f"{name} is 1")
    assert say(environment.connections_unlimited, {f"{ENV}.{name}": 1}, NPU) == []
    assert say(environment.connections_unlimited, {f"{ENV}.{name}": 8}) == []
    monkeypatch.setenv(name, "1")
    assert len(say(environment.connections_unlimited, {})) == 1


ALLOCATOR = f"{ENV}.PYTORCH_NPU_ALLOC_CONF"


def test_split_size_with_expandable_segments():
    settings = {ALLOCATOR: "max_split_size_mb:1024,expandable_segments:True"}
    severity, message, fix = one(environment.npu_allocator, settings, NPU)
    assert severity == "warning"
    assert "max_split_size_mb:1024,expandable_segments:True: with max_split_size_mb beside it" in message
    assert fix == f"'++{ALLOCATOR}=\"max_split_size_mb:1024\"'"


def test_expandable_segments_alone():
    _, message, fix = one(environment.npu_allocator, {ALLOCATOR: "expandable_segments:True"}, NPU)
    assert "sleep mode refuses" in message
    assert fix == f"{ALLOCATOR}=null"
    for value in ("max_split_size_mb:1024", "expandable_segments:False", None, ""):
        assert say(environment.npu_allocator, {ALLOCATOR: value}, NPU) == []
    assert say(environment.npu_allocator, {ALLOCATOR: "expandable_segments:True"}, GPU) == []


def test_task_queue():
    settings = {f"{ENV}.TASK_QUEUE_ENABLE": 2}
    severity, message, fix = one(environment.npu_task_queue, settings, NPU)
    assert (severity, fix) == ("warning", f"++{ENV}.VLLM_ASCEND_TASK_QUEUE_ENABLE=1")
    assert "breaks vllm-ascend's graph mode unless VLLM_ASCEND_TASK_QUEUE_ENABLE is 1" in message
    assert say(environment.npu_task_queue, {}, NPU) == []
    assert say(environment.npu_task_queue, settings, (*NPU, "rollout=sglang")) == []


def test_weight_format():
    severity, message, fix = one(environment.npu_weight_format, {f"{ENV}.VLLM_ASCEND_ENABLE_NZ": 1}, NPU)
    assert (severity, fix) == ("error", f"{ENV}.VLLM_ASCEND_ENABLE_NZ=0")
    assert "VLLM_ASCEND_ENABLE_NZ is 1" in message
    assert say(environment.npu_weight_format, {}, NPU) == []
    assert say(environment.npu_weight_format, {f"{ENV}.VLLM_ASCEND_ENABLE_NZ": None}, NPU) == []  # verl then sets 0


TIMEOUT = f"{ENV}.HCCL_CONNECT_TIMEOUT"


@pytest.mark.parametrize(("value", "told"), [(120, "is 120 s"), (None, "is not set, so HCCL waits 120 s")])
def test_patience_over_nodes(value, told):
    severity, message, fix = one(environment.hccl_patience, {TIMEOUT: value}, (*NPU, "cluster=2x8"))
    assert (severity, fix) == ("warning", f"++{TIMEOUT}=1500")
    assert f"HCCL_CONNECT_TIMEOUT {told}, and there are 2 nodes" in message
    assert say(environment.hccl_patience, {TIMEOUT: value}, NPU) == []


@pytest.mark.parametrize("value", [60, 9000, "long"])
def test_patience_that_hccl_refuses(value):
    severity, message, _ = one(environment.hccl_patience, {TIMEOUT: value}, NPU)
    assert severity == "error"
    assert f"HCCL_CONNECT_TIMEOUT is {value}; HCCL takes 120 to 7200 s" in message


def test_blocking_launches():
    severity, message, _ = one(environment.launches_unblocked, {f"{ENV}.ASCEND_LAUNCH_BLOCKING": 1}, NPU)
    assert severity == "note"
    assert "ASCEND_LAUNCH_BLOCKING is 1" in message
    assert len(say(environment.launches_unblocked, {f"{ENV}.CUDA_LAUNCH_BLOCKING": 1})) == 1
    assert say(environment.launches_unblocked, {f"{ENV}.ASCEND_LAUNCH_BLOCKING": 1}) == []


IDS = {
    "verl_platform_known",
    "connections_unlimited",
    "npu_allocator",
    "npu_task_queue",
    "npu_weight_format",
    "hccl_patience",
    "launches_unblocked",
    "packages_for_verl",
    "packages_together",
    "transformers_knows_model",
    "bytecode_there",
    "qwen3_5_on_veomni",
    "micro_batch_of_one",
}
RULES = [getattr(environment, name) for name in sorted(IDS)]


def test_all_rules_of_the_module_are_tested():
    made = vars(environment).items()
    assert {name for name, rule in made if getattr(rule, "__annotations__", {}) == RULE} == IDS


@pytest.mark.parametrize("groups", [GPU, NPU, TEXT, ("experiment=smoke",), (*NPU, "cluster=2x8")])
def test_shipped_choices_give_no_more_than_a_note(install, groups):
    settings = {} if groups[0] != "platform=npu" else {f"{ENV}.RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": 1}
    found = [finding for rule in RULES for finding in say(rule, settings, groups)]
    assert {finding.severity for finding in found} <= {"note"}
    assert len(found) == (groups == GPU)  # one sequence at a time, as verl's scripts


# Packages


@pytest.mark.parametrize(
    ("package", "version", "severity", "message", "fix"),
    [
        ("TransferQueue", None, "error", "TransferQueue is not installed: verl's wheel forgets it", "0.1.11"),
        ("TransferQueue", "0.1.8", "error", "TransferQueue 0.1.8", "0.1.11"),
        ("tensordict", "0.11.0", "error", "tensordict 0.11.0: others fail an assertion", "0.10.0"),
        ("transformers", "5.6.0", "warning", "transformers 5.6.0", "5.9.0"),
        ("transformers", "5.11.0", "warning", "transformers 5.11.0", "5.9.0"),
        ("numpy", "1.26.4", "warning", "numpy 1.26.4", "2.3.5"),
    ],
)
def test_versions_that_verl_refuses(install, package, version, severity, message, fix):
    install(**{package: version})
    [finding] = say(environment.packages_for_verl, {})
    assert (finding.severity, finding.fix) == (severity, f"pip install {package}=={fix}")
    assert message in finding.message
    [finding] = say(environment.packages_for_verl, {"action": "check"})
    assert finding.severity == "warning"


@pytest.mark.parametrize("version", ["5.5.3", "5.5.4", "5.10.4"])
def test_versions_that_verl_takes(install, version):
    install(transformers=version)
    assert say(environment.packages_for_verl, {}) == []


def test_a_python_that_only_plans(install):
    install(torch=None, TransferQueue=None, tensordict="0.1")
    assert say(environment.packages_for_verl, {}) == []


def test_the_packages_of_uv_are_not_here(install, monkeypatch):
    install(TransferQueue=None, transformers="5.1.0")
    monkeypatch.setattr(environment, "_runs_here", lambda run: False)
    assert [finding for rule in RULES for finding in say(rule, {}) if finding.severity != "note"] == []


VEOMNI = (*TEXT, "engine=veomni")


def test_veomni_with_transformers(install):
    install(veomni="0.1.11")
    severity, message, fix = one(environment.packages_together, {}, VEOMNI)
    assert (severity, fix) == ("error", "pip install --no-deps veomni==0.1.12")
    assert "veomni 0.1.11 with transformers 5.9.0 fails at the first forward" in message
    assert say(environment.packages_together, {}, TEXT) == []
    install(veomni="0.1.11", transformers="5.8.1")
    assert say(environment.packages_together, {}, VEOMNI) == []
    install(veomni="0.1.12")
    assert say(environment.packages_together, {}, VEOMNI) == []


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        ({"torch_npu": "2.9.0.post1"}, "torch-npu 2.9.0.post1 is made for torch 2.9.0, and 2.11.0 is installed"),
        ({"torch_npu": "2.11.0", "vllm_ascend": "0.23.0"}, "vllm-ascend 0.23.0 is made for vllm 0.23.0, and 0.24.0"),
    ],
)
def test_packages_of_npus(install, packages, message):
    install(**packages)
    severity, said, _ = one(environment.packages_together, {}, NPU)
    assert severity == "warning"
    assert message in said
    assert say(environment.packages_together, {}, GPU) == []


def test_packages_of_npus_that_fit(install):
    install(torch="2.10.0+cpu", torch_npu="2.10.0.post4", vllm="0.23.0+empty", vllm_ascend="0.23.0")
    assert say(environment.packages_together, {}, NPU) == []


def test_transformers_without_qwen3_5(install):
    install(transformers="5.1.0", torch=None)
    [finding] = say(environment.transformers_knows_model, {})
    assert finding.severity == "warning"
    assert "transformers 5.1.0 is installed, and Qwen/Qwen3.5-2B is of type qwen3_5" in finding.message
    assert say(environment.transformers_knows_model, {}, TEXT) == []
    install(transformers=None)
    assert say(environment.transformers_knows_model, {}) == []


def test_packages_without_bytecode(install, monkeypatch, tmp_path):
    for package, module in environment.BYTECODE.items():
        (tmp_path / package / module).parent.mkdir(parents=True)
        (tmp_path / package / module).touch()
    monkeypatch.setattr(environment, "_folder", lambda package: tmp_path / package)
    [finding] = say(environment.bytecode_there, {})
    assert finding.severity == "warning"
    assert "Without compiled bytecode: verl, vllm." in finding.message
    assert shlex.split(finding.fix) == [
        sys.executable,
        "-m",
        "compileall",
        "-q",
        f"{tmp_path}/verl",
        f"{tmp_path}/vllm",
    ]
    import compileall

    assert compileall.compile_dir(tmp_path / "verl", quiet=2)
    [finding] = say(environment.bytecode_there, {})
    assert "Without compiled bytecode: vllm." in finding.message
    assert compileall.compile_dir(tmp_path / "vllm", quiet=2)
    assert say(environment.bytecode_there, {}) == []


# Kernels and speed


@pytest.mark.parametrize("path", ["Qwen/Qwen3.5-4B", "/models/qwen3_5-2b", "Qwen/Qwen3.5-35B-A3B-Instruct"])
def test_qwen3_5_on_veomni_on_npus(path):
    settings = {"actor_rollout_ref.model.path": path}
    groups = ("platform=npu", "student=qwen2_5_0_5b", "teacher=qwen2_5_3b_instruct", "engine=veomni")
    severity, message, fix = one(environment.qwen3_5_on_veomni, settings, groups)
    assert (severity, fix) == ("error", "engine=fsdp2")
    assert f"{path} cannot be trained with VeOmni on an NPU" in message
    assert say(environment.qwen3_5_on_veomni, {}, groups) == []
    assert say(environment.qwen3_5_on_veomni, settings, groups[:3]) == []


ACTOR = "actor_rollout_ref.actor"
ONE = {f"{ACTOR}.use_dynamic_bsz": False, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1}


def test_one_sequence_at_a_time():
    severity, message, fix = one(environment.micro_batch_of_one, ONE, TEXT)
    assert severity == "warning"
    assert "goes through 32 sequences an accelerator one by one; packed into 8192 tokens" in message
    assert fix == f"{ACTOR}.use_dynamic_bsz=true {ACTOR}.ppo_max_token_len_per_gpu=8192"
    assert one(environment.micro_batch_of_one, {}, GPU)[0] == "note"


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        ({}, TEXT),
        (ONE | {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4}, TEXT),
        (ONE | {"data.max_response_length": 16384}, TEXT),
        (ONE | {"actor_rollout_ref.model.use_remove_padding": False}, TEXT),
        (ONE | {"data.train_batch_size": 4}, TEXT),
        (ONE, NPU),
        (ONE, ("experiment=smoke",)),
    ],
)
def test_where_packing_helps_nobody(settings, groups):
    assert say(environment.micro_batch_of_one, settings, groups) == []

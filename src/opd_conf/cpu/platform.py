"""verl's platform `cpu`: what verl asks of an accelerator, answered by the host.

Imports torch and verl; only plugin.py imports this, inside a process that has both already.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

NAME = "cpu"


def peak_memory(*_: object) -> int:
    """Largest resident size of this process so far, in bytes: the nearest thing to an allocator's peak."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def current_memory(*_: object) -> int:
    """Resident size of this process now, in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def host_memory(*_: object) -> tuple[int, int]:
    """Free and total memory of the host, in bytes (as torch.cuda.mem_get_info)."""
    with open("/proc/meminfo") as meminfo:
        kilobytes = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in meminfo)}
    return kilobytes["MemAvailable"] * 1024, kilobytes["MemTotal"] * 1024


def nothing(*_: object, **__: object) -> None:
    """Stands for what only an accelerator has: caches, a current device, a queue to wait for."""


def make_device_module() -> ModuleType:
    """The stand-in for `torch.cuda`: torch.cpu and the functions that it lacks and verl calls (get_torch_device())."""
    module = ModuleType("opd_conf_cpu_device", "torch.cpu, completed to what verl calls on torch.cuda.")
    module.__dict__.update({name: value for name, value in vars(torch.cpu).items() if not name.startswith("__")})
    module.__dict__.update(
        {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: torch.device(NAME),
            "get_device_name": lambda *_: NAME,
            "set_device": nothing,
            "synchronize": nothing,
            "empty_cache": nothing,
            "ipc_collect": nothing,
            "set_per_process_memory_fraction": nothing,
            "reset_peak_memory_stats": nothing,
            "reset_max_memory_allocated": nothing,
            "manual_seed": torch.manual_seed,
            "manual_seed_all": torch.manual_seed,
            "get_rng_state": lambda *_: torch.get_rng_state(),
            "set_rng_state": lambda state, *_: torch.set_rng_state(state),
            "memory_allocated": current_memory,
            "memory_reserved": current_memory,
            "max_memory_allocated": peak_memory,
            "max_memory_reserved": peak_memory,
            "mem_get_info": host_memory,
        }
    )
    return module


class PlatformCPU(PlatformBase):
    """One host as one accelerator a process; Ray counts them as GPUs (`ray_init.num_gpus` says how many)."""

    _device_module = make_device_module()

    @property
    def device_name(self) -> str:
        return NAME

    @property
    def vendor_name(self) -> str:
        return NAME

    @property
    def device_module(self) -> ModuleType:
        return self._device_module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Never found by looking: only VERL_PLATFORM=cpu chooses it."""
        return False

    def current_device(self) -> Any:
        """A torch.device, not an index: verl passes it to Tensor.to(), where 0 would mean an accelerator."""
        return torch.device(NAME)

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs behind the caller's back."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The host's allocator has none."""

    def empty_cache(self) -> None:
        """The host's allocator keeps none."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Ray sets this one for the resource "GPU", and verl reads back what Ray set."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """No profiler."""

    def profiler_stop(self) -> None:
        """No profiler."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """False: weights go from trainer to vLLM through shared memory."""
        return False

    def cudart(self) -> None:
        return None


def register_platform() -> None:
    """Make `VERL_PLATFORM=cpu` mean PlatformCPU."""
    PlatformRegistry.register(platform=NAME)(PlatformCPU)

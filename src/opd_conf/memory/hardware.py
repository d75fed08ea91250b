"""What memory there is: a device's and a node's, read where they are, without torch. Sizes in bytes.

NVIDIA's library is asked through ctypes: five calls, stable for ten years, are less than a package that a laptop, an
NPU's host and a CPU would install for nothing.
"""

import ctypes
import re
import subprocess
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from opd_conf import platforms
from opd_conf.view import View

GIB = 2**30
DEVICE, CLUSTER_DEVICE, CLUSTER_HOST = (
    "platform.device_memory_gib",
    "cluster.device_memory_gib",
    "cluster.host_memory_gib",
)
READ = "read from this machine"
PATIENCE = 10
"""Seconds for npu-smi, which takes one or two where devices are well."""

_CHIP = re.compile(r"^\|[^|]*\|\s*[0-9A-F]+:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F]\s*\|.*?(\d+)\s*/\s*(\d+)\s*\|\s*$", re.M)
"""The second of npu-smi's two rows for a chip: a bus id in the middle, used and all MB of HBM at the end."""


@dataclass(frozen=True)
class Room:
    """Bytes that a device or a node has, and who says so."""

    size: float
    source: str


@dataclass(frozen=True)
class Device:
    """Bytes of one device: all, and those that no process has."""

    total: int
    free: int


def device_room(run: View) -> Room | None:
    """What a device of a run has: what the user says, else what is read here, else what the cluster's file says.

    Of uneven devices the smallest that the run must take; a display's small one beside them does not count.
    """
    own = None if run.follows(DEVICE) else _said(run, DEVICE)
    if own is None and (found := devices(run)):
        totals = sorted((device.total for device in found), reverse=True)
        return Room(totals[: run.cluster_per_node][-1], READ)
    return own or _said(run, CLUSTER_DEVICE)


def host_room(run: View) -> Room | None:
    """What a node of a run has: this machine's RAM when the devices are here, else what the cluster's file says."""
    if not _here(run):
        return _said(run, CLUSTER_HOST)
    import psutil

    return Room(min([psutil.virtual_memory().total, *cgroup_limits()]), READ)


def devices(run: View) -> tuple[Device, ...]:
    """The devices of a run's platform that are here; none when the run is only planned, or they cannot be asked."""
    return _devices(run.platform, time.monotonic() // 10) if _here(run) else ()


def _here(run: View) -> bool:
    return run.action in ("train", "check") and run.platform in platforms.device_nodes()


@lru_cache(maxsize=1)
def _devices(platform: str, _moment: float) -> tuple[Device, ...]:
    """Asked once in ten seconds: several rules of one check want to know, and the next run of a sweep wants it new."""
    return nvidia() if platform == "gpu" else ascend()


def _said(run: View, key: str) -> Room | None:
    gib = run.setting(key)
    number = isinstance(gib, int | float) and not isinstance(gib, bool)
    return Room(gib * GIB, key) if number and gib > 0 else None


class Memory(ctypes.Structure):
    """NVML's nvmlMemory_v2_t, of drivers since 510; what is reserved CUDA does not count."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def nvidia(library: str = "libnvidia-ml.so.1") -> tuple[Device, ...]:
    """NVIDIA's devices by NVML, none without its library. A device that does not say (shared memory) is left out."""
    try:
        nvml = ctypes.CDLL(library)
        return _told(nvml) if nvml.nvmlInit_v2() == 0 else ()
    except (OSError, AttributeError):
        return ()


def _told(nvml: ctypes.CDLL) -> tuple[Device, ...]:
    count, device, found = ctypes.c_uint(), ctypes.c_void_p(), []
    memory = Memory(version=ctypes.sizeof(Memory) | 2 << 24)
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        failed = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        if not (failed or nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory))):
            found.append(Device(memory.total - memory.reserved, memory.free))
    nvml.nvmlShutdown()
    return tuple(found)


def ascend() -> tuple[Device, ...]:
    """Ascend's devices by npu-smi; none where it is missing, fails or hangs."""
    try:
        told = subprocess.run(["npu-smi", "info"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
    return chips(told.stdout)


def chips(told: str) -> tuple[Device, ...]:
    """The devices in what `npu-smi info` prints: a chip of an A2 is one, an A3 has two chips."""
    found = ((int(used) << 20, int(total) << 20) for used, total in _CHIP.findall(told))
    return tuple(Device(total, total - used) for used, total in found if total)


def cgroup_limits(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Limits on the memory of this process and of the groups above it (a container's, a Slurm job's), v1 and v2."""
    limits = []
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        folder = top / group.strip("/")
        for place in (folder, *folder.parents):
            if place.is_relative_to(top) and (place / name).is_file():
                limit = (place / name).read_text().strip()
                limits += [int(limit)] if limit.isdigit() else []
    return limits

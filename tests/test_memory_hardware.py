"""What devices and nodes say about their memory: as NVML, npu-smi and the kernel's files tell it."""

import ctypes
import stat

import pytest
from omegaconf import OmegaConf

from opd_conf import memory, platforms
from opd_conf.memory import GIB, hardware
from opd_conf.view import view

RUN = ("student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
A2 = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.0.rc1                 Version: 25.0.rc1                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 92.8        43                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3381 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | OK            | 96.1        44                0    / 0             |
| 0                         | 0000:C2:00.0  | 87          0    / 0          61440/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 1       0                 | 4711          | python                   | 58000                   |
+===========================+===============+====================================================+
"""
A3 = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.1                   Version: 25.2.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 166.5       38                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3131 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           37                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          2886 / 65536         |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
"""
BROKEN = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi model initialized failed, ret is -8005\n"


@pytest.mark.parametrize(
    ("told", "free"),
    [(A2, [62155, 4096]), (A3, [62405, 62650]), (BROKEN, []), ("", []), (A2.replace("65536", "0"), [])],
)
def test_what_npu_smi_tells(told, free):
    assert [device.free >> 20 for device in hardware.chips(told)] == free
    assert {device.total for device in hardware.chips(told)} <= {64 * GIB}


@pytest.fixture
def npu(tmp_path, monkeypatch):
    """A machine with NPUs whose npu-smi prints a text, after some seconds; a new one at each call."""
    hardware._devices.cache_clear()
    monkeypatch.setattr(platforms, "device_nodes", lambda: {"npu": ["/dev/davinci0"]})

    def machine(told: str, seconds: float = 0) -> None:
        program = tmp_path / "npu-smi"
        program.write_text(f"#!/bin/sh\nexec 2>&1\nsleep {seconds}\ncat <<'END'\n{told}END\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    yield machine
    hardware._devices.cache_clear()


@pytest.fixture
def room(compose):
    """What a device of a run has, in GiB, and who says so."""

    def found(platform="npu", **settings):
        config = compose(f"platform={platform}", *RUN)
        for key, value in settings.items():
            OmegaConf.update(config, key.replace("__", "."), value)
        told = hardware.device_room(view(config))
        return None if told is None else (told.size / GIB, told.source)

    return found


def test_the_user_then_the_device_then_the_cluster(npu, room):
    npu(A3)
    cluster = {"cluster__device_memory_gib": 32}
    assert room(platform__device_memory_gib=61.5, **cluster) == (61.5, "platform.device_memory_gib")
    assert room(**cluster) == (64, hardware.READ)
    assert room(action="script", **cluster) == (32, "cluster.device_memory_gib")
    assert room("gpu", **cluster) == (32, "cluster.device_memory_gib")
    assert room("gpu") is None


@pytest.mark.parametrize("gib", [0, -1, "many", True])
def test_no_memory_is_not_known(room, gib):
    assert room("gpu", cluster__device_memory_gib=gib) is None


def test_devices_that_cannot_be_asked(npu, room):
    npu(BROKEN)
    assert room(cluster__device_memory_gib=32) == (32, "cluster.device_memory_gib")


def test_a_program_that_hangs_is_left(npu, monkeypatch):
    npu(A3, seconds=5)
    monkeypatch.setattr(hardware, "PATIENCE", 0.2)
    assert hardware.ascend() == ()


def test_of_uneven_devices_the_smallest_that_must_be_taken(npu, room):
    npu(A3.replace("2886 / 65536", "2886 / 32768"))
    assert room(cluster__accelerators_per_node=2) == (32, hardware.READ)
    assert room(cluster__accelerators_per_node=1) == (64, hardware.READ)
    assert room(cluster__accelerators_per_node=16) == (32, hardware.READ)


class Nvml:
    """NVML with devices of these totals and used bytes, 1 GiB each reserved; None: one that does not say."""

    def __init__(self, *devices):
        self.devices = devices

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.devices)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, device):
        device._obj.value = index + 1
        return 0

    def nvmlDeviceGetMemoryInfo_v2(self, device, memory):
        found, told = self.devices[device.value - 1], memory._obj
        if found is None or told.version != 0x2000028:  # 40 bytes, version 2: nvml.h
            return 3
        told.total, told.used, told.reserved = found[0], found[1], GIB
        told.free = found[0] - found[1] - GIB
        return 0

    def nvmlShutdown(self):
        return 0


def test_what_nvml_tells():
    found = hardware._told(Nvml((80 * GIB, 30 * GIB), None, (40 * GIB, 0)))
    assert found == (hardware.Device(79 * GIB, 49 * GIB), hardware.Device(39 * GIB, 39 * GIB))
    assert ctypes.sizeof(hardware.Memory) == 40


@pytest.mark.parametrize("library", ["libnone.so.1", "libc.so.6"])
def test_without_the_driver_there_is_nothing(library):
    assert hardware.nvidia(library) == ()


# Nodes.


@pytest.mark.parametrize(
    ("own", "files", "limits"),
    [
        ("0::/a/b\n", {"a/memory.max": "1000\n", "a/b/memory.max": "max\n", "memory.max": "2000\n"}, [1000, 2000]),
        ("5:cpu:/x\n4:memory,hugetlb:/a\n", {"memory/a/memory.limit_in_bytes": "7\n"}, [7]),
        ("0::/../outside\n", {}, []),
        ("", {}, []),
    ],
)
def test_limits_of_groups(tmp_path, own, files, limits):
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    assert hardware.cgroup_limits(tmp_path / "own", tmp_path / "root") == limits
    assert hardware.cgroup_limits(tmp_path / "none") == []


def test_a_node_is_read_where_the_devices_are(npu, compose):
    npu(A3)
    config = compose("platform=npu", *RUN)
    assert hardware.host_room(view(config)).source == hardware.READ
    config.action, config.cluster.host_memory_gib = "script", 512
    assert hardware.host_room(view(config)) == memory.Room(512 * GIB, "cluster.host_memory_gib")

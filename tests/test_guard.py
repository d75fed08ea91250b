"""The guard with real processes: what a trainer leaves behind ends with it, and nothing else does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

# A trainer that starts a child, a grandchild that detaches as Ray's daemons do, and a file in the temporary folder.
TRAINER = """
import multiprocessing, os, pathlib, subprocess, sys, time
from multiprocessing.shared_memory import SharedMemory
tmp, marks, seconds, code = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
tmp.mkdir(exist_ok=True); (tmp / "socket").write_text("x")
segment, lock = SharedMemory(create=True, size=8), multiprocessing.get_context("spawn").Lock()
(marks / "shared").write_text(segment.name + " sem." + lock._semlock.name.lstrip("/"))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        (marks / "detached").write_text(str(os.getpid()))
        time.sleep(300)
    os._exit(0)
(marks / "child").write_text(str(child.pid))
while not (marks / "detached").exists(): time.sleep(0.01)
(marks / "ready").write_text(str(os.getpid()))
time.sleep(seconds)
sys.exit(code)
"""
PARENT = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True).wait()"


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., "subprocess.Popen[bytes]"]:
    def start(seconds: float, code: int = 0, *, below: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
        (tmp_path / "run").mkdir()
        (tmp_path / "marks").mkdir()
        trainer = [
            sys.executable,
            "-c",
            TRAINER,
            str(tmp_path / "tmp"),
            str(tmp_path / "marks"),
            str(seconds),
            str(code),
        ]
        guard = [sys.executable, "-m", "opd_conf.guard", str(tmp_path / "run"), str(tmp_path / "tmp"), *trainer]
        return subprocess.Popen([*below, *guard])

    return start


def _wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.02)


def _marks(tmp_path: Path) -> list[int]:
    _wait_for(lambda: (tmp_path / "marks" / "ready").exists())
    return [int((tmp_path / "marks" / name).read_text()) for name in ("ready", "child", "detached")]


def _status(tmp_path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((tmp_path / "run" / "status.json").read_text())
    return content


def _none_left(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


@pytest.mark.parametrize(("code", "state"), [(0, "finished"), (7, "failed")])
def test_an_end_is_recorded_and_takes_everything_along(start, tmp_path, code, state):
    guard = start(0.2, code)
    pids = _marks(tmp_path)
    assert guard.wait(timeout=10) == code
    assert _none_left(pids)
    assert not (tmp_path / "tmp").exists()
    assert (_status(tmp_path)["state"], _status(tmp_path)["exit_code"]) == (state, code)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_trainer_and_is_recorded(start, tmp_path, number):
    guard = start(300)
    pids = _marks(tmp_path)
    assert _status(tmp_path)["state"] == "running"
    guard.send_signal(number)
    assert guard.wait(timeout=10) == 128 + number
    assert _none_left(pids)
    assert (_status(tmp_path)["state"], _status(tmp_path)["signal"]) == ("interrupted", signal.Signals(number).name)


def test_kill_9_of_our_own_process_ends_the_run(start, tmp_path):
    parent = start(300, below=(sys.executable, "-c", PARENT))
    pids = _marks(tmp_path)
    parent.kill()
    parent.wait()
    _wait_for(lambda: _none_left(pids) and _status(tmp_path)["state"] == "interrupted")
    assert not (tmp_path / "tmp").exists()


def test_shared_memory_and_semaphores_of_the_run_are_removed_and_no_others(start, tmp_path):
    other = SharedMemory(create=True, size=8)
    guard = start(0.5)
    _marks(tmp_path)
    names = (tmp_path / "marks" / "shared").read_text().split()
    assert [name for name in names if not Path("/dev/shm", name).exists()] == []
    guard.wait(timeout=10)
    assert [name for name in names if Path("/dev/shm", name).exists()] == []
    assert Path("/dev/shm", other.name).exists()
    other.close()
    other.unlink()


def test_other_processes_are_not_touched(start, tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    guard = start(0.1)
    guard.wait(timeout=10)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_sigint_works_although_a_script_started_us_in_the_background(start, tmp_path):
    ignore = "import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    parent = start(300, below=(sys.executable, "-c", ignore + "sys.exit(subprocess.call(sys.argv[1:]))"))
    pids = _marks(tmp_path)
    os.kill(int(_status(tmp_path)["pid"]), signal.SIGINT)
    assert parent.wait(timeout=10) == 130
    assert _none_left(pids)

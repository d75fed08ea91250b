"""The process between opd_conf and the trainer: whatever ends first, nothing of the run is left behind.

    python -m opd_conf.guard RUN_FOLDER TEMPORARY_FOLDER command…

It is the subreaper of everything that the trainer starts (Ray's daemons and vLLM's engines included, also when they
detach), so it ends exactly the run's processes and no others.

SIGINT, SIGTERM: passed on to the trainer; a second one ends everything at once.
SIGUSR1: opd_conf itself has died (asked for with PR_SET_PDEATHSIG); the trainer gets SIGTERM and little time.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from opd_conf import status

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_AFTER_SIGNAL = 60.0  # seconds that a trainer has to end by itself; verl on a CPU takes 3 to 6
GRACE_WHEN_ORPHANED = 5.0
GRACE_OF_DESCENDANTS = 2.5  # Ray's daemons end by themselves when their driver is gone

_libc = ctypes.CDLL(None, use_errno=True)


def descendants(root: int) -> list[int]:
    """Process ids below `root`, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def shared_memory(pids: list[int]) -> set[int]:
    """Inodes of /dev/shm that these processes have mapped; a semaphore's map shows a name that it no longer has."""
    found = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        found |= {int(line.split()[4]) for line in lines if "/dev/shm/" in line}
    return found


def remove_shared_memory(inodes: set[int]) -> None:
    """Removes the files of /dev/shm that are these."""
    for path in Path("/dev/shm").iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_ino in inodes:
                path.unlink()


class Guarded:
    """One trainer and the signals that reached us on its behalf."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.folder = folder
        self.signals: list[int] = []
        self.deadline = float("inf")
        self.segments: set[int] = set()
        self.trainer = subprocess.Popen(command, preexec_fn=_prepare_trainer)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self.signals.append(number)
        orphaned = number == signal.SIGUSR1
        if len(self.signals) > 1 and not orphaned:
            self.deadline = 0.0
            return
        self.deadline = min(self.deadline, time.monotonic() + (GRACE_WHEN_ORPHANED if orphaned else GRACE_AFTER_SIGNAL))
        if self.trainer.poll() is None:
            self.trainer.send_signal(signal.SIGTERM if orphaned else number)

    def wait(self) -> int:
        """The trainer's return code, once it has ended or its time is over."""
        looked = 0.0
        while True:
            try:
                return self.trainer.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() > self.deadline:
                self.trainer.kill()
                return self.trainer.wait()
            if time.monotonic() > looked + 5.0:
                looked = time.monotonic()
                self.segments |= shared_memory(descendants(os.getpid()))
                with contextlib.suppress(OSError):  # a full disk must not end a run that goes on
                    status.take_in_warnings(self.folder)

    def end_descendants(self) -> None:
        """Waits a moment for what the trainer has left, then ends it, and reaps every orphan."""
        patience = time.monotonic() + (0.0 if self.deadline == 0.0 else GRACE_OF_DESCENDANTS)
        while left := descendants(os.getpid()):
            self.segments |= shared_memory(left)
            if time.monotonic() > patience:
                for pid in left:
                    _kill(pid)
            _reap()
            time.sleep(0.05)


def _prepare_trainer() -> None:
    """In the trainer before it starts: it dies with us; SIGINT works although shells ignore it for background jobs."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main(folder: Path, temporary: Path, command: list[str]) -> int:
    """Runs the command to its end; the exit code of the trainer, or 128 + signal when it was ended by one."""
    parent = os.getppid()
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    run = Guarded(command, folder)
    if os.getppid() != parent:  # opd_conf died before it could be noticed
        os.kill(os.getpid(), signal.SIGUSR1)
    status.write(folder, "running", pid=os.getpid(), trainer_pid=run.trainer.pid)
    code = run.wait()
    run.end_descendants()
    remove_shared_memory(run.segments)
    shutil.rmtree(temporary, ignore_errors=True)
    if run.signals:
        by = "SIGKILL of opd_conf" if run.signals[0] == signal.SIGUSR1 else signal.Signals(run.signals[0]).name
        number = signal.SIGKILL if run.signals[0] == signal.SIGUSR1 else run.signals[0]
        status.write(folder, "interrupted", signal=by, trainer_exit_code=code, exit_code=128 + number)
        return 128 + number
    exit_code = code if code >= 0 else 128 - code
    status.write(folder, "finished" if code == 0 else "failed", trainer_exit_code=code, exit_code=exit_code)
    return exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))

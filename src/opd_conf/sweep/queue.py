"""Recorded cells on this machine: one after the other, or side by side where accelerators are left for another."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from opd_conf import platforms, status
from opd_conf.handoff import Handoff

VISIBLE = {"gpu": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
"""What shows a process some of the machine's accelerators."""

POLL_SECONDS = 0.5
LINE_SECONDS = 60.0
OUTPUT = "progress.log"
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """A recorded cell. `accelerators` None: it wants the machine for itself."""

    name: str
    folder: Path
    platform: str
    accelerators: int | None


def job(name: str, run: Handoff, platform: str) -> Job:
    """What a recorded cell asks for. Beside another run only those can be that start a Ray of their own on a device."""
    alone = (
        run.verl["ray_kwargs"]["ray_init"].get("address") != "local"
        or platform not in VISIBLE
        or VISIBLE[platform] in run.environment
    )
    pools = (run.verl["trainer"], run.verl["distillation"])
    wanted = sum(int(pool["nnodes"]) * int(pool["n_gpus_per_node"]) for pool in pools)
    return Job(name, run.folder, platform, None if alone else wanted)


@dataclass(frozen=True)
class _Running:
    job: Job
    process: "subprocess.Popen[bytes]"
    devices: tuple[str, ...]
    begun: float


class Queue:
    """Jobs that wait, run and have ended."""

    def __init__(self, jobs: Sequence[Job], devices: Sequence[str]) -> None:
        self.waiting = list(jobs)
        self.running: list[_Running] = []
        self.codes: dict[str, int] = {}
        self.seconds: list[float] = []
        self.free = list(devices)
        self.devices = len(devices)
        self.signals: list[int] = []

    def start_what_fits(self) -> list[Job]:
        """Starts the first jobs in line for as long as there is room; those that were started."""
        started = []
        while self.waiting and not self.signals and (room := self._room(self.waiting[0])) is not None:
            job = self.waiting.pop(0)
            self.running.append(_Running(job, _start(job, room), room, time.monotonic()))
            self.free = [device for device in self.free if device not in room]
            started.append(job)
        return started

    def _room(self, job: Job) -> tuple[str, ...] | None:
        """Devices for a job, none for one that is alone; None when it has to wait."""
        alone = job.accelerators is None or job.accelerators > self.devices
        if alone:
            return None if self.running else ()
        if any(not other.devices for other in self.running) or len(self.free) < (job.accelerators or 0):
            return None
        return tuple(self.free[: job.accelerators])

    def collect(self) -> list[tuple[Job, int]]:
        """Jobs that have ended since, with their exit codes."""
        ended = [(run, code) for run in self.running if (code := run.process.poll()) is not None]
        for run, code in ended:
            self.running.remove(run)
            self.free += run.devices
            self.codes[run.job.name] = code if code >= 0 else 128 - code
            self.seconds.append(time.monotonic() - run.begun)
        return [(run.job, self.codes[run.job.name]) for run, _ in ended]

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Passes a signal on to what runs; nothing more is started."""
        self.signals.append(number)
        for run in self.running:
            run.process.send_signal(number)

    @property
    def seconds_left(self) -> float | None:
        """For what waits and runs, if it takes as long as what has ended; None before anything has."""
        if not self.seconds:
            return None
        mean = sum(self.seconds) / len(self.seconds)
        begun = sum(min(mean, time.monotonic() - run.begun) for run in self.running)
        return (mean * (len(self.waiting) + len(self.running)) - begun) / max(1, len(self.running))


def run_all(jobs: Sequence[Job], stop_on_failure: bool) -> int:
    """Runs every job; 0 when all finished, else the first exit code that is not 0 (130 or 143 after a signal)."""
    queue = Queue(jobs, visible_devices(jobs[0].platform) if jobs else ())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, queue.on_signal)
    console = Console(highlight=False, soft_wrap=True)
    columns = (
        *(TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn()),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("cells", total=len(jobs), detail="")
        said = time.monotonic()
        while queue.waiting or queue.running:
            for job in queue.start_what_fits():
                console.print(f"{job.name}: started, {job.folder / OUTPUT}", markup=False)
            for job, code in queue.collect():
                console.print(_ended(job, code, len(queue.codes), len(jobs)), markup=False)
                if code and stop_on_failure:
                    queue.waiting.clear()
            if queue.signals:
                queue.waiting.clear()
            progress.update(bar, completed=len(queue.codes), detail=_detail(queue))
            if not console.is_terminal and time.monotonic() - said > LINE_SECONDS:
                said = time.monotonic()
                console.print(_detail(queue), markup=False)
            time.sleep(POLL_SECONDS)
    if queue.signals:
        return 128 + queue.signals[0]
    return next((code for code in queue.codes.values() if code), 0)


def visible_devices(platform: str) -> list[str]:
    """The accelerators that this process may use, by the number that its variable for them takes."""
    name = VISIBLE.get(platform)
    if name is None:
        return []
    if chosen := os.environ.get(name):
        return [device.strip() for device in chosen.split(",")]
    return [str(number) for number in range(len(platforms.device_nodes().get(platform, ())))]


def _start(job: Job, devices: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, **({VISIBLE[job.platform]: ",".join(devices)} if devices else {})}
    with (job.folder / OUTPUT).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "opd_conf.start", str(job.folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone, and we pass it on
            preexec_fn=_ends_with_us,
        )


def _ends_with_us() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _ended(job: Job, code: int, done: int, of: int) -> str:
    state = status.read(job.folder)
    why = state.get("cause", {}).get("reason") or state.get("signal") or ("" if code == 0 else f"exit code {code}")
    return f"{job.name}: {state.get('state', 'unknown')}{f', {why}' if why else ''} ({done} of {of})"


def _detail(queue: Queue) -> str:
    """What runs and the last word of each; how long for the rest."""
    parts = [f"{run.job.name}: {_last_line(run.job.folder / OUTPUT)}" for run in queue.running]
    parts += [f"{len(queue.waiting)} wait"] if queue.waiting else []
    if (left := queue.seconds_left) is not None:
        parts.append(f"about {left / 60:.0f} min left")
    return "; ".join(parts)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n") if path.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "…")

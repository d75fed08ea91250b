"""Shows a running trainer: phases of its start, then its steps; passes signals on and returns its exit code."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from opd_conf import metrics, status
from opd_conf.causes import cause
from opd_conf.handoff import Handoff
from opd_conf.metrics import Step
from opd_conf.phases import StartUp
from opd_conf.summary import summary, tail
from opd_conf.watch import Concern, Watch, asked_of

Events: TypeAlias = Iterator[tuple[str | None, Step | None]]
"""What happens, as it happens: a finished phase of the start-up (as text), or a training step, or nothing yet."""

POLL_SECONDS = 0.2
PLAIN_LINE_SECONDS = 30.0  # elsewhere than on a terminal: at most one line of progress so often


def follow(trainer: "subprocess.Popen[bytes]", run: Handoff) -> int:
    """Shows the run until it has ended; the trainer's exit code (128 + signal when a signal ended it)."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"run folder  {run.folder}")
    _pass_signals_on(trainer, console)
    start = StartUp(teacher_servers(run.verl["distillation"]))
    show = _on_terminal if console.is_terminal else _in_lines
    show(console, _watched(_events(trainer, run, start), run, console), start)
    code = trainer.wait()
    status.take_in_warnings(run.folder)  # the guard is gone
    console.print(summary(run, code), markup=False)
    if code != 0:
        console.print(tail(run.folder / "train.log"), markup=False)
        _explain(console, run.folder, code)
    return code


def _explain(console: Console, folder: Path, code: int) -> None:
    """Shows the known cause of a failure and what to do about it, and keeps both in status.json."""
    last = status.read(folder)
    log = folder / "train.log"
    if last.get("state") != "failed" or not log.exists():
        return
    if found := cause(log.read_text(errors="replace"), code):
        console.print(f"\ncause: {found.reason}\n  try: {found.fix}", markup=False)
        status.write(folder, **{**last, "cause": asdict(found)})


def _pass_signals_on(trainer: "subprocess.Popen[bytes]", console: Console) -> None:
    def pass_on(number: int, frame: FrameType | None) -> None:
        trainer.send_signal(number)
        console.print(
            f"{signal.Signals(number).name}: the trainer is asked to stop; once more ends it at once", markup=False
        )

    signal.signal(signal.SIGINT, pass_on)
    signal.signal(signal.SIGTERM, pass_on)


def _on_terminal(console: Console, events: Events, start: StartUp) -> None:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None, detail=start.current or "")
        for phase, step in events:
            if phase:
                console.print(phase, markup=False)
                progress.update(task, detail=start.current or "")
            if step:
                progress.update(
                    task,
                    description="step",
                    total=start.total_steps,
                    completed=step.number,
                    detail=describe(step, start),
                )


def _in_lines(console: Console, events: Events, start: StartUp) -> None:
    printed = begun = time.monotonic()
    for phase, step in events:
        if phase:
            printed = time.monotonic()
            console.print(phase, markup=False)
        if step is None and start.current and time.monotonic() - printed > PLAIN_LINE_SECONDS:
            printed = time.monotonic()
            console.print(f"  {start.current:<12} …      (at {printed - begun:.0f} s)", markup=False)
        last = step is not None and step.number == start.total_steps
        if step and (last or step.number == 1 or time.monotonic() - printed > PLAIN_LINE_SECONDS):
            printed = time.monotonic()
            left = _left(step, start)
            console.print(f"step {describe(step, start)}  {printed - begun:.0f} s, {left}", markup=False)


def describe(step: Step, start: StartUp) -> str:
    """`12/40  loss 0.123  score 0.41  250 tokens/s`, as far as the trainer reports them."""
    parts = [f"{step.number}/{start.total_steps or '?'}"]
    parts += [f"loss {step.loss:.4g}"] if step.loss is not None else []
    parts += [f"score {step.score:.3g}"] if step.score is not None else []
    seconds = float(step.values[metrics.STEP_SECONDS])
    parts += [f"{float(step.values[metrics.TOKENS]) / seconds:.0f} tokens/s"] if metrics.TOKENS in step.values else []
    return "  ".join(parts)


def _left(step: Step, start: StartUp) -> str:
    if start.total_steps is None:
        return "unknown time left"
    seconds = (start.total_steps - step.number) * float(step.values[metrics.STEP_SECONDS])
    return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"


def _watched(events: Events, run: Handoff, console: Console) -> Events:
    """The same events; what is wrong with a step is said after it, and kept."""
    watch = Watch(asked_of(run))
    for phase, step in events:
        yield phase, step
        for concern in watch.new(step) if step else ():
            console.print(_shown(concern))
            with contextlib.suppress(OSError):  # a full disk is no reason to leave the run
                status.warn(run.folder, [told.as_dict() for told in watch.told])


def _shown(concern: Concern) -> Text:
    warning = ("warning", "yellow")
    return Text.assemble(warning, f"  step {concern.step}: {concern.message}\n  try: {concern.try_}")


def _events(trainer: "subprocess.Popen[bytes]", run: Handoff, start: StartUp) -> Events:
    """Reads train.log and metrics.jsonl until the trainer has ended."""
    begun = phase_begun = time.monotonic()
    log, steps = _Lines(run.folder / "train.log"), _Lines(run.folder / "metrics.jsonl")
    ended = False
    while not ended:
        ended = trainer.poll() is not None  # one more look after the end
        for line in log.new():
            for name in start.ended_by(line):
                now = time.monotonic()
                yield f"  {name:<12} {now - phase_begun:6.1f} s   (at {now - begun:.0f} s)", None
                phase_begun = now
        for line in steps.new():
            if step := metrics.parse(line):
                yield None, step
        if not ended:
            yield None, None
            time.sleep(POLL_SECONDS)


class _Lines:
    """Whole new lines of a file that grows and may not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: TextIO | None = None
        self.rest = ""

    def new(self) -> list[str]:
        if self.file is None:
            if not self.path.exists():
                return []
            self.file = self.path.open(errors="replace")
        *lines, self.rest = (self.rest + self.file.read()).split("\n")
        return lines


def teacher_servers(distillation: Mapping[str, Any]) -> int:
    """Servers that start before the student's: one a replica of each teacher that runs."""
    pool = distillation["nnodes"] * distillation["n_gpus_per_node"]
    teachers = distillation["teacher_models"]
    if len(teachers) > 1:
        return sum(
            int(teacher.get("num_replicas") or 0) for name, teacher in teachers.items() if name != "teacher_model"
        )
    inference = teachers["teacher_model"]["inference"]
    return max(1, int(pool) // (int(inference["tensor_model_parallel_size"]) * int(inference["data_parallel_size"])))

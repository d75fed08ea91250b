"""A sweep from its overrides to its exit code: plan, show, record, start what is left."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress

from opd_conf import checks, status
from opd_conf.compose import Composed
from opd_conf.errors import UserError
from opd_conf.handoff import Handoff
from opd_conf.sweep.composer import Composer
from opd_conf.sweep.plan import Cell, cells_of, planned
from opd_conf.sweep.queue import Job, job
from opd_conf.sweep.table import show

EXIT_MISTAKE = 2
RECORD = "sweep.json"
ACTIONS = ("train", "check", "dry_run")


@runtime_checkable
class RecordedLauncher(Protocol):
    """A launcher that starts recorded cells: what runs is what was checked."""

    def start(self, cells: Sequence[Job]) -> int:
        """Starts cells; an exit code, 0 when all is well."""


Record: TypeAlias = Callable[[Composed, Sequence[checks.Finding]], Handoff]
"""Writes the folder of a composed run: app.record_cell."""


def sweep(arguments: Sequence[str], loader: ConfigLoader, master: DictConfig, launcher: Launcher, write: Record) -> int:
    """Plans and runs the sweep of these overrides; its exit code: 2 when nothing can run, else the launcher's.

    Raises UserError for settings of a sweep that are wrong, before anything is composed.
    """
    settings = master.sweep
    if master.action not in ACTIONS:
        raise UserError(f"A sweep cannot have action={master.action}: {', '.join(ACTIONS)}.\n  type: action=dry_run")
    if settings.on_invalid not in ("drop", "stop"):
        raise UserError(
            f"sweep.on_invalid is {settings.on_invalid}; it can be drop or stop.\n  type: sweep.on_invalid=drop"
        )
    console = Console(file=sys.stderr, highlight=False, soft_wrap=not sys.stderr.isatty())
    folder = Path(str(master.hydra.sweep.dir)).expanduser().absolute()
    only_planned = settings.dry_run or master.action == "check"
    if not only_planned:
        _require_new(folder, settings.resume)
    composer = Composer(loader, master)
    cells = _with_progress(planned(_cells(arguments, loader), composer), console)
    finished = _finished(folder, cells) if settings.resume else frozenset()
    show(cells, finished, console)
    to_run = [cell for cell in cells if cell.runs and cell.name not in finished]
    refused = [cell for cell in cells if not cell.valid]
    if (refused and settings.on_invalid == "stop") or (not to_run and not finished):
        return EXIT_MISTAKE
    if only_planned:
        return EXIT_MISTAKE if refused and master.action == "check" else 0
    _write_plan(folder, cells, finished, arguments)
    console.print(f"sweep folder  {folder}")
    if not isinstance(launcher, RecordedLauncher):
        return _through(launcher, to_run)
    jobs = [_recorded(cell, composer, folder, write) for cell in to_run]
    return 0 if master.action == "dry_run" else launcher.start(jobs)


def _through(launcher: Launcher, cells: Sequence[Cell]) -> int:
    """Hands cells to a launcher of Hydra's kind, which composes them again where they run; the worst exit code."""
    overrides = [(*cell.overrides, f'hydra.sweep.subdir="{cell.name}"') for cell in cells]
    returns = launcher.launch(overrides, initial_job_idx=0)
    return max((int(done.return_value or 0) for done in returns), default=0)


def _cells(arguments: Sequence[str], loader: ConfigLoader) -> list[Cell]:
    """All combinations, in the order of Hydra's own sweeper. Raises UserError for what cannot be counted through."""
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(list(arguments))
    for override in overrides:
        if override.is_interval_sweep():
            raise UserError(
                f"{override.input_line} has no end of values: a sweep runs all of them.\n"
                f"  type: {override.get_key_element()}=choice(VALUE,VALUE) or range(START,STOP,STEP)"
            )
    [combinations] = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    return cells_of(combinations)


def _with_progress(cells: Iterable[Cell], console: Console) -> list[Cell]:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        return list(progress.track(cells, description="planning"))


def _require_new(folder: Path, resume: bool) -> None:
    taken = folder.is_dir() and any(folder.iterdir())
    if taken and not resume:
        raise UserError(
            f"{folder} is taken, and a sweep never writes over another.\n"
            f"  type: sweep.resume=true   (runs what has not finished there), or another hydra.sweep.dir=FOLDER"
        )
    if resume and not (folder / RECORD).exists():
        raise UserError(f"sweep.resume=true, but {folder} holds no sweep.\n  type: hydra.sweep.dir=FOLDER")


def _finished(folder: Path, cells: Iterable[Cell]) -> frozenset[str]:
    return frozenset(cell.name for cell in cells if status.read(folder / cell.name).get("state") == "finished")


def _write_plan(folder: Path, cells: Sequence[Cell], finished: Iterable[str], arguments: Sequence[str]) -> None:
    """sweep.json, the newest plan; the one before is kept as sweep.N.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RECORD
    if path.exists():
        path.rename(folder / f"sweep.{len(list(folder.glob('sweep.*json')))}.json")
    plan: dict[str, Any] = {
        "arguments": list(arguments),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cells": [_plain(cell, cell.name in finished) for cell in cells],
    }
    path.write_text(json.dumps(plan, indent=2, ensure_ascii=False) + "\n")


def _plain(cell: Cell, finished: bool) -> dict[str, Any]:
    plan = "refused" if not cell.valid else "same" if cell.same is not None else "finished" if finished else "run"
    return {
        "number": cell.number,
        "name": cell.name,
        "varied": cell.varied,
        "overrides": list(cell.overrides),
        "plan": plan,
        **({"same_as": cell.same, "why": cell.why} if cell.same is not None else {}),
        **({"problem": cell.problem} if cell.problem else {}),
        "findings": [checks.as_dict(finding) for finding in cell.findings],
    }


def _recorded(cell: Cell, composer: Composer, folder: Path, write: Record) -> Job:
    """A cell's folder, recorded; one that was begun goes on from its last checkpoint."""
    composed = composer.compose(cell.overrides)
    composed.config.run_dir = str(folder / cell.name)
    composed.config.launch.resume = bool(status.read(folder / cell.name))
    return job(cell.name, write(composed, cell.findings), str(composed.config.platform.name))

"""Run folders as plain data: what was chosen, how it went, what it came to. Reads whatever is there already."""

import json
import os
import platform
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from opd_conf import metrics
from opd_conf.errors import UserError
from opd_conf.metrics import Step

RECORD, PLAN = "run.json", "sweep.json"
NOT_BELOW = ("attempts", "checkpoints")


@dataclass(frozen=True)
class Run:
    """One run folder, or a cell of a sweep that has none.

    `facts` is run.json (of a cell without a folder: its overrides), `state` status.json, `planned` the cell's entry in
    sweep.json. The larger files are read when they are asked for.
    """

    folder: Path
    name: str
    facts: Mapping[str, Any]
    state: Mapping[str, Any]
    steps: tuple[Step, ...] = ()
    planned: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """verl's configuration by dotted key; empty when it cannot be read."""
        try:
            content = yaml.load((self.folder / "verl.yaml").read_text(), Loader=yaml.CSafeLoader)
        except (OSError, yaml.YAMLError):
            return {}
        return leaves(content) if isinstance(content, dict) else {}

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The platform's environment block."""
        return _json(self.folder / "env.json")

    @property
    def overrides(self) -> list[str]:
        """What was typed."""
        return [str(override) for override in self.facts.get("overrides") or ()]

    @property
    def cell(self) -> int | None:
        """Its number in the sweep's plan."""
        return self.planned.get("number")


def find(places: Iterable[Path]) -> list[Run]:
    """All runs in these folders and below, and all cells of sweeps there; cells in the order of their plan.

    Raises UserError for a place that is no folder or holds no run.
    """
    found: dict[Path, Mapping[str, Any]] = {}
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place} is no folder.")
        here = list(_below(place.resolve()))
        if not here:
            raise UserError(f"No run in {place}: nothing there has a {RECORD} or a {PLAN}.")
        for folder, planned in here:
            found[folder] = found.get(folder) or planned
    names = _names(list(found))
    return [read(folder, names[folder], planned) for folder, planned in found.items()]


def read(folder: Path, name: str = "", planned: Mapping[str, Any] | None = None) -> Run:
    """One run, as far as its files are there and whole."""
    return Run(
        folder=folder,
        name=name or folder.name,
        facts=_json(folder / RECORD) or {"overrides": (planned or {}).get("overrides", ())},
        state=_json(folder / "status.json"),
        steps=tuple(_steps(folder)),
        planned=planned or {},
    )


def standing(run: Run) -> str:
    """How a run stands, in words, with what ended it: `failed (out_of_memory)`, `interrupted (SIGTERM)`.

    `lost`: its status says running, but it ran on this machine and its process is gone.
    """
    state = run.state.get("state")
    if state is None:
        return _fate(run.planned) if run.planned else "no status"
    if state == "running":
        return "lost" if _gone(run) else "running" if run.steps else "starting"
    why = _reason(run.state) if state != "finished" else None
    return f"{state} ({why})" if why else str(state)


def _fate(planned: Mapping[str, Any]) -> str:
    """What became of a cell without a folder."""
    if planned.get("plan") == "refused":
        errors = (finding for finding in planned.get("findings", ()) if finding.get("severity") == "error")
        ids = dict.fromkeys(str(finding.get("id")) for finding in errors)
        return f"refused: {', '.join(ids) or 'does not compose'}"
    if planned.get("plan") == "same":
        return f"as cell {planned.get('same_as')}: {planned.get('why')}"
    return "waiting"


def _reason(state: Mapping[str, Any]) -> str | None:
    """The known cause, else the signal, else the exit code."""
    cause = state.get("cause")
    if isinstance(cause, Mapping) and cause.get("id"):
        return str(cause["id"])
    code = state.get("trainer_exit_code")
    if state.get("signal"):
        return str(state["signal"])
    if isinstance(code, int) and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}" if code else None


def _gone(run: Run) -> bool:
    """Whether its guard, which lives as long as it does, is no process of this machine any more."""
    pid = run.state.get("pid")
    if pid is None or run.facts.get("host") != platform.node():
        return False
    try:
        return b"opd_conf" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return Path("/proc/self").exists()


def _below(place: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Run folders and cells; what is inside a run folder belongs to it."""
    cells: set[Path] = set()
    for at, names, files in os.walk(place):
        folder = Path(at)
        if RECORD in files:
            names.clear()
            if folder not in cells:
                yield folder, {}
            continue
        names[:] = sorted(name for name in names if name not in NOT_BELOW)
        for cell in _cells(folder) if PLAN in files else ():
            cells.add(folder / cell["name"])
            yield folder / cell["name"], cell


def _cells(folder: Path) -> list[dict[str, Any]]:
    cells = _json(folder / PLAN).get("cells", ())
    return [{"number": number, **cell} for number, cell in enumerate(cells)]


def _names(folders: list[Path]) -> dict[Path, str]:
    """The shortest ends of paths that tell the folders apart."""
    for length in range(1, 1 + max(len(folder.parts) for folder in folders)):
        names = {folder: "/".join(folder.parts[-length:]) for folder in folders}
        if len(set(names.values())) == len(folders):
            return names
    return {folder: str(folder) for folder in folders}


def leaves(content: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Plain values by dotted key; lists and empty mappings count as values."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            found |= leaves(value, f"{at}{name}.")
        else:
            found[f"{at}{name}"] = value
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _steps(folder: Path) -> list[Step]:
    """Steps of all attempts, each number once: of one that was repeated after an interruption, the last."""
    files = sorted(folder.glob("attempts/*/metrics.jsonl"), key=lambda path: _number(path.parent.name))
    found: dict[int, Step] = {}
    for path in [*files, folder / "metrics.jsonl"]:
        steps = metrics.read(path)
        if steps:
            found = {number: step for number, step in found.items() if number < steps[0].number}
        found |= {step.number: step for step in steps}
    return [found[number] for number in sorted(found)]


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"\d+", text) else 0

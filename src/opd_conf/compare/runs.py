"""Run folders as plain data: what was chosen, how it went, what it came to. Reads whatever is there already."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from opd_conf import metrics, status
from opd_conf.errors import UserError
from opd_conf.metrics import Step

RECORD, PLAN = "run.json", "sweep.json"


@dataclass(frozen=True)
class Run:
    """One run folder. `settings`: verl's configuration by dotted key; `facts`: run.json; `state`: status.json."""

    folder: Path
    name: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    facts: Mapping[str, Any]
    state: Mapping[str, Any]
    steps: tuple[Step, ...]


def find(places: Iterable[Path]) -> list[Run]:
    """All runs in these folders and below them, in the order of their paths. Raises UserError when there are none."""
    folders: list[Path] = []
    for place in places:
        if not place.is_dir():
            raise UserError(f"{place} is no folder.")
        found = sorted(path.parent for path in place.rglob(RECORD) if "attempts" not in path.relative_to(place).parts)
        if not found:
            raise UserError(f"No run in {place}: nothing there has a {RECORD}.")
        folders += found
    folders = list(dict.fromkeys(folder.resolve() for folder in folders))
    names = _names(folders)
    return [read(folder, names[folder]) for folder in folders]


def read(folder: Path, name: str = "") -> Run:
    """One run, as far as its files are there and whole."""
    return Run(
        folder=folder,
        name=name or folder.name,
        settings=_settings(folder / "verl.yaml"),
        environment=_json(folder / "env.json"),
        facts=_json(folder / RECORD),
        state=status.read(folder),
        steps=tuple(_steps(folder)),
    )


def _names(folders: list[Path]) -> dict[Path, str]:
    """The shortest ends of paths that tell the folders apart."""
    for length in range(1, 1 + max(len(folder.parts) for folder in folders)):
        names = {folder: "/".join(folder.parts[-length:]) for folder in folders}
        if len(set(names.values())) == len(folders):
            return names
    return {folder: str(folder) for folder in folders}


def _settings(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    except (OSError, yaml.YAMLError):
        return {}
    return leaves(content) if isinstance(content, dict) else {}


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

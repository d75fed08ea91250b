"""status.json: the state of a run, always whole on disk.

Two processes have something to say: the guard knows the state, who follows the run sees what is wrong with it. Each
file has one writer at a time, so nothing is lost without a lock: warnings.json is the follower's, status.json the
guard's as long as it lives and the follower's after that; whoever writes status.json takes in what warnings.json holds.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

STATES = ("created", "running", "finished", "failed", "interrupted")


def write(folder: Path, state: str, **details: Any) -> None:
    """Replaces the status in one step (a reader sees the old one or the new one). Times are Unix seconds."""
    assert state in STATES
    found = warnings(folder)
    content = {"state": state, "time": round(time.time(), 3), **details, **({"warnings": found} if found else {})}
    _replace(folder / "status.json", content)


def read(folder: Path) -> dict[str, Any]:
    """The last status of a run folder; `{}` when there is none."""
    content: dict[str, Any] = _content(folder / "status.json", {})
    return content


def warn(folder: Path, found: list[dict[str, Any]]) -> None:
    """Keeps all warnings so far for the next status."""
    _replace(folder / "warnings.json", found)


def warnings(folder: Path) -> list[dict[str, Any]]:
    """What was kept by `warn`."""
    found: list[dict[str, Any]] = _content(folder / "warnings.json", [])
    return found


def take_in_warnings(folder: Path) -> None:
    """Writes the last status again when there are new warnings: for the process whose turn it is to write it."""
    last = read(folder)
    if last and last.get("warnings", []) != warnings(folder):
        write(folder, **last)


def _replace(path: Path, content: object) -> None:
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.json")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(temporary, path)


def _content(path: Path, default: Any) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return default

"""status.json: the state of a run, always whole on disk."""

import json
import os
import time
from pathlib import Path
from typing import Any

STATES = ("created", "running", "finished", "failed", "interrupted")


def write(folder: Path, state: str, **details: Any) -> None:
    """Replaces the status in one step (a reader sees the old one or the new one). Times are Unix seconds."""
    assert state in STATES
    temporary = folder / f".status.{os.getpid()}.json"
    temporary.write_text(json.dumps({"state": state, "time": round(time.time(), 3), **details}, indent=2) + "\n")
    os.replace(temporary, folder / "status.json")


def read(folder: Path) -> dict[str, Any]:
    """The last status of a run folder; `{}` when there is none."""
    try:
        content: dict[str, Any] = json.loads((folder / "status.json").read_text())
    except FileNotFoundError:
        return {}
    return content

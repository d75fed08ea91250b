"""Starts the trainer in a complete environment, under a guard that leaves nothing behind."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from opd_conf.handoff import Handoff

# A Unix socket's path holds 107 characters; Ray's and vLLM's need about 75 below the temporary folder.
LONGEST_TEMPORARY = 30


def launch(run: Handoff) -> "subprocess.Popen[bytes]":
    """The guard's process, the trainer below it; what they print goes to train.log."""
    temporary = Path(tempfile.mkdtemp(prefix="opd_", dir=_temporary_parent()))
    with (run.folder / "train.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "opd_conf.guard", str(run.folder), str(temporary), *run.command],
            env=_environment(run, temporary),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone, and we pass it on
        )


def _environment(run: Handoff, temporary: Path) -> dict[str, str]:
    """The trainer's whole environment: the shell's (secrets included), the platform's block, the run's own files."""
    environment = {**os.environ, **run.environment, "PYTHONUNBUFFERED": "1", "HYDRA_FULL_ERROR": "1"}
    for name in run.removed:
        environment.pop(name, None)
    if (
        run.verl["ray_kwargs"]["ray_init"].get("address") == "local"
    ):  # else Ray looks for the cluster in its usual place
        environment |= {"TMPDIR": str(temporary), "RAY_TMPDIR": str(temporary)}
    return environment


def _temporary_parent() -> str:
    for candidate in (os.environ.get("RAY_TMPDIR"), os.environ.get("TMPDIR"), "/tmp"):
        if candidate and len(candidate) <= LONGEST_TEMPORARY and os.access(candidate, os.W_OK):
            return candidate
    return tempfile.gettempdir()

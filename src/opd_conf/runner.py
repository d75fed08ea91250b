"""Which Python runs the trainer: this one, or `uv run` of a verl checkout that is made for it."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from opd_conf.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# verl 0.9.1's own scripts start its checkout this way on NVIDIA GPUs, driver and Ray workers alike.
_UV = ("run", "--frozen", "--all-packages")


@dataclass(frozen=True)
class Runner:
    """`python`: the command that stands for Python; `py_executable`: the same for Ray's workers (None: their own)."""

    python: tuple[str, ...]
    py_executable: str | None
    environment: dict[str, str]
    reason: str


def choose(config: DictConfig) -> Runner:
    """The runner for a checked `launch.runner`. Raises UserError when uv is asked for and cannot be had."""
    wanted = str(config.launch.runner)
    obstacle = "launch.runner=python" if wanted == "python" else _obstacle(config)
    if obstacle is None:
        return _uv(config)
    if wanted == "uv":
        raise UserError(f"launch.runner=uv cannot be had: {obstacle}.")
    return Runner((sys.executable,), None, {}, f"this Python: {obstacle}")


def _obstacle(config: DictConfig) -> str | None:
    """Why not uv, or None when every condition for it holds."""
    if config.platform.name != "gpu":
        return f"platform={config.platform.name}"
    if not config.launch.verl_root:
        return "no verl checkout (launch.verl_root)"
    if os.environ.get("VERL_USE_UV") == "0":
        return "VERL_USE_UV=0"
    if shutil.which("uv") is None:
        return "no uv on PATH"
    lock = Path(os.path.expanduser(config.launch.verl_root)) / "uv.lock"
    if not lock.is_file():
        return f"no {lock}"
    missing = {_backend(config), "fsdp"} - _extras(lock)
    return f"{lock} lacks the extra{'s' if len(missing) > 1 else ''} {', '.join(sorted(missing))}" if missing else None


def _backend(config: DictConfig) -> str:
    return str(config.actor_rollout_ref.rollout.name)


def _extras(lock: Path) -> set[str]:
    packages = tomllib.loads(lock.read_text()).get("package", [])
    return {
        extra
        for package in packages
        if package.get("name") == "verl"
        for extra in package.get("optional-dependencies", {})
    }


def _uv(config: DictConfig) -> Runner:
    root = str(Path(os.path.expanduser(config.launch.verl_root)).resolve())
    command = ("uv", *_UV, "--project", root, "--extra", _backend(config), "--extra", "fsdp")
    return Runner(
        python=(*command, "python"),
        py_executable=" ".join(command),
        # Ray starts workers with `python -B`: without bytecode from the installation imports take three times as long.
        environment={"UV_COMPILE_BYTECODE": "1"},
        reason=f"uv: {root}/uv.lock has the extras {_backend(config)} and fsdp",
    )

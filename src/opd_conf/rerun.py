"""One run again: `python -m opd_conf.rerun FOLDER [--continue] [overrides]`.

Without overrides what is run is what was recorded, to the letter, checked again. With overrides the run is composed
anew from its recorded ones and these; where today's configuration files would make another run of it, that is said.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from rich.console import Console

from opd_conf import app, compose, verl_tree
from opd_conf.compare.runs import leaves
from opd_conf.compose import Composed
from opd_conf.errors import UserError

USAGE = "python -m opd_conf.rerun FOLDER [--continue] [key=value …]"
CONTINUE = "--continue"


def main(arguments: Sequence[str]) -> int:
    """The exit code of the run; 2 for a mistake."""
    again = [argument for argument in arguments if argument != CONTINUE]
    try:
        if not again or {"-h", "--help"} & set(again):
            raise UserError(f"usage: {USAGE}")
        folder, overrides = Path(again[0]).absolute(), again[1:]
        going_on = CONTINUE in arguments
        where = [f"run_dir={folder}", "launch.resume=true"] if going_on else []
        if overrides:
            _say_what_changed(folder)
            return app.command([*_typed(folder), *overrides, *where])
        return app.run(
            recorded(folder, folder if going_on else _new(folder), going_on), app.Origin((), _reason(folder))
        )
    except UserError as error:
        print(error, file=sys.stderr)
        return app.EXIT_MISTAKE


def recorded(folder: Path, to: Path, resume: bool) -> Composed:
    """The run that a folder records, to be run in `to`. Raises UserError where the record is not whole."""
    facts = _facts(folder)
    try:
        was = facts["command"][facts["command"].index("--config-path") + 1]
        text = (folder / "verl.yaml").read_text().replace(was, str(to))
        verl: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
        config = OmegaConf.create({**verl, **facts["own"]})
    except (OSError, ValueError, KeyError, yaml.YAMLError) as error:
        raise UserError(f"{folder} holds no complete record of a run ({error}).") from None
    own = config.ray_kwargs.ray_init.runtime_env.env_vars
    for name in ("VERL_FILE_LOGGER_PATH", "TENSORBOARD_DIR"):
        own.pop(name, None)  # the new hand-off names them
    config.run_dir, config.action, config.launch.resume = str(to), "train", resume
    return Composed(config, (*facts["overrides"], f"run_dir={to}"), facts["choices"])


def _typed(folder: Path) -> list[str]:
    """The overrides that a run was started with, without its folder and without secrets, which come from the shell."""
    overrides = [str(override) for override in _facts(folder)["overrides"]]
    left_out = ("run_dir=", "launch.resume=", "action=")
    return [text for text in overrides if not text.startswith(left_out) and not text.endswith("=***")]


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError):
        raise UserError(f"{folder} is no run folder: it has no readable run.json.\n  type: {USAGE}") from None
    return facts


def _reason(folder: Path) -> str:
    return str(_facts(folder).get("platform_reason", "recorded"))


def _new(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}_again_{time.strftime('%Y-%m-%d_%H-%M-%S')}")


def _say_what_changed(folder: Path) -> None:
    """Which keys today's files would give another value without the new overrides."""
    composed = compose.compose(_typed(folder))
    today = OmegaConf.to_container(composed.config, resolve=True, throw_on_missing=False)
    assert isinstance(today, dict)
    then = leaves(yaml.load((folder / "verl.yaml").read_text(), Loader=yaml.CSafeLoader))
    now = leaves({str(key): value for key, value in today.items() if key in verl_tree.root_keys()})
    of_the_run = ("trainer.default_local_dir", "ray_kwargs.ray_init.runtime_env")
    changed = [key for key in now if now[key] != then.get(key) and not key.startswith(of_the_run)]
    for key in changed[:10]:
        Console(stderr=True, highlight=False).print(f"since then  {key}: {then.get(key)} → {now[key]}", markup=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

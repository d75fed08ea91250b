"""The way of a run: compose, check, record, launch, follow."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hydra import main as hydra_main
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from opd_conf import checks, mistakes, platforms, secret, verl_tree
from opd_conf.compose import CONFIG_NAME, Composed, compose, composed, conf_folder, with_platform
from opd_conf.errors import UserError
from opd_conf.reader import texts
from opd_conf.sweep import arguments as sweep_arguments
from opd_conf.usage import usage

if TYPE_CHECKING:
    from opd_conf.handoff import Handoff

EXIT_MISTAKE = 2


@dataclass(frozen=True)
class Origin:
    """What happened to the arguments before composition: secrets taken out (masked), and why a platform was added."""

    masked: tuple[str, ...]
    platform_reason: str | None


def main() -> None:
    """The command `opd-conf` and `python -m opd_conf`. Exit code: the trainer's; 2 for mistakes and failed checks."""
    sys.exit(command(sys.argv[1:]))


def command(arguments: Sequence[str]) -> int:
    """One command line → its exit code. A user's mistake becomes a message; only faults of ours show a traceback."""
    if {"-h", "--help"} & set(arguments):
        print(usage(conf_folder()))
        return 0
    try:
        arguments, masked = secret.take(arguments)
        _use_verl_root(arguments)
        arguments, platform_reason = with_platform(arguments)
        origin = Origin(tuple(masked), platform_reason)
        if any(argument.startswith("-") for argument in arguments):
            return _through_hydra(arguments, origin)
        return run(compose(arguments), origin)
    except Exception as error:
        message = str(error) if isinstance(error, UserError) else mistakes.explain(error, arguments)
        if message is None:
            raise
        print(message, file=sys.stderr)
        return EXIT_MISTAKE


def run(composed: Composed, origin: Origin) -> int:
    """One composed run, as far as its action says; the exit code."""
    config = composed.config
    _require_tested_version(config)
    found = checks.findings(config)
    checks.report(found, config)
    if checks.has_errors(found):
        return EXIT_MISTAKE
    action = config.action
    if action == "check":
        checks.show_memory(config)
        return 0
    from opd_conf.follow import follow
    from opd_conf.handoff import handoff
    from opd_conf.launch import launch
    from opd_conf.record import make_folder, record
    from opd_conf.script import render

    if action == "script":
        print(render(handoff(config, Path(str(config.run_dir)).absolute()), Path.cwd()), end="")
        return 0
    if action == "train" and config.ray_kwargs.ray_init.get("address") == "local":
        platforms.require_device(config.platform.name)
    by_user = any(override.startswith("run_dir=") for override in composed.overrides)
    handed = handoff(config, make_folder(config, chosen_by_user=by_user))
    record(handed, _facts(composed, found, origin))
    if action == "dry_run":
        print(f"bash {shlex.quote(str(handed.folder / 'command.sh'))}")
        return 0
    return follow(launch(handed), handed)


def _require_tested_version(config: DictConfig) -> None:
    """Raises UserError for a verl that the checks were not made for, if nobody wanted it."""
    launch = config.get("launch")
    if not (isinstance(launch, DictConfig) and launch.get("any_verl_version") is True):
        verl_tree.require_tested_version()


def _facts(composed: Composed, found: Sequence[checks.Finding], origin: Origin) -> dict[str, object]:
    """What run.json says about the choice of this run."""
    return {
        "overrides": [*composed.overrides, *origin.masked],
        "choices": composed.choices,
        "platform_reason": origin.platform_reason or "chosen",
        "checks_ignored": list(texts(composed.config.checks.ignore)),
        "findings": [checks.as_dict(finding) for finding in found],
    }


def _use_verl_root(arguments: Sequence[str]) -> None:
    """`launch.verl_root=…` decides which tree is composed, so it is needed before composition."""
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "launch.verl_root" and value not in ("", "null"):
            os.environ[verl_tree.ROOT_VARIABLE] = value.strip("'\"")


@dataclass(frozen=True)
class Task:
    """What Hydra is given to run: a composed run when it calls us, and for our sweeper cells and how to record one."""

    origin: Origin
    cells: tuple[str, ...]
    codes: list[int]

    def __call__(self, config: DictConfig) -> int:
        hydra = HydraConfig.get()
        if hydra.mode == RunMode.MULTIRUN:
            print(f"[{hydra.job.num}] {hydra.job.override_dirname}", file=sys.stderr)
            config.run_dir = hydra.runtime.output_dir
        self.codes.append(run(composed(config), self.origin))
        return self.codes[-1]

    def record(self, composed: Composed, found: Sequence[checks.Finding]) -> "Handoff":
        """Writes the folder of one cell of a sweep, which names its `run_dir`."""
        from opd_conf.handoff import handoff
        from opd_conf.record import make_folder, record

        handed = handoff(composed.config, make_folder(composed.config, chosen_by_user=True))
        record(handed, _facts(composed, found, self.origin))
        return handed


def _through_hydra(arguments: Sequence[str], origin: Origin) -> int:
    """Commands with flags (-m, --cfg, --help …) go through Hydra's own entry; the worst exit code of its runs."""
    split = sweep_arguments.split(arguments)
    ours = sweep_arguments.is_sweep(arguments)
    task = Task(origin, split.cells, [0])
    program, full_error = sys.argv[0], os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [program, *(split.hydra if ours else arguments)]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing a traceback
    try:
        _require_flags_of_hydra(sys.argv[1:])
        hydra_main(config_path=str(conf_folder()), config_name=CONFIG_NAME, version_base="1.3")(task)()
    except SystemExit as end:
        task.codes.append(end.code if isinstance(end.code, int) else 0)
    finally:
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
    return max(task.codes)


def _require_flags_of_hydra(arguments: Sequence[str]) -> None:
    """Raises UserError for a flag that does not exist or lacks its value; argparse would end the process."""

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message[0].upper()}{message[1:]}.\n  type: python -m opd_conf --hydra-help   (all flags)")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    parser.parse_args(list(arguments))

"""What verl is given: its resolved configuration, its environment and its command."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from opd_conf import platforms, runner, secret, verl_tree
from opd_conf.runner import Runner


@dataclass(frozen=True)
class Handoff:
    """`verl`: plain data of verl.yaml. `environment`: for the trainer's process and, through verl.yaml, Ray's workers.

    `removed`: names that the trainer must not see although the shell may have them (null in the platform's block).
    """

    folder: Path
    verl: dict[str, Any]
    environment: dict[str, str]
    removed: tuple[str, ...]
    command: tuple[str, ...]
    runner: Runner
    try_next: tuple[str, ...]


def handoff(config: DictConfig, folder: Path) -> Handoff:
    """Resolves a checked configuration for the run folder (absolute)."""
    chosen = runner.choose(config)
    environment = {
        **{name: value for name, value in platforms.environment(config).items() if not secret.is_secret(name, value)},
        **chosen.environment,
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
    }
    return Handoff(
        folder=folder,
        verl=_verl(config, folder, environment, chosen),
        environment=environment,
        removed=tuple(str(name) for name, value in config.platform.env.items() if value is None),
        command=_command(chosen, folder),
        runner=chosen,
        try_next=tuple(config.launch.try_next),
    )


def _verl(config: DictConfig, folder: Path, environment: dict[str, str], chosen: Runner) -> dict[str, Any]:
    """verl's part of the configuration, resolved; our own root keys are left out."""
    with open_dict(config):
        config.run_dir = str(folder)
        runtime_env = config.ray_kwargs.ray_init.runtime_env
        own = {str(name): platforms.as_text(value) for name, value in (runtime_env.get("env_vars") or {}).items()}
        runtime_env.env_vars = {**environment, **own}  # strings only: Ray refuses anything else
        if chosen.py_executable:
            runtime_env.py_executable = chosen.py_executable
    known = verl_tree.root_keys()
    resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items() if key in known}


def _command(chosen: Runner, folder: Path) -> tuple[str, ...]:
    """verl's entry, with Hydra kept from making folders and log files of its own."""
    hydra = ("hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=stdout")
    return (
        *chosen.python,
        "-m",
        "verl.trainer.main_ppo",
        "--config-path",
        str(folder),
        "--config-name",
        "verl",
        *hydra,
    )

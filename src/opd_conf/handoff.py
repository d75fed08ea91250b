"""What verl is given: its resolved configuration, its environment and its command."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from opd_conf import platforms, runner, secret, verl_tree
from opd_conf.reader import texts
from opd_conf.runner import Runner


@dataclass(frozen=True)
class Handoff:
    """`verl`: plain data of verl.yaml; `own`: our root keys, by which the run can be checked and started again.
    `environment`: for the trainer's process and, through verl.yaml, Ray's workers.

    `removed`: names that the trainer must not see although the shell may have them (null in the platform's block).
    """

    folder: Path
    verl: dict[str, Any]
    own: dict[str, Any]
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
    verl, own = _resolved(config, folder, environment, chosen)
    return Handoff(
        folder=folder,
        verl=verl,
        own=own,
        environment=environment,
        removed=tuple(str(name) for name, value in config.platform.env.items() if value is None),
        command=_command(chosen, folder),
        runner=chosen,
        try_next=texts(config.launch.try_next),
    )


def _resolved(
    config: DictConfig, folder: Path, environment: dict[str, str], chosen: Runner
) -> tuple[dict[str, Any], dict[str, Any]]:
    """verl's part of the configuration, and ours without secrets, resolved."""
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
    parts: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key, value in resolved.items():
        parts[key not in known][str(key)] = value
    block = parts[1]["platform"]["env"]
    parts[1]["platform"]["env"] = {
        name: value for name, value in block.items() if not secret.is_secret(name, str(value))
    }
    return parts


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

"""A run as one shell script that needs neither opd_conf nor Hydra's groups."""

import shlex
from pathlib import Path

import yaml

from opd_conf import __version__
from opd_conf.handoff import Handoff

# Files that the trainer writes; each repetition of a run has its own.
_PER_RUN = ("VERL_FILE_LOGGER_PATH", "TENSORBOARD_DIR")


def render(run: Handoff, cwd: Path) -> str:
    """The script makes a folder (its argument, or one beside the run's), puts verl.yaml there, starts the trainer."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in run.environment.items() if name not in _PER_RUN]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# Repeats one distillation with verl; written by opd_conf {__version__}. Secrets come from the shell.",
            "# usage: bash command.sh [NEW_FOLDER]",
            "set -euo pipefail",
            f'RUN=$(realpath -m "${{1:-{run.folder}_again_$(date +%Y-%m-%d_%H-%M-%S)}}")',
            'mkdir -p "$(dirname "$RUN")" && mkdir "$RUN"   # an existing folder is never written to',
            *(f"unset {name}" for name in run.removed),
            *exports,
            'export VERL_FILE_LOGGER_PATH="$RUN/metrics.jsonl" TENSORBOARD_DIR="$RUN/tensorboard"',
            "# verl's complete configuration; @RUN@ stands for the folder",
            'sed "s|@RUN@|$RUN|g" > "$RUN/verl.yaml" <<\'END_OF_VERL_YAML\'',
            verl_yaml(run).replace(str(run.folder), "@RUN@").rstrip("\n"),
            "END_OF_VERL_YAML",
            f"cd {shlex.quote(str(cwd))}",
            "exec " + " ".join('"$RUN"' if word == str(run.folder) else shlex.quote(word) for word in run.command),
            "",
        ]
    )


def verl_yaml(run: Handoff) -> str:
    """The text of verl.yaml (written by libyaml, ten times faster than the pure writer)."""
    return yaml.dump(run.verl, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=120)

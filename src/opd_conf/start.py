"""Starts a recorded run: `python -m opd_conf.start FOLDER` launches and follows what `record` wrote there.

What runs is what was recorded, whatever has become of configuration files since.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from opd_conf import status
from opd_conf.errors import UserError
from opd_conf.handoff import Handoff
from opd_conf.runner import Runner


def load(folder: Path) -> Handoff:
    """The hand-off of a run folder, as it was recorded. Raises UserError where there is none."""
    try:
        facts: dict[str, Any] = json.loads((folder / "run.json").read_text())
        environment: dict[str, str] = json.loads((folder / "env.json").read_text())
        # Written by our own dumper: plain YAML reads back what was written.
        verl: dict[str, Any] = yaml.load((folder / "verl.yaml").read_text(), Loader=yaml.CSafeLoader)
        return Handoff(
            folder=folder,
            verl=verl,
            own=facts["own"],
            environment=environment,
            removed=tuple(facts["removed"]),
            command=tuple(facts["command"]),
            runner=Runner((), None, {}, str(facts["runner"])),
            try_next=(),
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} holds no complete record of a run ({error}).") from None


def main(folder: Path) -> int:
    """Runs what a folder holds to its end; the trainer's exit code, 2 when it cannot be started."""
    from opd_conf.follow import follow
    from opd_conf.launch import launch

    try:
        run = load(folder.absolute())
        state = status.read(run.folder).get("state")
        if state != "created":
            raise UserError(f"{folder} is {state}; only a run that was recorded and never started can be started.")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return follow(launch(run), run)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""Why two runs differ: configuration, environment, versions, code, host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opd_conf.compare.runs import Run

OF_THE_RUN = (
    *("trainer.default_local_dir", "trainer.experiment_name", "VERL_FILE_LOGGER_PATH", "TENSORBOARD_DIR"),
    "served_model_name",
)
"""Names of a run and of its files, which differ between any two, and one that only follows the model's path."""


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same; None where a run lacks it."""

    kind: str
    key: str
    values: tuple[Any, ...]


def differences(runs: Sequence[Run]) -> list[Difference]:
    """Everything that is recorded and differs between runs, by kind; a file that one of them lacks tells nothing."""
    kinds: dict[str, list[Mapping[str, Any]]] = {
        "configuration": [run.settings for run in runs] if all(run.settings for run in runs) else [],
        "environment": [run.environment for run in runs],
        "versions": [{**_block(run.facts, "versions"), "python": run.facts.get("python")} for run in runs],
        "code": [_code(run.facts) for run in runs],
        "host": [{"host": run.facts.get("host")} for run in runs],
    }
    return [difference for kind, maps in kinds.items() for difference in _between(kind, maps)]


def _between(kind: str, maps: Sequence[Mapping[str, Any]]) -> list[Difference]:
    keys = list(dict.fromkeys(key for each in maps for key in each))
    found = []
    for key in keys:
        values = tuple(each.get(key) for each in maps)
        if not key.endswith(OF_THE_RUN) and any(value != values[0] for value in values[1:]):
            found.append(Difference(kind, key, values))
    return found


def _block(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


def _code(facts: Mapping[str, Any]) -> dict[str, Any]:
    git = _block(facts, "git")
    changed = ", ".join(git.get("changed") or ())
    return {"opd_conf": facts.get("opd_conf"), "commit": git.get("commit"), "changed files": changed}

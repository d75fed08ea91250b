"""metrics.jsonl, as verl's `file` logger writes it: one line a step, `{"step": 1, "data": {name: value}}`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOSSES = ("actor/distillation/abs_loss", "actor/distillation/loss", "actor/loss")
SCORE, TOKENS_PER_SECOND, STEP_SECONDS = "critic/score/mean", "perf/throughput", "perf/time_per_step"
TOKENS, WINDOW = "perf/total_num_tokens", 5


@dataclass(frozen=True)
class Step:
    """One training step; `values` by verl's metric name."""

    number: int
    values: dict[str, Any]

    @property
    def loss(self) -> float | None:
        """The distillation loss; the mean absolute value where verl gives it (an estimator's mean can be negative).

        None also for NaN and infinity, which the file logger writes as null.
        """
        value = next((self.values[name] for name in LOSSES if name in self.values), None)
        return None if value is None else float(value)

    @property
    def score(self) -> float | None:
        """Mean reward of the sampled answers; for the mathematics rewards the share of right ones."""
        value = self.values.get(SCORE)
        return None if value is None else float(value)


def parse(line: str) -> Step | None:
    """One line → a training step; None for validation-only and step 0 lines and for a line that is not whole yet."""
    try:
        content = json.loads(line)
    except json.JSONDecodeError:
        return None
    values = content["data"]
    return Step(int(content["step"]), values) if STEP_SECONDS in values else None


def read(path: Path) -> list[Step]:
    """The training steps of a metrics.jsonl; empty when there is none."""
    if not path.is_file():
        return []
    return [step for line in path.read_text().splitlines() if (step := parse(line))]


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the known values; None when there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

"""Two runs step by step: how far apart each metric is, and from which step on."""

from collections.abc import Sequence
from dataclasses import dataclass

from opd_conf.compare.runs import Run
from opd_conf.metrics import Step

TIMES = ("timing_s/", "timing_per_token_ms/", "perf/", "global_seqlen/")
"""Metrics that no two runs share: left out unless asked for."""


@dataclass(frozen=True)
class Distance:
    """One metric over the steps that both runs have. Relative to the larger of the two values; steps count from 1."""

    metric: str
    steps: int
    largest: float
    largest_at: int
    mean: float
    relative: float
    first_beyond: int | None


def align(one: Run, other: Run, tolerance: float, metrics: Sequence[str] = ()) -> list[Distance]:
    """Distances of all metrics that both runs have, largest relative one first.

    A step is beyond the tolerance when |a - b| > tolerance · max(|a|, |b|). With `metrics`, only these.
    """
    mine, theirs = _by_number(one), _by_number(other)
    common = sorted(mine.keys() & theirs.keys())
    names = metrics or sorted({name for number in common for name in mine[number].values if not name.startswith(TIMES)})
    found = [_distance(name, common, mine, theirs, tolerance) for name in names]
    return sorted((distance for distance in found if distance), key=lambda distance: -distance.relative)


def _by_number(run: Run) -> dict[int, Step]:
    return {step.number: step for step in run.steps}


def _distance(
    name: str, numbers: Sequence[int], mine: dict[int, Step], theirs: dict[int, Step], tolerance: float
) -> Distance | None:
    pairs = {
        number: (float(mine[number].values[name]), float(theirs[number].values[name]))
        for number in numbers
        if _is_number(mine[number].values.get(name)) and _is_number(theirs[number].values.get(name))
    }
    if not pairs:
        return None
    gaps = {number: abs(a - b) for number, (a, b) in pairs.items()}
    relative = {number: gap / max(map(abs, pairs[number])) if gap else 0.0 for number, gap in gaps.items()}
    largest = max(gaps, key=lambda number: gaps[number])
    return Distance(
        metric=name,
        steps=len(pairs),
        largest=gaps[largest],
        largest_at=largest,
        mean=sum(gaps.values()) / len(gaps),
        relative=max(relative.values()),
        first_beyond=next((number for number in sorted(relative) if not relative[number] <= tolerance), None),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

"""Two runs step by step: how far apart each metric is, and from which step on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from opd_conf.compare.runs import Run
from opd_conf.errors import UserError

TIMES = ("timing_s/", "timing_per_token_ms/", "perf/", "actor/perf/")
"""Metrics that no two runs share: left out unless asked for."""


@dataclass(frozen=True)
class Tolerance:
    """Two values agree when |a - b| ≤ absolute + relative · max(|a|, |b|)."""

    relative: float = 0.01
    absolute: float = 1e-8

    def holds(self, a: float, b: float) -> bool:
        """Whether they agree; NaN does with NaN alone, infinity with itself."""
        if not (math.isfinite(a) and math.isfinite(b)):
            return a == b or (math.isnan(a) and math.isnan(b))
        return abs(a - b) <= self.absolute + self.relative * max(abs(a), abs(b))


@dataclass(frozen=True)
class Distance:
    """One metric over the steps in which both runs have it; steps count from 1.

    `relative` is the largest, each to the larger of two values. A NaN in one run alone is infinitely far.
    """

    metric: str
    steps: int
    largest: float
    largest_at: int
    mean: float
    relative: float
    first_beyond: int | None


def align(one: Run, other: Run, tolerance: Tolerance, metrics: Sequence[str] = ()) -> list[Distance]:
    """Distances of all metrics that both runs have, those beyond the tolerance first, then by the relative one.

    `metrics` are names or patterns (`actor/*`). Raises UserError when there is nothing to compare.
    """
    mine, theirs = _by_number(one), _by_number(other)
    common = sorted(mine.keys() & theirs.keys())
    if not common:
        raise UserError(
            f"The runs have no step in common: {len(mine)} in {one.folder}, {len(theirs)} in {other.folder}."
        )
    names = sorted({name for number in common for name in mine[number] if name in theirs[number]})
    names = [name for name in names if _wanted(name, metrics)]
    found = [_distance(name, common, mine, theirs, tolerance) for name in names]
    known = [distance for distance in found if distance]
    if not known:
        raise UserError(f"The runs have no metric {' or '.join(metrics)} in common.\n  type: --metric 'actor/*'")
    return sorted(known, key=lambda distance: (distance.first_beyond is None, -distance.relative, distance.metric))


def _wanted(name: str, patterns: Sequence[str]) -> bool:
    if patterns:
        return any(fnmatchcase(name, pattern) for pattern in patterns)
    return not name.startswith(TIMES)


def _by_number(run: Run) -> dict[int, Mapping[str, Any]]:
    return {step.number: step.values for step in run.steps}


def _distance(
    name: str,
    numbers: Sequence[int],
    mine: Mapping[int, Mapping[str, Any]],
    theirs: Mapping[int, Mapping[str, Any]],
    tolerance: Tolerance,
) -> Distance | None:
    both = [number for number in numbers if _is_measured(mine[number], name) and _is_measured(theirs[number], name)]
    pairs = {number: (_value(mine[number][name]), _value(theirs[number][name])) for number in both}
    if not pairs:
        return None
    gaps = {number: _gap(*pair) for number, pair in pairs.items()}
    largest = max(gaps, key=lambda number: gaps[number])
    return Distance(
        metric=name,
        steps=len(pairs),
        largest=gaps[largest],
        largest_at=largest,
        mean=sum(gaps.values()) / len(gaps),
        relative=max(_relative(gaps[number], *pair) for number, pair in pairs.items()),
        first_beyond=next((number for number, pair in pairs.items() if not tolerance.holds(*pair)), None),
    )


def _is_measured(values: Mapping[str, Any], name: str) -> bool:
    return name in values and (values[name] is None or isinstance(values[name], (int, float)))


def _value(found: float | None) -> float:
    """verl writes NaN as null."""
    return math.nan if found is None else float(found)


def _gap(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    gap = abs(a - b)
    return math.inf if math.isnan(gap) else gap


def _relative(gap: float, a: float, b: float) -> float:
    return gap if gap in (0.0, math.inf) else gap / max(abs(a), abs(b))

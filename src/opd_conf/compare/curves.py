"""What is drawn, for the picture and the page alike: which curves, over what, in which colours."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from opd_conf.compare import figures
from opd_conf.compare.figures import FIGURES, Figure, value
from opd_conf.compare.runs import Run
from opd_conf.metrics import STEP_SECONDS, TOKENS, Step, mean

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind people tell apart; without yellow, which does not show on white."""
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "triangle-up", "diamond", "cross")

WIDTHS = (1, 5, 10, 50)
MOST_POINTS = 1_000_000
FEWEST_POINTS = 50
LONG_HOURS = 3

Points: TypeAlias = list[float | None]


@dataclass(frozen=True)
class Style:
    """How a curve looks; no two of the first 140 look alike."""

    colour: str
    dash: str
    marker: str


def style(number: int) -> Style:
    """Colours first, then dashes, then markers."""
    dashes, colour = divmod(number, len(COLOURS))
    markers, dash = divmod(dashes, len(DASHES))
    return Style(COLOURS[colour], DASHES[dash], MARKERS[markers % len(MARKERS)])


def drawn(runs: Sequence[Run]) -> list[Figure]:
    """The usual figures that any run has."""
    return [figure for figure in FIGURES if any(figure.of(step) is not None for run in runs for step in run.steps)]


def others(runs: Sequence[Run]) -> list[Figure]:
    """verl's own metrics that are not the same number in all steps of all runs."""
    seen: dict[str, set[float]] = {}
    for run in runs:
        for step in run.steps:
            for name in step.values:
                values = seen.setdefault(name, set())
                if len(values) < 2 and (found := value(step, name)) is not None:
                    values.add(found)
    return [figures.figure(name) for name in sorted(seen) if len(seen[name]) > 1]


@dataclass(frozen=True)
class Axis:
    """What a curve can be drawn over; `of` counts what a step adds, None means the step's number."""

    name: str
    unit: str
    scale: float
    of: Callable[[Step], float | None] | None


def axes(runs: Sequence[Run]) -> list[Axis]:
    """Step, time and tokens; hours where a run took long."""
    longest = max((sum(value(step, STEP_SECONDS) or 0.0 for step in run.steps) for run in runs), default=0.0)
    unit, seconds = ("h", 3600.0) if longest > LONG_HOURS * 3600 else ("min", 60.0)
    return [
        Axis("step", "", 1.0, None),
        Axis("time", unit, seconds, lambda step: value(step, STEP_SECONDS)),
        Axis("tokens", "", 1.0, lambda step: value(step, TOKENS)),
    ]


def along(axis: Axis, steps: Sequence[Step]) -> list[float]:
    """Where each step stands on an axis."""
    if axis.of is None:
        return [float(step.number) for step in steps]
    return [total / axis.scale for total in accumulate(axis.of(step) or 0.0 for step in steps)]


def stride(runs: Sequence[Run], curves: int) -> int:
    """Steps to a point, so that a page of that many curves a run stays small; 1 for all but large sweeps."""
    points = max(FEWEST_POINTS, MOST_POINTS // max(1, curves * len(runs)))
    return max(1, math.ceil(max((len(run.steps) for run in runs), default=0) / points))


def thinned(values: Sequence[float | None], every: int) -> Points:
    """The mean of every so many values; six digits, which no screen can show more of."""
    if every == 1:
        return [rounded(found) for found in values]
    return [rounded(mean(values[at : at + every])) for at in range(0, len(values), every)]


def ends(places: Sequence[float], every: int) -> Points:
    """Where points of so many steps stand: at the last of them."""
    return [rounded(places[min(at + every, len(places)) - 1]) for at in range(0, len(places), every)]


def rounded(found: float | None) -> float | None:
    """Six digits."""
    return None if found is None else float(f"{found:.6g}")


def width(runs: Sequence[Run]) -> int:
    """Over how many steps long curves are smoothed at first: about a thirtieth of the longest."""
    longest = max((len(run.steps) for run in runs), default=0)
    return max(width for width in WIDTHS if width <= max(1, longest // 30))


def smoothed(values: Sequence[float | None], width: int) -> Points:
    """The mean of each value and those before it; nothing where nothing was measured."""
    return [None if found is None else mean(values[max(0, at - width + 1) : at + 1]) for at, found in enumerate(values)]

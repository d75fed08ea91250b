"""`--plot FOLDER`: curves.png for papers and notes, and compare.html, one page for a browser."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opd_conf.compare import curves, figures, page, table
from opd_conf.compare.runs import Run
from opd_conf.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE, PAGE = "curves.png", "compare.html"
MOST_DRAWN = 21
"""Curves of the picture: the best ones. The page has all of them."""

LINES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
SHAPES = {"circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "cross": "P"}
FEW_POINTS = 40
ABREAST = {3: 40, 2: 64, 1: math.inf}
"""Columns of the legend, by the characters of its longest label."""


def plot(runs: Sequence[Run], columns: table.Columns, by: str, folder: Path) -> list[Path]:
    """Draws the runs, in their order, into two new files of a folder; their paths.

    Raises UserError when the folder holds one of them, when there is no step to draw, or without the extra `plot`.
    """
    paths = [folder / PICTURE, folder / PAGE]
    for path in paths:
        if path.exists():
            raise UserError(f"{path} is there already, and is not written over.\n  type: --plot another_folder")
    if not any(run.steps for run in runs):
        raise UserError("There is nothing to draw yet: no run has finished a step.")
    try:
        html = page.page(runs, columns, by)
        picture = _picture(runs, columns)
    except ModuleNotFoundError as error:
        raise UserError(f"--plot needs {error.name}.\n  type: pip install 'opd_conf[plot]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    paths[0].write_bytes(picture)
    paths[1].write_text(html, encoding="utf-8")
    return paths


def _picture(runs: Sequence[Run], columns: table.Columns) -> bytes:
    """A PNG of one panel a figure, drawn without a display."""
    from io import BytesIO

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    shown = [(number, run) for number, run in enumerate(runs) if run.steps]
    labels = table.labels(runs, columns)
    best = shown[:MOST_DRAWN]
    panels = curves.drawn([run for _, run in best])
    width = curves.width([run for _, run in best])
    handles = [Line2D([], [], label=labels[number], **_look(number)) for number, _ in best]
    abreast = next(count for count, most in ABREAST.items() if max(len(labels[n]) for n, _ in best) <= most)
    down = -(-len(panels) // 2)
    picture = Figure(figsize=(11, 2.6 * down + 0.22 * -(-len(best) // abreast) + 0.5), layout="constrained", dpi=130)
    FigureCanvasAgg(picture)
    grid = list(picture.subplots(down, 2, squeeze=False, sharex=True).flat)
    for axes, figure in zip(grid, panels, strict=False):
        for number, run in best:
            _draw(axes, figure, run, number, width)
        axes.set(xlabel="step", ylabel=figure.axis)
        axes.tick_params(labelbottom=True)
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    said = [f"the first {len(best)} of {len(shown)} runs"] if len(best) < len(shown) else []
    said += [f"each point is the mean of {width} steps"] if width > 1 else []
    title = "; ".join(said) or None
    picture.legend(handles=handles, loc="outside upper left", ncols=abreast, frameon=False, title=title)
    buffer = BytesIO()
    picture.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw(axes: "Axes", figure: figures.Figure, run: Run, number: int, width: int) -> None:
    values = curves.smoothed([figure.of(step) for step in run.steps], width)
    points = [(step.number, found) for step, found in zip(run.steps, values, strict=True) if found is not None]
    marker = {"markersize": 3.5} if len(points) <= FEW_POINTS else {"marker": "None"}
    axes.plot([at for at, _ in points], [found for _, found in points], **{**_look(number), **marker})


def _look(number: int) -> dict[str, Any]:
    style = curves.style(number)
    return {
        "color": style.colour,
        "linestyle": LINES[style.dash],
        "marker": SHAPES[style.marker],
        "markersize": 4,
        "linewidth": 1.5,
    }

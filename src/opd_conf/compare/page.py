"""One page for a browser that holds everything: table, curves, and plotly.js to draw them. It asks no network."""

import json
import os
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from opd_conf.compare import curves, table
from opd_conf.compare.figures import Figure
from opd_conf.compare.runs import Run, standing

SHOWN_AT_FIRST = 12
"""Curves that are drawn before anything is chosen: the first of the order."""


def page(runs: Sequence[Run], columns: table.Columns, by: str) -> str:
    """The page as text, about 5 MB of it plotly.js. Raises ModuleNotFoundError without plotly."""
    from plotly.offline import get_plotlyjs

    template = files("opd_conf.compare").joinpath("page.html").read_text(encoding="utf-8")
    before, between, after = template.split("/*HERE*/")
    return before + _inside_script(get_plotlyjs()) + between + _json(content(runs, columns, by)) + after


def content(runs: Sequence[Run], columns: table.Columns, by: str) -> dict[str, Any]:
    """What the page shows, as plain data."""
    usual = curves.drawn(runs)
    figures = [*usual, *curves.others(runs)]
    axes = curves.axes(runs)
    every = curves.stride(runs, len(figures))
    figured = table.columns_for(runs, by)
    labels = table.labels(runs, columns)
    keys = list(columns)
    return {
        "notes": [*table.notes(runs, by), f"made {time.strftime('%Y-%m-%d %H:%M')}", *_thinning(every)],
        "title": Path(os.path.commonpath([run.folder.parent for run in runs])).name or "runs",
        "widths": curves.WIDTHS,
        "width": curves.width(runs) if every == 1 else 1,
        "numbered": table.of_one_sweep(runs),
        "sorted": by,
        "shownAtFirst": SHOWN_AT_FIRST,
        "keys": [{"name": key, "short": table.short(key, keys)} for key in keys],
        "columns": [{"name": column.name, "unit": column.unit, "largest": column.best is max} for column in figured],
        "axes": [{"name": axis.name, "unit": axis.unit} for axis in axes],
        "figures": [
            {"name": figure.name, "unit": figure.unit, "usual": number < len(usual)}
            for number, figure in enumerate(figures)
        ],
        "runs": [
            {
                "name": str(run.cell) if table.of_one_sweep(runs) else run.name,
                "folder": str(run.folder),
                "label": labels[number],
                "state": standing(run),
                "values": [columns[key][number] for key in keys],
                "columns": [_cell(column, run) for column in figured],
                "style": vars(curves.style(number)),
                "x": [curves.ends(curves.along(axis, run.steps), every) for axis in axes],
                "y": [_curve(figure, run, every) for figure in figures],
            }
            for number, run in enumerate(runs)
        ],
    }


def _curve(figure: Figure, run: Run, every: int) -> curves.Points:
    points = curves.thinned([figure.of(step) for step in run.steps], every)
    return points if any(point is not None for point in points) else []


def _cell(column: table.Column, run: Run) -> list[Any]:
    found = column.of(run)
    return [found, "" if found is None else column.form.format(found)]


def _thinning(every: int) -> list[str]:
    return [f"each point of a curve is the mean of {every} steps"] if every > 1 else []


def _json(found: Any) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _inside_script(code: str) -> str:
    return code.replace("</script", "<\\/script")

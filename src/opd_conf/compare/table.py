"""One row a run: what differs between them, and what each came to."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opd_conf import metrics
from opd_conf.compare.differences import differences
from opd_conf.compare.runs import Run
from opd_conf.metrics import WINDOW, Step

MOST_COLUMNS = 6
"""Differing keys that a table shows; more are in --csv, --json and --diff."""


@dataclass(frozen=True)
class Column:
    """A figure of a run. `best` is what a sort puts first: the smallest (min) or the largest (max)."""

    name: str
    unit: str
    of: Callable[[Run], float | None]
    best: Callable[..., float]
    form: str = "{:.4g}"


def _last(read: Callable[[Step], float | None]) -> Callable[[Run], float | None]:
    """The mean of the last steps."""
    return lambda run: metrics.mean([read(step) for step in run.steps[-WINDOW:]])


def _value(name: str, scale: float = 1.0) -> Callable[[Step], float | None]:
    return lambda step: float(step.values[name]) * scale if name in step.values else None


def _tokens(step: Step) -> float | None:
    tokens, seconds = step.values.get(metrics.TOKENS), step.values.get(metrics.STEP_SECONDS)
    return float(tokens) / float(seconds) if tokens is not None and seconds else None


def _seconds(run: Run) -> float | None:
    return sum(float(step.values[metrics.STEP_SECONDS]) for step in run.steps) if run.steps else None


COLUMNS = (
    Column("step", "", lambda run: float(run.steps[-1].number) if run.steps else None, max, "{:.0f}"),
    Column("loss", "", _last(lambda step: step.loss), min),
    Column("reward", "", _last(lambda step: step.score), max, "{:.3g}"),
    Column("response", "tokens", _last(_value("response_length/mean")), max, "{:.0f}"),
    Column("speed", "tokens/s", _last(_tokens), max, "{:.0f}"),
    Column("memory", "GiB", _last(_value("perf/max_memory_reserved_gb")), min, "{:.1f}"),
    Column("time", "s", _seconds, min, "{:.0f}"),
)


def varied(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What tells the runs apart, a value for each: what was typed differently, else keys of the configuration."""
    typed = [dict(_typed(override) for override in run.facts.get("overrides", ())) for run in runs]
    keys = dict.fromkeys(key for each in typed for key in each if key != "run_dir")
    columns = {key: [each.get(key, "") for each in typed] for key in keys}
    columns = {key: values for key, values in columns.items() if len(set(values)) > 1}
    if columns:
        return columns
    found = [difference for difference in differences(list(runs)) if difference.kind == "configuration"]
    return {difference.key: [str(value) for value in difference.values] for difference in found}


def _typed(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+"), value


def state(run: Run) -> str:
    """How a run stands, with what ended it."""
    found = str(run.state.get("state", "unknown"))
    if found == "running" and not run.steps:
        return "starting"
    why = run.state.get("signal") or (run.state.get("cause") or {}).get("id")
    return f"{found} ({why})" if why else found


def ordered(runs: Sequence[Run], by: str | None) -> list[Run]:
    """Best first by a column's name; those without a figure last. As they are without a name."""
    column = next((column for column in COLUMNS if column.name == by), None)
    if column is None:
        return list(runs)
    figures = {run.folder: column.of(run) for run in runs}
    sign = 1 if column.best is min else -1
    return sorted(runs, key=lambda run: (figures[run.folder] is None, sign * (figures[run.folder] or 0.0)))


def rows(runs: Sequence[Run], columns: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Plain data: run, folder, state, differing keys, figures by column."""
    return [
        {
            "run": run.name,
            "folder": str(run.folder),
            "state": state(run),
            **{key: values[number] for key, values in columns.items()},
            **{column.name: column.of(run) for column in COLUMNS},
        }
        for number, run in enumerate(runs)
    ]


def shown(runs: Sequence[Run], columns: Mapping[str, Sequence[str]]) -> Any:
    """The same as a table for people."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=_caption(runs, columns), caption_justify="left")
    made.add_column("run", overflow="fold")
    made.add_column("state")
    keys = list(columns)[:MOST_COLUMNS]
    for key in keys:
        made.add_column(key.rpartition(".")[2], overflow="fold")
    for column in COLUMNS:
        made.add_column(f"{column.name}\n{column.unit}".rstrip(), justify="right")
    for number, run in enumerate(runs):
        figures = [(column, column.of(run)) for column in COLUMNS]
        made.add_row(
            run.name,
            state(run),
            *(columns[key][number] for key in keys),
            *("" if figure is None else column.form.format(figure) for column, figure in figures),
        )
    return made


def _caption(runs: Sequence[Run], columns: Mapping[str, Sequence[str]]) -> str:
    parts = [f"means of the last {WINDOW} steps"]
    if len(columns) > MOST_COLUMNS:
        parts.append(f"{len(columns) - MOST_COLUMNS} more keys differ: --diff, --csv")
    if any(run.state.get("state") == "running" for run in runs):
        parts.append(f"at {time.strftime('%H:%M:%S')}")
    return "; ".join(parts)

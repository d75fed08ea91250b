"""One row a run: what differs between them, and what each came to."""

import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from opd_conf.compare import figures
from opd_conf.compare.differences import differences
from opd_conf.compare.figures import FIGURES, Best, value
from opd_conf.compare.runs import Run, standing
from opd_conf.errors import UserError
from opd_conf.metrics import STEP_SECONDS, WINDOW

Columns = Mapping[str, Sequence[str]]
MOST_COLUMNS = 6
"""Differing keys that a table shows; more are in --csv, --json and --diff."""

LOSS_MODE_KEY = "distillation.distillation_loss.loss_mode"
NOT_OF_A_RUN = ("run_dir", "action", "launch.", "sweep.", "checks.", "hydra.")


@dataclass(frozen=True)
class Column:
    """A figure of a run. `best` is what a sort puts first: the smallest (min) or the largest (max)."""

    name: str
    unit: str
    best: Best
    of: Callable[[Run], float | None]
    form: str


def _column(figure: figures.Figure) -> Column:
    return Column(figure.name, figure.unit, figure.best, lambda run: figures.last(figure, run.steps), figure.form)


def _seconds(run: Run) -> float | None:
    return sum(value(step, STEP_SECONDS) or 0.0 for step in run.steps) if run.steps else None


STEP = Column("step", "", max, lambda run: float(run.steps[-1].number) if run.steps else None, "{:.0f}")
TIME = Column("time", "s", min, _seconds, "{:.0f}")
COLUMNS = (STEP, *(_column(figure) for figure in FIGURES[:6]), TIME)


def columns_for(runs: Sequence[Run], by: str) -> list[Column]:
    """The usual columns that any run has a value for, and the one that is sorted by. Raises UserError without one."""
    known = [column for column in COLUMNS if any(column.of(run) is not None for run in runs)]
    return known if by in {column.name for column in known} else [*known, sorted_by(runs, by)]


def sorted_by(runs: Sequence[Run], by: str) -> Column:
    """The column of that name, or verl's metric as one. Raises UserError when no run has that metric."""
    usual = next((column for column in COLUMNS if column.name == by), None)
    if usual:
        return usual
    names = dict.fromkeys(figure.name for figure in FIGURES)
    names |= dict.fromkeys(name for run in runs for step in run.steps for name in step.values)
    if by not in names:
        near = difflib.get_close_matches(by, names, n=4, cutoff=0.4)
        raise UserError(f"No run has a metric {by}.\n" + "\n".join(f"  type: --sort {name}" for name in near))
    return _column(figures.figure(by))


def usual_sort(runs: Sequence[Run]) -> str:
    """The loss; between loss modes, whose losses are different distances, the reward."""
    return "reward" if len(_loss_modes(runs)) > 1 else "loss"


def varied(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What tells the runs apart, a value for each: what was typed differently, else keys of the configuration."""
    typed = dict.fromkeys(key for run in runs for key in _typed(run) if not key.startswith(NOT_OF_A_RUN))
    columns = {key: [_chosen(run, key) for run in runs] for key in typed}
    columns = {key: values for key, values in columns.items() if len(set(values)) > 1}
    if columns:
        return columns
    found = [difference for difference in differences(list(runs)) if difference.kind == "configuration"]
    return {difference.key: [str(value) for value in difference.values] for difference in found}


def _typed(run: Run) -> dict[str, str]:
    parts = (override.partition("=") for override in run.overrides)
    return {key.lstrip("+"): value for key, _, value in parts}


def _chosen(run: Run, key: str) -> str:
    """What was typed for a key, else the group's option or the value that the run got."""
    typed = _typed(run).get(key)
    if typed is not None:
        return typed
    choices, own = run.facts.get("choices") or {}, run.facts.get("own") or {}
    found = choices.get(key, own.get(key)) if key in choices or key in own else run.settings.get(key, "")
    return str(found).lower() if isinstance(found, bool) else str(found)


def _loss_modes(runs: Sequence[Run]) -> set[str]:
    """The distances that runs with steps minimise; of one that is named in no record, none."""
    return {mode for run in runs if run.steps if (mode := _loss_mode(run))}


def _loss_mode(run: Run) -> str:
    typed, choices = _typed(run), run.facts.get("choices") or {}
    known = typed.get(LOSS_MODE_KEY) or typed.get("loss_mode") or choices.get("loss_mode")
    return str(known or run.settings.get(LOSS_MODE_KEY, ""))


def labels(runs: Sequence[Run], columns: Columns) -> list[str]:
    """Each run by what tells it from the others: `loss_mode=k1, topk=16`; its name where nothing does."""
    keys = list(columns)
    if len(keys) > MOST_COLUMNS:
        keys = next((keys[:n] for n in range(1, MOST_COLUMNS) if _tell_apart(keys[:n], columns)), keys[:MOST_COLUMNS])
    texts = [
        ", ".join(f"{short(key, keys)}={columns[key][number]}" for key in keys if columns[key][number])
        for number in range(len(runs))
    ]
    return [
        text if text and texts.count(text) == 1 else ", ".join(filter(None, (text, run.name)))
        for text, run in zip(texts, runs, strict=True)
    ]


def _tell_apart(keys: Sequence[str], columns: Columns) -> bool:
    rows = list(zip(*(columns[key] for key in keys), strict=True))
    return len(set(rows)) == len(rows)


def short(key: str, keys: Sequence[str]) -> str:
    """The last part of a dotted key where no other key ends like it."""
    end = key.rpartition(".")[2]
    return end if sum(other.rpartition(".")[2] == end for other in keys) == 1 else key


def ordered(runs: Sequence[Run], by: str) -> list[Run]:
    """Best first by a column or a metric of verl's; those without a figure last, in the order they had."""
    column = sorted_by(runs, by)
    sign = 1 if column.best is min else -1
    found = {run.folder: column.of(run) for run in runs}
    return sorted(runs, key=lambda run: (found[run.folder] is None, sign * (found[run.folder] or 0.0)))


def rows(runs: Sequence[Run], columns: Columns, by: str) -> list[dict[str, Any]]:
    """Plain data: cell of the sweep, run, folder, state, differing keys, figures by column."""
    figured = columns_for(runs, by)
    return [
        {
            "cell": run.cell,
            "run": run.name,
            "folder": str(run.folder),
            "state": standing(run),
            **{key: values[number] for key, values in columns.items()},
            **{column.name: column.of(run) for column in figured},
        }
        for number, run in enumerate(runs)
    ]


def shown(runs: Sequence[Run], columns: Columns, by: str) -> Table:
    """The same as a table for people; cells of one sweep by their number."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    numbered = of_one_sweep(runs)
    made.add_column("cell" if numbered else "run", overflow="fold", justify="right" if numbered else "left")
    made.add_column("state", overflow="fold")
    keys = list(columns)[:MOST_COLUMNS]
    for key in keys:
        made.add_column(short(key, keys), overflow="fold")
    figured = columns_for(runs, by)
    for column in figured:
        made.add_column(f"{column.name}\n{column.unit}".rstrip(), justify="right")
    for number, run in enumerate(runs):
        state = standing(run)
        found = [(column, column.of(run)) for column in figured]
        made.add_row(
            str(run.cell) if numbered else Text(run.name),
            Text(state, _style(state)),
            *(Text(columns[key][number]) for key in keys),
            *("" if figure is None else column.form.format(figure) for column, figure in found),
        )
    return made


def of_one_sweep(runs: Sequence[Run]) -> bool:
    """Whether a cell's number says which run is meant."""
    return all(run.cell is not None for run in runs) and len({run.folder.parent for run in runs}) == 1


def _style(state: str) -> str:
    word = state.split(" ")[0].rstrip(":")
    styles = {"finished": "green", "running": "cyan", "starting": "cyan", "as": "dim", "waiting": "dim"}
    return styles.get(word, "red" if word in ("failed", "lost", "refused", "interrupted") else "")


def notes(runs: Sequence[Run], by: str) -> list[str]:
    """What has to be known to read the figures."""
    column = sorted_by(runs, by)
    end = "smallest" if column.best is min else "largest"
    parts = [f"means of the last {WINDOW} steps", f"sorted by {by}, {end} first"]
    if len(_loss_modes(runs)) > 1:
        parts.append("losses of different loss modes are different distances")
    return parts


def below(runs: Sequence[Run], columns: Columns, by: str) -> str:
    """What stands below the table."""
    parts = notes(runs, by)
    if any(run.state.get("state") == "running" for run in runs):
        parts.append(f"at {time.strftime('%H:%M:%S')}")
    if len(columns) > MOST_COLUMNS:
        parts.append(f"{len(columns) - MOST_COLUMNS} more keys differ: --diff, --csv")
    return "; ".join(parts)

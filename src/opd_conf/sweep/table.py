"""The plan of a sweep for people: the columns that differ, and what becomes of each cell."""

from collections.abc import Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opd_conf.sweep.plan import Cell

ROWS = 60
"""Rows of the table; what is beyond stands in sweep.json."""


def show(cells: Sequence[Cell], finished: Collection[str], console: Console) -> None:
    """Prints the plan, and below it why cells are refused."""
    console.print(table(cells, finished))
    if len(cells) > ROWS:
        console.print(f"  … and {len(cells) - ROWS} more")
    for reason, names in reasons(cells).items():
        console.print(Text.assemble(("refused  ", "bold red"), f"{_named(names)}\n", reason), soft_wrap=True)
    console.print(summary(cells, finished))


def table(cells: Sequence[Cell], finished: Collection[str]) -> Table:
    """One row a cell, at most ROWS."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    made.add_column("cell", justify="right")
    keys = list(cells[0].varied)
    for key in keys:
        made.add_column(key.rpartition(".")[2])
    made.add_column("plan")
    for cell in cells[:ROWS]:
        made.add_row(str(cell.number), *cell.varied.values(), Text(fate(cell, finished), _style(cell, finished)))
    return made


def fate(cell: Cell, finished: Collection[str]) -> str:
    """What becomes of a cell, in words."""
    if cell.problem is not None:
        return "refused: does not compose"
    if not cell.valid:
        return "refused: " + ", ".join(sorted({finding.id for finding in cell.findings if finding.severity == "error"}))
    if cell.same is not None:
        return f"as cell {cell.same}: {cell.why}"
    return "finished" if cell.name in finished else "runs"


def _style(cell: Cell, finished: Collection[str]) -> str:
    return "red" if not cell.valid else "dim" if cell.same is not None or cell.name in finished else "green"


def reasons(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Why cells are refused, and which ones, each reason once."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        if cell.problem is not None:
            found.setdefault(_indented(cell.problem), []).append(cell.name)
        for finding in cell.findings:
            if finding.severity == "error":
                text = _indented(f"{finding.id}: {finding.message}\ntype: {finding.fix}")
                found.setdefault(text, []).append(cell.name)
    return found


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def summary(cells: Sequence[Cell], finished: Collection[str]) -> str:
    """One line: how many of what."""
    counts = {
        "run": sum(cell.runs and cell.name not in finished for cell in cells),
        "finished already": sum(cell.runs and cell.name in finished for cell in cells),
        "joined": sum(cell.valid and cell.same is not None for cell in cells),
        "refused": sum(not cell.valid for cell in cells),
    }
    parts = [f"{count} {word}" for word, count in counts.items() if count or word == "run"]
    return f"{len(cells)} cell{'s' * (len(cells) != 1)}: {', '.join(parts)}"

"""`python -m opd_conf.compare FOLDER…` and `opd-compare`."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opd_conf.compare import table
from opd_conf.compare.align import Distance, Tolerance, align
from opd_conf.compare.differences import differences
from opd_conf.compare.runs import Run, find, read
from opd_conf.errors import UserError

EXIT_BEYOND, EXIT_MISTAKE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0; 1 when --align finds a metric beyond the tolerance; 2 for a mistake."""
    given = _parser().parse_args(arguments)
    try:
        return _align(given) if given.align else _diff(given) if given.diff else _compare(given)
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_MISTAKE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("opd-compare", description="Runs side by side: what differs, what each came to.")
    parser.add_argument("folders", nargs="*", type=Path, help="run folders, sweep folders, or folders above them")
    usual = ", ".join(column.name for column in table.COLUMNS)
    parser.add_argument("--sort", metavar="NAME", help=f"best first by {usual}, or any metric of verl's")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="curves as PNG, and one page for a browser")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="all columns; - for the screen")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the same; - for the screen")
    parser.add_argument("--diff", nargs=2, type=Path, metavar=("A", "B"), help="why two runs differ")
    parser.add_argument("--align", nargs=2, type=Path, metavar=("A", "B"), help="two runs step by step")
    usual_tolerance = Tolerance()
    parser.add_argument(
        "--tolerance", type=float, default=usual_tolerance.relative, help="of --align, relative (default: %(default)s)"
    )
    parser.add_argument(
        "--absolute", type=float, default=usual_tolerance.absolute, help="of --align, added (default: %(default)s)"
    )
    parser.add_argument(
        "--metric", action="append", default=[], metavar="NAME", help="of --align: only these; actor/* is possible"
    )
    return parser


def _compare(given: argparse.Namespace) -> int:
    if not given.folders:
        raise UserError("Which runs?\n  type: opd-compare FOLDER…")
    found = find(given.folders)
    by = given.sort or table.usual_sort(found)
    runs = table.ordered(found, by)
    columns = table.varied(runs)
    if given.csv:
        _write(given.csv, _csv(table.rows(runs, columns, by)))
    if given.json:
        _write(given.json, json.dumps(table.rows(runs, columns, by), indent=2, ensure_ascii=False) + "\n")
    if Path("-") not in (given.csv, given.json):
        _print(table.shown(runs, columns, by), table.below(runs, columns, by))
    if given.plot:
        from opd_conf.compare.plot import plot

        for path in plot(runs, columns, by, given.plot):
            print(path, file=sys.stderr)
    return 0


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    if path == Path("-"):
        print(text, end="")
        return
    if path.exists():
        raise UserError(f"{path} is there already, and is not written over.")
    path.write_text(text)


def _diff(given: argparse.Namespace) -> int:
    one, other = (_one(folder) for folder in given.diff)
    found = differences([one, other])
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("", "key", *map(str, given.diff)):
        made.add_column(Text(title), overflow="fold")
    for difference in found:
        made.add_row(difference.kind, *map(Text, (difference.key, *map(_said, difference.values))))
    unread = [str(run.folder) for run in (one, other) if not run.settings]
    _print(
        made,
        f"{len(found)} difference{'s' * (len(found) != 1)}"
        + (f"; no verl.yaml in {', '.join(unread)}" if unread else ""),
    )
    return 0


def _said(value: object) -> str:
    return "—" if value is None else str(value)


def _align(given: argparse.Namespace) -> int:
    one, other = (_one(folder) for folder in given.align)
    tolerance = Tolerance(given.tolerance, given.absolute)
    found = align(one, other, tolerance, given.metric)
    _print(_aligned(found), _summary(found, tolerance, one, other))
    return EXIT_BEYOND if any(distance.first_beyond is not None for distance in found) else 0


def _summary(found: Sequence[Distance], tolerance: Tolerance, one: Run, other: Run) -> str:
    beyond = sum(distance.first_beyond is not None for distance in found)
    same = sum(distance.largest == 0 for distance in found)
    return (
        f"{len(found)} metrics: {beyond} beyond {tolerance.relative:g} of the larger value + {tolerance.absolute:g}, "
        f"{same} the same in every step; {len(one.steps)} and {len(other.steps)} steps"
    )


def _aligned(found: Sequence[Distance]) -> Table:
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    made.add_column("metric", overflow="fold")
    for title in ("steps", "largest", "at step", "mean", "relative", "first beyond"):
        made.add_column(title, justify="right")
    for distance in found:
        if distance.largest == 0:
            continue
        made.add_row(
            distance.metric,
            str(distance.steps),
            f"{distance.largest:.4g}",
            str(distance.largest_at),
            f"{distance.mean:.4g}",
            f"{distance.relative:.2e}",
            "" if distance.first_beyond is None else str(distance.first_beyond),
        )
    return made


def _one(folder: Path) -> Run:
    if not (folder / "run.json").is_file():
        raise UserError(f"{folder} is no run folder: it has no run.json.")
    return read(folder.resolve())


def _print(made: Table, below: str) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    console.print(made)
    console.print(below, markup=False)


if __name__ == "__main__":
    sys.exit(main())

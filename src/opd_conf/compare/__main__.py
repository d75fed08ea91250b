"""`python -m opd_conf.compare FOLDER…` and `opd-compare`."""

import argparse
import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from opd_conf.compare import table
from opd_conf.compare.align import Distance, align
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
    parser.add_argument("--sort", choices=[column.name for column in table.COLUMNS], default="loss", help="best first")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="curves as PNG, and one page for a browser")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="all columns; - for the screen")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the same; - for the screen")
    parser.add_argument("--diff", nargs=2, type=Path, metavar=("A", "B"), help="why two runs differ")
    parser.add_argument("--align", nargs=2, type=Path, metavar=("A", "B"), help="two runs step by step")
    parser.add_argument("--tolerance", type=float, default=0.01, help="of --align, relative (default: %(default)s)")
    parser.add_argument("--metric", action="append", default=[], help="of --align: only this one; may be repeated")
    return parser


def _compare(given: argparse.Namespace) -> int:
    if not given.folders:
        raise UserError("Which runs?\n  type: opd-compare FOLDER…")
    runs = table.ordered(find(given.folders), given.sort)
    columns = table.varied(runs)
    if given.csv:
        _write(given.csv, _csv(runs, columns))
    if given.json:
        _write(given.json, json.dumps(table.rows(runs, columns), indent=2, default=str) + "\n")
    if given.plot:
        from opd_conf.compare.plot import plot

        for path in plot(runs, columns, given.plot):
            print(path, file=sys.stderr)
    if Path("-") not in (given.csv, given.json):
        _console().print(table.shown(runs, columns))
    return 0


def _csv(runs: Sequence[Run], columns: Mapping[str, Sequence[str]]) -> str:
    import io

    rows = table.rows(runs, columns)
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
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=f"{len(found)} differences", caption_justify="left")
    for title in ("", "key", str(given.diff[0]), str(given.diff[1])):
        made.add_column(title, overflow="fold")
    for difference in found:
        made.add_row(difference.kind, difference.key, *map(str, difference.values))
    _console().print(made)
    return 0


def _align(given: argparse.Namespace) -> int:
    one, other = (_one(folder) for folder in given.align)
    found = align(one, other, given.tolerance, given.metric)
    if not found:
        raise UserError("The two runs have no metric of one step in common.")
    _console().print(_aligned(found, given.tolerance))
    return EXIT_BEYOND if any(distance.first_beyond is not None for distance in found) else 0


def _aligned(found: Sequence[Distance], tolerance: float) -> Table:
    made = Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=f"tolerance {tolerance:g}, relative", caption_justify="left"
    )
    made.add_column("metric", overflow="fold")
    for title in ("steps", "largest", "at step", "mean", "relative", "first beyond"):
        made.add_column(title, justify="right")
    for distance in found:
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


def _console() -> Console:
    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 200)


if __name__ == "__main__":
    sys.exit(main())

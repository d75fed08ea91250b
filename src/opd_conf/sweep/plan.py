"""What a sweep will run: each cell composed and checked, invalid ones dropped, equal ones joined, folders named."""

import hashlib
import json
import multiprocessing
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from opd_conf import checks, mistakes
from opd_conf.checks import Finding
from opd_conf.checks.unused import keys_unused
from opd_conf.errors import UserError
from opd_conf.reader import Malformed
from opd_conf.sweep.composer import Composer
from opd_conf.view import View, view

Overrides = tuple[str, ...]
LONGEST_NAME = 100
SIDE_BY_SIDE = 32
"""Cells from which planning is shared by two processes."""

OURS = ("run_dir", "sweep", "action", "checks", "hydra")
"""Root keys that make no difference to what is trained."""


@dataclass(frozen=True)
class Cell:
    """One combination of a sweep.

    `name` is its folder's, `varied` its part of what the sweep varies. `problem` says why it cannot be composed, `same`
    which earlier cell it equals (its `number`), and `why` what made it seem different.
    """

    number: int
    overrides: Overrides
    varied: dict[str, str]
    name: str
    findings: tuple[Finding, ...] = ()
    problem: str | None = None
    same: int | None = None
    why: str = ""

    @property
    def valid(self) -> bool:
        """Whether it composes and no check has an error."""
        return self.problem is None and not checks.has_errors(self.findings)

    @property
    def runs(self) -> bool:
        """Whether it is to be run: valid, and not equal to one before it."""
        return self.valid and self.same is None


@dataclass(frozen=True)
class _Examined:
    """What planning a cell found: `differs` holds the effective values of keys in which it is not the first cell."""

    findings: tuple[Finding, ...]
    problem: str | None
    differs: dict[str, Any]
    ignored: tuple[str, ...]


def cells_of(combinations: Sequence[Sequence[str]]) -> list[Cell]:
    """Cells with names, before anything is composed."""
    split = [dict(_key_value(text) for text in overrides) for overrides in combinations]
    values: dict[str, set[str]] = {}
    for cell in split:
        for key, value in cell.items():
            values.setdefault(key, set()).add(value)
    several = [key for key in values if len(values[key]) > 1]
    names: dict[str, int] = {}
    cells = []
    for number, (overrides, cell) in enumerate(zip(combinations, split, strict=True)):
        varied = {key: cell[key] for key in several}
        name = _name(varied)
        names[name] = names.get(name, 0) + 1
        unique = name if names[name] == 1 else f"{name}_{names[name]}"
        cells.append(Cell(number, tuple(overrides), varied, unique))
    return cells


def planned(cells: Sequence[Cell], composer: Composer) -> Iterator[Cell]:
    """The cells in their order, each with what was found; the first of equal cells stands for the others."""
    first: dict[str, Cell] = {}
    for cell, examined in zip(cells, _examined(cells, composer), strict=True):
        found = replace(cell, findings=examined.findings, problem=examined.problem)
        if found.valid:
            key = json.dumps(examined.differs, sort_keys=True, default=str)
            earlier = first.setdefault(key, found)
            if earlier is not found:
                found = replace(found, same=earlier.number, why=_why(earlier, found, examined.ignored))
        yield found


def _examined(cells: Sequence[Cell], composer: Composer) -> Iterator[_Examined]:
    examiner = _Examiner(composer, cells[0].overrides)
    if len(cells) < SIDE_BY_SIDE:
        yield from map(examiner, (cell.overrides for cell in cells))
        return
    # Forked, so that both start from what Hydra has read so far.
    with multiprocessing.get_context("fork").Pool(2, _start, (examiner,)) as pool:
        yield from pool.imap(_examine, [cell.overrides for cell in cells], chunksize=16)


_examiner: "_Examiner"


def _start(examiner: "_Examiner") -> None:
    global _examiner
    _examiner = examiner


def _examine(overrides: Overrides) -> _Examined:
    return _examiner(overrides)


class _Examiner:
    """Composes and checks one cell after the other, and compares each with the sweep's first that composes."""

    def __init__(self, composer: Composer, first: Overrides) -> None:
        self.composer = composer
        self.reference = self._leaves(first)

    def _leaves(self, overrides: Overrides) -> dict[str, Any]:
        try:
            return leaves(view(self.composer.compose(overrides).config).values.raw)
        except Exception as error:
            if mistakes.explain(error) is None:
                raise
            return {}

    def __call__(self, overrides: Overrides) -> _Examined:
        try:
            run = view(self.composer.compose(overrides).config)
        except Malformed as malformed:
            return _Examined(tuple(checks.wrong_values(malformed)), None, {}, ())
        except Exception as error:
            problem = str(error) if isinstance(error, UserError) else mistakes.explain(error)
            if problem is None:
                raise
            return _Examined((), problem, {}, ())
        found = tuple(finding for finding in checks.inspect(run) if finding.severity != "note")
        unread = keys_unused(run)
        return _Examined(found, None, _effective(run, self.reference, unread), unread)


def leaves(raw: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Plain values by dotted key; lists and empty mappings count as values."""
    found: dict[str, Any] = {}
    for name, value in raw.items():
        if isinstance(value, Mapping) and value:
            found |= leaves(value, f"{at}{name}.")
        else:
            found[f"{at}{name}"] = value
    return found


def _effective(run: View, reference: Mapping[str, Any], unread: Sequence[str]) -> dict[str, Any]:
    """Values of a cell where they differ from the reference's, interpolations of either worked out in this cell."""
    mine = leaves(run.values.raw)
    keys = [key for key in {**reference, **mine} if mine.get(key, _ABSENT) != reference.get(key, _ABSENT)]
    keys = [key for key in keys if key.split(".")[0] not in OURS and key not in unread]
    values = {key: run.setting(key) for key in keys}
    return {key: value for key, value in values.items() if value != _worked_out(run, reference.get(key))}


_ABSENT = object()


def _worked_out(run: View, written: Any) -> Any:
    """What an expression would be in this cell; the expression itself where that cannot be told."""
    if "${" not in str(written):
        return written
    probe = OmegaConf.create({"value": written})
    probe._set_parent(run.values.config)
    try:
        return probe.value
    except OmegaConfBaseException:
        return written


def _why(earlier: Cell, cell: Cell, ignored: Sequence[str]) -> str:
    differs = [key for key, value in cell.varied.items() if earlier.varied.get(key) != value]
    unread = [key for key in differs if key in ignored]
    if unread and len(unread) == len(differs):
        return f"{', '.join(unread)} has no effect here"
    return "the same values, written otherwise"


def _key_value(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value


_SPECIAL = re.compile(r"[^\w.+=,@%:-]+")


def _name(varied: Mapping[str, str]) -> str:
    """`loss_mode=k1,topk=16`, or a shorter name that is as unmistakable."""
    short = {key: key.rpartition(".")[2] for key in varied}
    unmistakable = len(set(short.values())) == len(short)
    parts = [f"{short[key] if unmistakable else key}={value}" for key, value in varied.items()]
    name = _SPECIAL.sub("_", ",".join(parts)).strip("_") or "cell"
    digest = hashlib.sha256(",".join(f"{key}={value}" for key, value in varied.items()).encode()).hexdigest()[:8]
    whole = _SPECIAL.search(",".join(parts)) is None and len(name) <= LONGEST_NAME
    return name if whole else f"{name[:LONGEST_NAME]}_{digest}"

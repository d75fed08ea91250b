"""The page of late errors: its rows are the program's mistakes, each of them refused by the rule that it names."""

from pathlib import Path

import late
import pytest
from late import MISTAKES, RIGHT, Mistake

from opd_conf import checks
from opd_conf.compose import compose
from opd_conf.cpu import sums

LEAST = 30
"""Times sooner than verl."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny task with models that have learned nothing."""
    folder = tmp_path_factory.mktemp("made") / "sums"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TEACHER", "STUDENT"):
            patch.setattr(sums, name, sums.Recipe(hidden=32, heads=2, learning_rate=1e-3, updates=2, stop_at=1.0))
        sums.ensure(folder)
    return folder


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_refused_by_its_rule_alone(mistake: Mistake, made: Path, tmp_path: Path) -> None:
    typed = late.typed(mistake, made, tmp_path)
    found = checks.findings(compose(["experiment=smoke", f"assets={made.parent}", *typed]).config)
    assert {finding.id for finding in found if finding.severity == "error"} == {mistake.rule}


def test_the_page_shows_every_mistake_as_it_was_measured() -> None:
    rows = late.measured()
    assert list(rows) == [mistake.name for mistake in (RIGHT, *MISTAKES)]
    assert late.PAGE.read_text() == late.page(rows)


def test_each_mistake_was_found_much_sooner() -> None:
    assert {name: row.ratio for name, row in late.measured().items() if row.ratio < LEAST} == {}

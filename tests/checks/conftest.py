"""How a rule is tested: it fires with the right numbers, what it says to type helps, and it is quiet otherwise."""

import shlex
from collections.abc import Callable

import pytest

from opd_conf.checks import Finding

Fires = Callable[..., Finding]
Quiet = Callable[..., None]


@pytest.fixture
def fires(check) -> Fires:
    """Asserts that this rule speaks once, and that its fix, typed as it stands, helps and breaks nothing else."""

    def assert_fires(rule: str, overrides: str, message: str, fix: str, severity: str = "error") -> Finding:
        given = shlex.split(overrides)
        before = check(*given)
        found = [finding for finding in before if finding.id == rule]
        assert len(found) == 1, [(finding.id, finding.message) for finding in before]
        assert found[0].severity == severity
        assert message in found[0].message
        assert found[0].fix == fix
        after = {finding.id for finding in check(*given, *shlex.split(fix)) if finding.severity == "error"}
        assert rule not in after
        assert after <= {finding.id for finding in before}
        return found[0]

    return assert_fires


@pytest.fixture
def quiet(check) -> Quiet:
    """Asserts that a rule has nothing to say about the usual run with some overrides."""

    def assert_quiet(rule: str, overrides: str = "") -> None:
        assert [finding.message for finding in check(*shlex.split(overrides)) if finding.id == rule] == []

    return assert_quiet

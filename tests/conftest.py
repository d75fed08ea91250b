"""What tests share: composed runs, and what the checks say about them."""

import functools
from collections.abc import Callable
from typing import Protocol

import pytest
from omegaconf import DictConfig

from opd_conf import checks
from opd_conf.checks import Finding
from opd_conf.checks.examples import RUN, composed
from opd_conf.compose import compose as compose_run

UNSEEN = ("data_files", "cluster_answers")
"""Rules about what this machine lacks: downloaded data, and the Ray cluster of cluster=2x8."""

Compose = Callable[..., DictConfig]


class Check(Protocol):
    """`check("data.train_batch_size=30")`: the findings about the usual run with these overrides, UNSEEN ones aside."""

    def __call__(self, *overrides: str) -> tuple[Finding, ...]: ...


@functools.cache
def _findings(overrides: tuple[str, ...]) -> tuple[Finding, ...]:
    found = checks.findings(composed((*RUN, *overrides)))
    return tuple(finding for finding in found if finding.severity != "note" and finding.id not in UNSEEN)


@pytest.fixture
def compose() -> Compose:
    """Composes a run from overrides, as the command does."""
    return lambda *overrides: compose_run(overrides).config


@pytest.fixture
def check() -> Check:
    """What the checks find in the usual run with some overrides."""
    return lambda *overrides: _findings(overrides)


@pytest.fixture(autouse=True)
def _no_ray_of_others(request, monkeypatch):
    """`ray_init.address: auto` finds no cluster: not the Ray that a run beside these tests has started."""
    if "e2e" not in request.path.parts:
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first: the real runs of tests/e2e come last."""
    items.sort(key=lambda item: "e2e" in item.path.parts)

"""What tests share: composed runs, and what the checks say about them."""

import functools
import pickle
from collections.abc import Callable
from typing import Protocol

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from opd_conf import checks
from opd_conf.checks import Finding
from opd_conf.compose import compose as compose_run
from opd_conf.compose import conf_folder

RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
"""A usual run: one node with eight accelerators, four each; 128 prompts of 1024 + 2048 tokens, one mini-batch."""

GROUPS = {folder.name for folder in conf_folder().iterdir() if folder.is_dir()}

Compose = Callable[..., DictConfig]


class Check(Protocol):
    """`check("data.train_batch_size=30")`: the findings about the usual run with these overrides, data files aside."""

    def __call__(self, *overrides: str) -> tuple[Finding, ...]: ...


@functools.cache
def _chosen(groups: tuple[str, ...]) -> bytes:
    return pickle.dumps(compose_run(groups).config)


def _composed(overrides: tuple[str, ...]) -> DictConfig:
    """A composed run; its choices of groups are composed once, because that takes most of the time."""
    groups = tuple(override for override in overrides if override.strip("+~").split("=")[0].split("@")[0] in GROUPS)
    config: DictConfig = pickle.loads(_chosen(groups))
    for override in OverridesParser.create().parse_overrides([plain for plain in overrides if plain not in groups]):
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=override.is_add())
    return config


@functools.cache
def _findings(overrides: tuple[str, ...]) -> tuple[Finding, ...]:
    found = checks.findings(_composed((*RUN, *overrides)))
    return tuple(finding for finding in found if finding.severity != "note" and finding.id != "data_files")


@pytest.fixture
def compose() -> Compose:
    """Composes a run from overrides, as the command does."""
    return lambda *overrides: compose_run(overrides).config


@pytest.fixture
def check() -> Check:
    """What the checks find in the usual run with some overrides."""
    return lambda *overrides: _findings(overrides)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first: the real runs of tests/e2e come last."""
    items.sort(key=lambda item: "e2e" in item.path.parts)

"""A sweep's composer, as Hydra would set one up."""

from collections.abc import Callable, Sequence

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from opd_conf.compose import conf_folder
from opd_conf.sweep.composer import Composer
from opd_conf.sweep.plan import Cell, planned
from opd_conf.sweep.run import _cells

RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")


@pytest.fixture
def composer() -> Composer:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        return Composer(loader, loader.load_configuration("opd", [], RunMode.MULTIRUN))


@pytest.fixture
def plan(composer: Composer) -> Callable[..., list[Cell]]:
    """The plan of a sweep of the usual run, whose data files nobody has."""

    def plan(*arguments: str, run: Sequence[str] = RUN) -> list[Cell]:
        ignored = ("action=check", "checks.ignore=[data_files]")
        return list(planned(_cells([*run, *ignored, *arguments], composer.loader), composer))

    return plan

"""`hydra/launcher: local`: cells on this machine, a process each. Hydra imports this at each start: keep it light."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from opd_conf.errors import UserError


@dataclass
class LocalLauncherConf:
    """`stop_on_failure`: a cell that fails ends the sweep; otherwise the others go on."""

    _target_: str = "hydra_plugins.opd_conf.launcher.LocalLauncher"
    stop_on_failure: bool = False


ConfigStore.instance().store(group="hydra/launcher", name="local", node=LocalLauncherConf, provider="opd_conf")


class LocalLauncher(Launcher):
    """One cell after the other, or side by side where their accelerators do not meet."""

    def __init__(self, stop_on_failure: bool = False) -> None:
        self.stop_on_failure = stop_on_failure

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Nothing to set up: cells come recorded, in folders."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Not used: opd_conf's sweeper hands cells over recorded (`start`)."""
        raise UserError("hydra/launcher=local goes with hydra/sweeper=opd.\n  type: hydra/launcher=basic")

    def start(self, cells: Sequence[Any]) -> int:
        """Runs recorded cells to their end; the worst of their exit codes."""
        from opd_conf.sweep.queue import run_all

        return run_all(cells, self.stop_on_failure)

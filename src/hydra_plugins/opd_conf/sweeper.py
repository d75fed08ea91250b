"""`hydra/sweeper: opd`: plans all cells before the first starts. Hydra imports this at each start: keep it light."""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class OpdSweeperConf:
    """`params`: swept keys of a file, `hydra.sweeper.params.topk: 16,64`; the command line wins."""

    _target_: str = "hydra_plugins.opd_conf.sweeper.OpdSweeper"
    params: dict[str, Any] | None = field(default=None)


ConfigStore.instance().store(group="hydra/sweeper", name="opd", node=OpdSweeperConf, provider="opd_conf")


class OpdSweeper(Sweeper):
    """Hydra's side of opd_conf.sweep."""

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        self.params = params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context: HydraContext = hydra_context
        self.task_function = task_function
        self.config: DictConfig = config
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Runs the sweep of the task's cells; `arguments` are those of them that Hydra has seen."""
        from opd_conf.sweep.run import sweep

        task: Any = self.task_function  # opd_conf.app.Task
        overrides = [*(f"{key}={value}" for key, value in self.params.items()), *task.cells]
        task.codes.append(sweep(overrides, self.hydra_context.config_loader, self.config, self.launcher, task.record))

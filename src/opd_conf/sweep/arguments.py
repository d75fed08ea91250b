"""Which arguments of a sweep Hydra may see before the cells are composed."""

from collections.abc import Sequence
from dataclasses import dataclass

FLAGS_WITH_VALUES = ("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd", "--package", "-p", "--info")


@dataclass(frozen=True)
class Arguments:
    """`hydra`: for Hydra's own composition of the sweep; `cells`: overrides of the cells, in their order."""

    hydra: tuple[str, ...]
    cells: tuple[str, ...]


def is_sweep(arguments: Sequence[str]) -> bool:
    """Whether our sweeper is asked for: -m, and no other sweeper chosen."""
    chosen = any(argument.startswith("hydra/sweeper=") and argument != "hydra/sweeper=opd" for argument in arguments)
    return not chosen and any(argument in ("-m", "--multirun") for argument in arguments)


def split(arguments: Sequence[str]) -> Arguments:
    """Hydra composes all fixed overrides together first, and would refuse a fixed key that only some cells have.

    So it gets flags, its own settings, those of the sweep and the action; cells get the rest.
    """
    hydra, cells = [], []
    value_of_flag = False
    for argument in arguments:
        override = not value_of_flag and not argument.startswith("-") and ("=" in argument or argument.startswith("~"))
        value_of_flag = argument in FLAGS_WITH_VALUES
        key = argument.lstrip("+~").partition("=")[0]
        of_the_sweep = key == "sweep" or key.startswith(("sweep.", "hydra.", "hydra/"))
        if not override or of_the_sweep or key == "action":
            hydra.append(argument)
        if override and not of_the_sweep:
            cells.append(argument)
    return Arguments(tuple(hydra), tuple(cells))

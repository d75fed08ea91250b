"""Arguments → one composed configuration, with everything that is needed to record how it came about."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from opd_conf import platforms, resolvers  # noqa: F401  (the files need our resolver)

CONFIG_NAME = "opd"


@dataclass(frozen=True)
class Composed:
    """A composed run: `config` has verl's root plus our keys, interpolations kept."""

    config: DictConfig
    overrides: tuple[str, ...]
    choices: dict[str, str]


def conf_folder() -> Path:
    """The folder of opd.yaml: inside an installed wheel, or at the top of the repository of an editable install."""
    packed = Path(__file__).parent / "conf"
    return packed if packed.is_dir() else Path(__file__).parents[2] / "conf"


def with_platform(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Adds `platform=…` when nothing chooses it, and says why that one; the arguments unchanged and None otherwise.

    Raises UserError when the platform must be found and cannot be.
    """
    overrides = [argument for argument in arguments if "=" in argument and not argument.startswith("-")]
    keys = {override.split("=")[0].lstrip("+") for override in overrides}
    swept = any(argument in ("-m", "--multirun") for argument in arguments) and "experiment" in keys
    if "platform" in keys or swept or "--hydra-help" in arguments:
        return list(arguments), None
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        defaults = (
            GlobalHydra.instance().config_loader().compute_defaults_list(CONFIG_NAME, overrides, RunMode.MULTIRUN)
        )
    if defaults.overrides.known_choices.get("platform") not in (None, "???"):
        return list(arguments), None
    platform, reason = platforms.detect()
    return [*arguments, f"platform={platform}"], reason


def compose(overrides: Sequence[str]) -> Composed:
    """Composes one run from overrides alone (no flags), once; Hydra's own entry composes twice."""
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config = hydra_compose(CONFIG_NAME, list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    with open_dict(config):
        del config["hydra"]
    return composed(config)


def composed(config: DictConfig) -> Composed:
    """The record of a configuration that Hydra has composed just now (its HydraConfig is set)."""
    hydra = HydraConfig.get()
    choices = {
        str(group): str(option)
        for group, option in hydra.runtime.choices.items()
        if option is not None and not str(group).startswith("hydra/")
    }
    return Composed(config, tuple(OmegaConf.to_container(hydra.overrides.task)), choices)  # type: ignore[arg-type]

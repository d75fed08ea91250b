"""verl's own configuration, read from its flattened YAML files without importing verl (or torch)."""

import functools
import importlib.metadata
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from opd_conf.errors import UserError

TESTED_VERSIONS = SpecifierSet("==0.9.1")
ROOT_VARIABLE = "OPD_VERL_ROOT"

_INSTALL = (
    "  to train:          pip install 'opd_conf[gpu]'   (or cpu, sglang, npu: see the README)\n"
    "  to check and plan: pip install --no-deps verl==0.9.1   (3 MB, no torch)\n"
    f"  from a checkout:   launch.verl_root=/path/to/verl   (or {ROOT_VARIABLE}=/path/to/verl)"
)


class _Loader(yaml.CSafeLoader):
    """libyaml's loader (25 times faster than the pure one) with OmegaConf's idea of a float: `1e-6` is one."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:e[-+]?[0-9]+)?|[0-9][0-9_]*e[-+]?[0-9]+|\.[0-9]+)$", re.I),
    list("-+0123456789."),
)


def package_folder() -> Path:
    """The folder of the package `verl`: of the checkout that OPD_VERL_ROOT names, else of the installed one.

    Raises UserError when there is none.
    """
    if root := os.environ.get(ROOT_VARIABLE):
        package = Path(os.path.expanduser(root)) / "verl"
        if not (package / "trainer").is_dir():
            raise UserError(
                f"No verl checkout at {root} (launch.verl_root or {ROOT_VARIABLE}): no folder verl/trainer."
            )
        return package.resolve()
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"verl is not installed here, and its configuration is the base of every run.\n{_INSTALL}")
    return Path(spec.submodule_search_locations[0])


def version() -> str:
    """verl's version: the checkout's `verl/version/version`, else the installed distribution's."""
    stamp = package_folder() / "version" / "version"
    if stamp.is_file():
        return stamp.read_text().strip()
    try:
        return importlib.metadata.version("verl")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def require_tested_version() -> None:
    """Raises UserError when verl's version lies outside the range that these presets and rules were made for."""
    found = version()
    if found == "unknown" or Version(found) not in TESTED_VERSIONS:
        raise UserError(
            f"verl {found} at {package_folder()} is outside the tested range ({TESTED_VERSIONS}): its keys and rules "
            f"may differ.\n{_INSTALL}\n  to go on anyway:   launch.any_verl_version=true"
        )


def file_of(tree: str) -> Path:
    """The flattened file of a tree: `ppo_trainer` → `trainer/config/_generated_ppo_trainer.yaml`."""
    return package_folder() / "trainer" / "config" / f"_generated_{tree}.yaml"


def names() -> list[str]:
    """The trees that this verl ships, e.g. `ppo_trainer`, `ppo_veomni_trainer`."""
    return sorted(path.stem.removeprefix("_generated_") for path in file_of("x").parent.glob("_generated_*.yaml"))


def load(tree: str) -> DictConfig:
    """One complete tree as OmegaConf has it, interpolations kept. Raises UserError as `read` does."""
    return OmegaConf.create(read(tree))


def read(tree: str) -> dict[str, Any]:
    """One complete tree as plain data, not to be changed. Raises UserError when its file is missing or no mapping."""
    return _read(file_of(tree))


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(
            f"verl {version()} has no {path.name} in {path.parent} (found: {', '.join(names()) or 'none'}).\n"
            "The installation is incomplete or of another version; pip install --force-reinstall --no-deps verl==0.9.1"
        )
    content: Any = yaml.load(path.read_text(), Loader=_Loader)
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a mapping; reinstall verl.")
    return content


def root_keys() -> set[str]:
    """The first-level keys of verl's configuration, the same in each of its trees."""
    return set(read("ppo_trainer"))

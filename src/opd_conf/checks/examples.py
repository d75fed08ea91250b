"""An input for each rule about which it has something to say: examples.yaml, printed in docs/rules.md and tested."""

import contextlib
import functools
import json
import os
import pickle
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from opd_conf import live, nodes
from opd_conf.checks import RULES, packages
from opd_conf.checks.finding import Finding
from opd_conf.compose import compose, conf_folder
from opd_conf.view import view

RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
"""What an example adds to: one node with eight accelerators, four each; 128 prompts of 1024 + 2048 tokens."""


@dataclass(frozen=True)
class Example:
    """What is typed after RUN; files by relative path, packages to be found, variables.

    A file is a text, data to be written as JSON, or a number of bytes; one named `dev/davinci0` makes the machine one
    with NPUs. `cluster`: what nodes.py tells of a Ray cluster that runs.
    """

    typed: str
    files: dict[str, Any] = field(default_factory=dict)
    installed: dict[str, str] = field(default_factory=dict)
    shell: dict[str, str] = field(default_factory=dict)
    cluster: dict[str, Any] = field(default_factory=dict)

    @property
    def overrides(self) -> tuple[str, ...]:
        """The arguments, as a shell would hand them over."""
        return tuple(shlex.split(self.typed))


@functools.cache
def examples() -> dict[str, Example]:
    """The example of each rule, by id."""
    found = yaml.safe_load((Path(__file__).parent / "examples.yaml").read_text())
    return {id: Example(value) if isinstance(value, str) else Example(**value) for id, value in found.items()}


def finding(id: str) -> Finding:
    """What a rule says first about its example."""
    with _world(examples()[id]):
        found = next(RULES[id](view(composed((*RUN, *examples()[id].overrides)))))
    return replace(found, id=id)


def composed(overrides: Sequence[str]) -> DictConfig:
    """A composed run; its choices of groups are composed once, because that takes most of the time."""
    groups = tuple(typed for typed in overrides if typed.strip("+~").split("=")[0].split("@")[0] in _groups())
    config: DictConfig = pickle.loads(_chosen(groups))
    for override in OverridesParser.create().parse_overrides([typed for typed in overrides if typed not in groups]):
        if override.is_delete():
            block, _, name = override.key_or_group.rpartition(".")
            with open_dict(config):
                del OmegaConf.select(config, block)[name]
            continue
        new = override.is_add() or override.is_force_add()
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=new)
    return config


@functools.cache
def _groups() -> frozenset[str]:
    return frozenset(folder.name for folder in conf_folder().iterdir() if folder.is_dir())


@functools.cache
def _chosen(groups: tuple[str, ...]) -> bytes:
    return pickle.dumps(compose(groups).config)


@contextlib.contextmanager
def _world(example: Example) -> Iterator[None]:
    """A folder with the example's files to be in, and its packages before all others; its cluster answers."""
    if example.cluster:
        with mock.patch.multiple(
            live,
            locate=lambda *_: "10.0.0.1:6379",
            reachable=lambda *_: True,
            ask=lambda address, *_: live.read(example.cluster, address),
        ):
            yield
        return
    here, variables = os.getcwd(), dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        for name, version in example.installed.items():
            _write(Path(folder, f"{name}-{version}.dist-info", "METADATA"), f"Name: {name}\nVersion: {version}\n")
        for name, content in example.files.items():
            _write(Path(folder, name), content)
        os.chdir(folder)
        os.environ.update(example.shell)
        sys.path.insert(0, folder)
        _forget()
        try:
            with mock.patch.object(nodes, "probe", functools.partial(nodes.probe, dev=f"{folder}/dev")):
                yield
        finally:
            sys.path.remove(folder)
            os.chdir(here)
            os.environ.clear()
            os.environ.update(variables)
            _forget()


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow  # not installed where runs are only planned
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), path)
    elif isinstance(content, int):
        with path.open("wb") as file:
            file.truncate(content)  # a hole: takes no disk
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def _forget() -> None:
    for remembered in (packages.installed, packages.package_folder):
        remembered.cache_clear()

"""A model's own files, where they are here: a local folder, or the Hugging Face cache. Nothing is ever downloaded."""

import filecmp
import functools
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
Variable = Callable[[str], str | None]
"""The value of an environment variable, as a run will have it; None without one."""

_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_VOCABULARY = re.compile(r'"vocab"\s*:\s*(?=[\[{])')
_ADDED = re.compile(r'"added_tokens"\s*:\s*(?=\[)')
"""Both keys inside tokenizer.json; within a token's text the quotes would be escaped, and `"vocab": 7` is a token."""


@dataclass(frozen=True)
class Model:
    """Where a model's files are. In the cache (`cached`) a file that is missing may only not have been fetched."""

    folder: Path
    cached: bool

    @property
    def config(self) -> Mapping[str, Any] | None:
        """config.json, or None where it is missing or no JSON object."""
        return read_json(self.folder / CONFIG)

    @property
    def tokenizer_config(self) -> Mapping[str, Any] | None:
        """tokenizer_config.json, likewise."""
        return read_json(self.folder / TOKENIZER_CONFIG)

    @property
    def tokens(self) -> Mapping[str, int] | None:
        """Ids by token, added ones included; None without a readable tokenizer.json."""
        return read_tokens(self.folder / TOKENIZER)

    @property
    def chat_template(self) -> str | None:
        """The text of the chat template (of one of them, where there are several), as transformers looks for it."""
        for name in _TEMPLATE_FILES:
            if (self.folder / name).is_file():
                return (self.folder / name).read_text(errors="replace")
        found = (self.tokenizer_config or {}).get("chat_template")
        return str(found) if found else None

    def number(self, name: str) -> int | None:
        """A whole number of config.json, or of the text model's part of it."""
        for part in (self.config or {}, text_part(self.config or {})):
            if isinstance(part.get(name), int):
                return int(part[name])
        return None

    def same_tokenizer_file(self, other: "Model") -> bool:
        """Whether both have one and the same tokenizer.json, byte by byte: quicker than reading it."""
        mine, theirs = self.folder / TOKENIZER, other.folder / TOKENIZER
        return mine.is_file() and theirs.is_file() and filecmp.cmp(mine, theirs, shallow=False)


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config.json: models with vision nest it."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else config


def sees_images(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is one of a model with a vision tower."""
    return any(key in config for key in ("vision_config", "visual", "vision_tower", "mm_vision_tower"))


def is_remote(name: str) -> bool:
    """Whether a name is an address that only the cluster can open, as hdfs://…"""
    return "://" in name


def looks_local(name: str) -> bool:
    """Whether a name must be a path: names on the hub are `model` or `owner/model`."""
    return not is_remote(name) and (name.startswith(("/", ".", "~")) or name.count("/") > 1)


def find(name: str, variable: Variable) -> Model | None:
    """The folder that a model's name stands for, None when it is not here."""
    if is_remote(name) or name.startswith("~"):  # neither verl nor transformers expands ~
        return None
    try:
        if Path(name).is_dir():
            return Model(Path(name), cached=False)
        if looks_local(name):
            return None
        folder = _snapshot(hub_cache(variable) / f"models--{name.replace('/', '--')}")
    except (OSError, RuntimeError, ValueError):  # no permission; no home folder; a null byte
        return None
    return Model(folder, cached=True) if folder else None


def hub_cache(variable: Variable) -> Path:
    """The hub's cache under these variables: huggingface_hub/constants.py. RuntimeError without a home folder."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if given := variable(name):
            return Path(os.path.expanduser(given))
    home = variable("HF_HOME") or f"{variable('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(os.path.expanduser(home)) / "hub"


def _snapshot(repository: Path) -> Path | None:
    """The files of the branch `main` in the cache's layout: refs/main names a folder below snapshots."""
    try:
        folder = repository / "snapshots" / (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    return folder if folder.is_dir() else None


def read_json(path: Path) -> Mapping[str, Any] | None:
    """A JSON object from a file, None where there is none. Read once in a process, as long as the file is the same."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return _read_json(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=32)
def _read_json(path: Path, _changed: int, _size: int) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def read_tokens(path: Path) -> Mapping[str, int] | None:
    """Ids by token of a tokenizer.json, None where it cannot be read. Read once in a process, like `read_json`."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return _read_tokens(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=8)
def _read_tokens(path: Path, _changed: int, _size: int) -> Mapping[str, int] | None:
    """Only vocabulary and added tokens are parsed; the merges are most of a large file and take most of the time."""
    try:
        text = path.read_text()
        vocabulary, added = _value(text, _VOCABULARY), _value(text, _ADDED) or []
        if isinstance(vocabulary, list):  # Unigram: [token, score], in the order of ids
            vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
        if not isinstance(vocabulary, dict):
            return None
        return {**vocabulary, **{token["content"]: token["id"] for token in added}}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _value(text: str, key: re.Pattern[str]) -> Any:
    """The value of a key's first occurrence in a JSON document."""
    found = key.search(text)
    return json.JSONDecoder().raw_decode(text, found.end())[0] if found else None

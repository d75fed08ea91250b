"""Values of a composed configuration by dotted key, resolved only where they have to be.

All of verl's tree takes 0.1 s to resolve, one interpolation almost a millisecond; most name a key with a plain value.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from opd_conf.errors import UserError

_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([a-z]\w*(?:\.\w+)*)(?:,.*)?\}")
"""`${key}`, and `${oc.select:key,default}`, which is the same where there is the key."""

_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
MOST = {"nodes": 4096, "nnodes": 4096, "accelerators_per_node": 1024, "n_gpus_per_node": 1024, "num_replicas": 10**5}
"""Beyond these a number is a slip of the hand, and what is counted one by one would take for ever."""

_REQUIRED: Any = object()


@dataclass(frozen=True)
class Fault:
    """A value that no rule can count with: which key, what is wrong with it, what to type."""

    key: str
    message: str
    fix: str


class Malformed(UserError):
    """Values of the wrong kind, all of them at once."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(f"{fault.message}\n  type: {fault.fix}" for fault in faults))
        self.faults = tuple(faults)


@dataclass(frozen=True)
class Values:
    """A composed configuration, as Hydra made it (`config`) and as plain data with nothing resolved (`raw`)."""

    config: DictConfig = field(repr=False, compare=False)
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    def written(self, key: str, default: Any = None) -> Any:
        """What stands at a key, interpolations as they are: also that of a block above it. `default` without one."""
        node: Any = self.raw
        for part in key.split("."):
            if isinstance(node, str):
                return node
            if not isinstance(node, Mapping) or part not in node:
                return default
            node = node[part]
        return node

    def has(self, key: str) -> bool:
        """Whether a key is there, so that an override of it needs no `+`."""
        parent, _, name = key.rpartition(".")
        block = self.written(parent) if parent else self.raw
        return isinstance(block, Mapping) and name in block

    def origin(self, key: str) -> str:
        """The key where a value is written that others only name; of a circle, one of it."""
        followed: set[str] = set()
        while key not in followed:
            followed.add(key)
            found = self.written(key)
            reference = _REFERENCE.fullmatch(found) if isinstance(found, str) else None
            if reference and self.has(reference[1]) and self.written(reference[1]) != "???":
                key = reference[1]
        return key

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a key, resolved. Raises OmegaConfBaseException when it cannot be worked out."""
        key = self.origin(key)
        found = self.written(key, default)
        if "${" not in str(found):
            return None if found == "???" else found
        selected = OmegaConf.select(self.config, key)
        return OmegaConf.to_container(selected, resolve=True) if OmegaConf.is_config(selected) else selected


def plain(config: DictConfig) -> Values:
    """A composed configuration with its plain data."""
    raw = OmegaConf.to_container(config, resolve=False)
    assert isinstance(raw, dict)
    return Values(config, {str(key): value for key, value in raw.items()})


class Reader:
    """Reads values of a wanted kind, and collects those of another."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.faults: list[Fault] = []
        self.failed: set[str] = set()

    def value(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value of any kind; a fault where there is none and no default."""
        if default is _REQUIRED and (block := self._no_block(key)):
            self.failed.add(key)
            return None if block in self.failed else self.no_block(block)
        written = self.values.written(key, default)
        if written is _REQUIRED:
            return self.left_out(key)
        if written == "???":
            return self.fault(key, "has no value", "VALUE")
        try:
            return self.values.value(key, default)
        except OmegaConfBaseException as error:
            self.failed.add(key)
            origin = self.values.origin(key)
            reason = str(error).splitlines()[0].rstrip(".")
            told = any(fault.key == origin or fault.message.endswith(f" {reason}.") for fault in self.faults)
            return None if told else self.fault(origin, f"cannot be worked out: {reason}", "VALUE")

    def fault(self, key: str, problem: str, example: str) -> None:
        """Notes what is wrong with a key."""
        self.failed.add(key)
        self.faults.append(Fault(key, f"{key} {problem}.", f"{key}={example}"))

    def left_out(self, key: str) -> None:
        """Notes a key that is gone: only `~` takes one away."""
        self.failed.add(key)
        self.faults.append(Fault(key, f"{key} was left out, and every run needs it.", f"leave out ~{key}"))

    def no_block(self, key: str) -> None:
        """Notes a key that has no others below it."""
        found = self.values.written(key)
        if found is None and not self.values.has(key):
            return self.left_out(key)
        self.failed.add(key)
        message = f"{key} is {shown(found)}, and every run needs the keys below it."
        self.faults.append(Fault(key, message, f"leave out {key}"))

    def _no_block(self, key: str) -> str | None:
        """The topmost block above a key that is none; None when all are, or one is made from others."""
        parts = key.split(".")
        for block in (".".join(parts[:depth]) for depth in range(1, len(parts))):
            found = self.values.written(block)
            if not isinstance(found, Mapping):
                return None if "${" in str(found) else block
        return None

    def size(self, key: str, default: Any = _REQUIRED, least: int = 1) -> int:
        """A whole number; a fault, and the least, where it is none."""
        found = self.optional_size(key, default, least)
        if found is None and key not in self.failed:
            self.fault(key, f"is null, not a whole number of at least {least}", "NUMBER")
        return least if found is None else found

    def optional_size(self, key: str, default: Any = _REQUIRED, least: int = 1) -> int | None:
        """The same, or null."""
        found = self.value(key, default)
        most = MOST.get(key.rpartition(".")[2], 10**9)
        if found is None or (isinstance(found, int) and not isinstance(found, bool) and least <= found <= most):
            return found
        if isinstance(found, int) and found > most:
            self.fault(key, f"is {found}, and {most} is the most that is counted with", "NUMBER")
            return None
        example = str(least) if isinstance(found, int) else "NUMBER"
        self.fault(key, f"is {shown(found)}, not a whole number of at least {least}", example)
        return None

    def flag(self, key: str) -> bool:
        """True or false."""
        found = self.value(key)
        if not isinstance(found, bool) and key not in self.failed:
            self.fault(key, f"is {shown(found)}, neither true nor false", "false")
        return found is True

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        """The value as text; `null` for null."""
        found = self.value(key, default)
        return "null" if found is None else str(found)

    def optional_text(self, key: str, default: Any = _REQUIRED) -> str | None:
        """The same, None for null."""
        found = self.value(key, default)
        return None if found is None else str(found)

    def texts(self, key: str) -> tuple[str, ...]:
        """One text, or a list of them."""
        found = self.value(key)
        if isinstance(found, dict):
            self.fault(key, "is a block of keys, not a list", "[]")
        return texts(found)

    def choice(self, key: str, names: Sequence[str]) -> str:
        """One of a closed set of names; a fault, and the first, where it is none of them."""
        found = self.value(key)
        if found in names or key in self.failed:
            return names[0] if key in self.failed else str(found)
        guess = difflib.get_close_matches(str(found), names, 1) or names
        self.fault(key, f"is {shown(found)}; it can be {' or '.join(names)}", guess[0])
        return names[0]

    def name(self, key: str) -> None:
        """A text with something in it; one made from others has."""
        found = self.values.written(key, _REQUIRED)
        if found is _REQUIRED:
            return self.left_out(key)
        if isinstance(found, (list, dict, bool)) or found == "???" or not str(found or "").strip():
            self.fault(key, f"is {shown(found)}, not a name", "NAME")

    def block(self, key: str) -> None:
        """A block of keys."""
        if (block := self._no_block(f"{key}.x")) and block not in self.failed:
            self.no_block(block)

    def variables(self, key: str) -> None:
        """A block of environment variables, with names that a shell takes."""
        found = self.values.written(key)
        self.block(key)
        for name in found if isinstance(found, dict) else ():
            if not _VARIABLE.fullmatch(str(name)):
                problem = f"{key}.{name} is no name for an environment variable: letters, digits and _."
                self.faults.append(Fault(f"{key}.{name}", problem, f"leave out +{key}.{name}"))


def texts(value: Any) -> tuple[str, ...]:
    """A list, or one thing, as texts; none for null."""
    if isinstance(value, (list, ListConfig)):
        return tuple(map(str, value))
    return () if value is None else (str(value),)


def shown(value: object) -> str:
    """A value in a message."""
    if isinstance(value, str):
        return f'the text "{value}"'
    return (
        {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
    )

"""What a rule has to say."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from opd_conf.view import View

Severity: TypeAlias = Literal["error", "warning", "note"]
"""error: verl will fail, hang, or train on the wrong thing. warning: it runs, not as intended. note: good to know."""


@dataclass(frozen=True)
class Finding:
    """One thing found before the start.

    `id` is the name of the rule, filled in by `findings()`; `keys` are the settings it came from; `message` carries the
    numbers; `fix` is what to type.
    """

    severity: Severity
    keys: tuple[str, ...]
    message: str
    fix: str
    id: str = ""


Rule: TypeAlias = Callable[[View], Iterator[Finding]]
"""A public function of a module of rules. Its name is the id, its docstring's first line the description."""


def error(*keys: str, message: str, fix: str) -> Finding:
    """verl will fail, hang, or train on the wrong thing."""
    return Finding("error", keys, message, fix)


def warning(*keys: str, message: str, fix: str) -> Finding:
    """It runs, and hardly as intended."""
    return Finding("warning", keys, message, fix)


def note(*keys: str, message: str, fix: str) -> Finding:
    """Good to know."""
    return Finding("note", keys, message, fix)

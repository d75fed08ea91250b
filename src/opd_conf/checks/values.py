"""Values of another kind than verl's own: YAML and Hydra take `off`, `1e-6x` and `"3"` for text without a word."""

from collections.abc import Iterator, Mapping
from typing import Any

from opd_conf import verl_tree
from opd_conf.checks.finding import Finding, error
from opd_conf.view import View


def value_kind(run: View) -> Iterator[Finding]:
    """A value is a number where verl's own is one, and true or false where verl's own is.

    verl: its tree's default value tells the kind; a null or an interpolation there allows any.
    """
    for key, value, default in _pairs(run.values.raw, verl_tree.read(run.tree)):
        if isinstance(default, bool):
            wanted, right = "true or false", isinstance(value, bool)
        else:
            wanted, right = "a number", isinstance(value, (int, float)) and not isinstance(value, bool)
        if not right:
            shown = f'the text "{value}"' if isinstance(value, str) else str(value).lower()
            plain = str(default).lower()
            yield error(key, message=f"{key} is {shown}, and verl needs {wanted}.", fix=f"{key}={plain}")


def _pairs(
    raw: Mapping[str, Any], tree: Mapping[str, Any], at: str = ""
) -> Iterator[tuple[str, Any, bool | int | float]]:
    """Plain values of the run beside the number or flag that verl has at the same place: key, value, default."""
    for name, default in tree.items():
        value, key = raw.get(name), f"{at}{name}"
        if isinstance(default, dict) and isinstance(value, dict):
            yield from _pairs(value, default, f"{key}.")
        elif isinstance(default, (bool, int, float)) and value is not None and "${" not in str(value):
            yield key, value, default

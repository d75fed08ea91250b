"""What is typed is read by the shell and by Hydra as the value that was meant."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from opd_conf.typed import argument


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, "a=3"),
        (1e-6, "a=1e-06"),
        (None, "a=null"),
        (True, "a=true"),
        ("auto", "a=auto"),
        ("64", "'a=\"64\"'"),
        ("null", "'a=\"null\"'"),
        ("a b", "'a=\"a b\"'"),
        ([1, "x"], "'a=[1,x]'"),
        ({"b": "x#"}, "'a={b:\"x#\"}'"),
    ],
)
def test_values_as_they_are_typed(value, shown):
    assert argument("a", value) == shown
    [word] = shlex.split(shown)
    assert OverridesParser.create().parse_override(word).value() == value

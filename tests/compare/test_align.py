"""Two runs step by step, and why they differ."""

import math

import pytest

from opd_conf.compare.align import Tolerance, align
from opd_conf.compare.differences import Difference, differences
from opd_conf.compare.runs import read
from opd_conf.errors import UserError

LOSS = "actor/distillation/loss"


def _only(found, metric=LOSS):
    [distance] = [each for each in found if each.metric == metric]
    return distance


def test_distances_are_worked_out_over_common_steps(write, step):
    one = read(write("a", [step(loss=1.0), step(loss=1.0), step(loss=1.0)]))
    other = read(write("b", [step(loss=1.0), step(loss=1.25)]))
    found = _only(align(one, other, Tolerance(relative=0.1)))
    assert (found.steps, found.largest, found.largest_at, found.mean) == (2, 0.25, 2, 0.125)
    assert (found.relative, found.first_beyond) == (pytest.approx(0.2), 2)


def test_what_is_beyond_stands_first_and_what_is_equal_is_within(write, step):
    one = read(write("a", [step(loss=1.0, reward=0.5)]))
    other = read(write("b", [step(loss=1.0, reward=0.25)]))
    found = align(one, other, Tolerance())
    assert found[0].metric == "critic/score/mean"
    assert [distance.metric for distance in found if distance.first_beyond] == ["critic/score/mean"]


@pytest.mark.parametrize(
    ("a", "b", "holds"),
    [
        (1.0, 1.01, True),
        (1.0, 1.02, False),
        (0.0, 1e-9, True),
        (0.0, 1e-7, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, 1.0, False),
    ],
)
def test_a_tolerance_is_relative_with_a_floor(a, b, holds):
    assert Tolerance(relative=0.01, absolute=1e-8).holds(a, b) is holds


def test_nan_in_one_run_alone_is_infinitely_far(write, step):
    one, other = read(write("a", [step(loss=0.5), step(loss=None)])), read(write("b", [step(loss=0.5)] * 2))
    found = _only(align(one, other, Tolerance()))
    assert (found.largest, found.largest_at, found.first_beyond) == (math.inf, 2, 2)
    both = read(write("c", [step(loss=0.5), step(loss=None)]))
    assert _only(align(one, both, Tolerance())).first_beyond is None


def test_times_are_left_out_unless_asked_for(write, step):
    one, other = read(write("a", [step(seconds=1.0)])), read(write("b", [step(seconds=9.0)]))
    assert not any(each.first_beyond for each in align(one, other, Tolerance()))
    [found] = align(one, other, Tolerance(), ["perf/time*"])
    assert (found.metric, found.first_beyond) == ("perf/time_per_step", 1)


def test_nothing_to_compare_is_said(write, step):
    one, none = read(write("a", [step()])), read(write("b"))
    with pytest.raises(UserError, match="no step in common: 1 in .*, 0 in"):
        align(one, none, Tolerance())
    with pytest.raises(UserError, match="no metric actor/no in common"):
        align(one, one, Tolerance(), ["actor/no"])


def test_differences_are_of_configuration_versions_and_code(write):
    settings = "actor: {{lr: {lr}}}\ntrainer: {{default_local_dir: {lr}}}"
    facts = {"versions": {"verl": "0.9.1", "torch": "2.12"}, "python": "3.11", "git": {"commit": "abc"}}
    one = read(write("a", settings=settings.format(lr=1), facts=facts))
    other = read(write("b", settings=settings.format(lr=2), facts={**facts, "versions": {"verl": "0.9.1"}}))
    assert differences([one, other]) == [
        Difference("configuration", "actor.lr", (1, 2)),
        Difference("versions", "torch", ("2.12", None)),
    ]


def test_a_configuration_that_cannot_be_read_is_not_called_different(write):
    assert differences([read(write("a", settings="actor: {lr: 1}")), read(write("b"))]) == []

"""docs/rules.md: every rule has its source, its severities, and an example about which it speaks."""

import pytest

from opd_conf.checks import RULES
from opd_conf.checks.__main__ import left_to_verl, severities, source
from opd_conf.checks.examples import examples, finding


def test_every_rule_has_an_example():
    assert sorted(examples()) == sorted(RULES)


@pytest.mark.parametrize("id", RULES)
def test_a_rule_speaks_about_its_example(id):
    said = finding(id)
    assert said.severity in severities(RULES[id])
    assert said.message
    assert said.keys


def test_severities_are_read_from_the_rules():
    assert severities(RULES["fsdp2_on"]) == ["error"]
    assert severities(RULES["hccl_patience"]) == ["error", "warning"]
    assert severities(RULES["memory_fits"]) == ["error", "warning", "note"]


def test_sources_are_paragraphs_of_the_rules():
    assert source(RULES["fsdp2_on"]) == "verl: workers/config/actor.py:FSDPActorConfig.__post_init__."
    assert all(source(rule) for rule in RULES.values())


def test_what_is_left_to_verl_has_a_reason():
    assert all(row.keys() == {"what", "verl", "why"} and all(row.values()) for row in left_to_verl())

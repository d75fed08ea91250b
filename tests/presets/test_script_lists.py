"""verl's own scripts typed here: nothing is wrong but the faults that they have, and each of these is told."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from opd_conf import checks, verl_tree
from opd_conf.compose import compose

LISTS: dict[str, Any] = yaml.load(Path(__file__).with_name("script_lists.yaml").read_text(), yaml.BaseLoader)
SCRIPTS: dict[str, Any] = LISTS["scripts"]

UNSEEN = {"data_files", "bytecode_there"}
"""What this machine has not made yet."""

FAULTS = {
    "qwen3_0_6b_opd_veomni": {"teacher_load_format"},
    "qwen3_5_2b_fsdp_npu": {"engine_kwargs_backend"},
    "qwen3_8b_mopd_fsdp": {"teacher_load_format"},
    "qwen3_8b_mopd_veomni": {"teacher_load_format"},
}
"""Errors of the scripts: teachers with random weights; an argument of vLLM where verl does not look."""

FSDP1 = {"qwen3_8b_fsdp", "qwen3_8b_mopd_fsdp", "qwen3_vl_8b_fsdp"}
"""Scripts that leave actor.strategy at verl's default. Here the engine sets it."""

QWEN3_5 = {"compile_setting_read", "patches_counted", "loss_setting_unused"}
LESSER = {
    "qwen3_0_6b_opd_veomni": {"teacher_lengths", "loss_setting_unused", "veomni_rate_falls"},
    "qwen3_5_2b_fsdp_gpu": QWEN3_5,
    "qwen3_5_2b_fsdp_npu": QWEN3_5,
    "qwen3_5_4b_fsdp": QWEN3_5 | {"setting_unused"},
    "qwen3_8b_fsdp": {"loss_setting_unused"},
    "qwen3_8b_mopd_fsdp": {"teacher_lengths", "patches_counted", "loss_setting_unused"},
    "qwen3_8b_mopd_veomni": {"teacher_lengths", "patches_counted", "loss_setting_unused", "veomni_rate_falls"},
    "qwen3_vl_8b_fsdp": {"patches_counted", "loss_setting_unused"},
}
"""What is wrong with them beside: lengths and patches miscounted, a rate that falls to 0, settings that do nothing."""

MEGATRON = """\
# @package _global_
# Not among the engines here: this is all that one of a user's own needs.
defaults: [/verl/ppo_megatron_trainer@_global_, _self_]
"""


def typed(script: dict[str, Any]) -> list[str]:
    """The script's arguments, as the shell hands them over."""
    values = {key: value for block in script["shared"] for key, value in LISTS["shared"][block].items()} | script["own"]
    return [f"{key}={value}".replace("$HOME", os.environ["HOME"]) for key, value in values.items()]


def found(config: DictConfig) -> tuple[set[str], set[str]]:
    """What is found: errors, and anything less."""
    seen = [finding for finding in checks.findings(config) if finding.id not in UNSEEN]
    errors = {finding.id for finding in seen if finding.severity == "error"}
    return errors, {finding.id for finding in seen} - errors


def here(name: str, folder: Path) -> DictConfig:
    """The script's arguments typed after our groups; engines of the folder's are there too, as with --config-dir."""
    (folder / "engine").mkdir()
    (folder / "engine" / "megatron.yaml").write_text(MEGATRON)
    script = SCRIPTS[name]
    own = f"hydra.searchpath=['verl://','file://{folder}']"
    return compose([own, *script["ours"].split(), *typed(script), "action=check"]).config


def alone(name: str, folder: Path) -> DictConfig:
    """The script as verl runs it: its own tree, none of our values; of ours only what says where it runs."""
    config, tree = here(name, folder), verl_tree.load(SCRIPTS[name]["tree"])
    for override in OverridesParser.create().parse_overrides(typed(SCRIPTS[name])):
        OmegaConf.update(tree, override.key_or_group, override.value(), force_add=override.is_add())
    with open_dict(config):
        config.update(tree)
    return config


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_typed_here(name, tmp_path):
    errors, _ = found(here(name, tmp_path))
    assert errors == FAULTS.get(name, set())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_as_verl_runs_it(name, tmp_path):
    errors, lesser = found(alone(name, tmp_path))
    assert errors == FAULTS.get(name, set()) | ({"fsdp2_on"} if name in FSDP1 else set())
    assert lesser >= LESSER.get(name, set())

"""Rules about the engine that trains the student."""

import pytest

from opd_conf.checks import engine

ACTOR = "actor_rollout_ref.actor"
STRATEGY = f"{ACTOR}.strategy"


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        ("=fspd2", "actor.strategy is fspd2; with actor.fsdp_config it can be fsdp2 or fsdp or fsdp_turbo", "fsdp2"),
        ("=veomni", "engine=veomni brings its settings", "fsdp2"),
        ("=fsdp2 engine=veomni", "with actor.veomni it can be veomni", "veomni"),
    ],
)
def test_a_strategy_that_the_engines_settings_do_not_fit(fires, overrides, message, fix):
    fires("strategy_known", f"{STRATEGY}{overrides}", message, f"{STRATEGY}={fix}")


@pytest.mark.parametrize("nested", ["", f" {ACTOR}.fsdp_config.strategy=fsdp2"])
def test_fsdp1_instead_of_fsdp2(fires, nested):
    fires("fsdp2_on", f"{STRATEGY}=fsdp{nested}", "FSDP1 would run", f"{STRATEGY}=fsdp2")


@pytest.mark.parametrize("rule", ["strategy_known", "fsdp2_on"])
@pytest.mark.parametrize("engine", ["fsdp2", "veomni"])
def test_shipped_engines_are_what_they_say(quiet, rule, engine):
    quiet(rule, f"engine={engine}")


@pytest.mark.parametrize(
    ("key", "engine"),
    [
        (f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size", "fsdp2"),
        (f"{ACTOR}.ulysses_sequence_parallel_size", "fsdp2"),
        (f"{ACTOR}.veomni.ulysses_parallel_size", "veomni"),
    ],
)
def test_ranks_that_share_a_sequence_divide_the_world(fires, key, engine):
    message = "3 ranks are to share a sequence, and the student has 4 accelerators"
    fires("ulysses_divides_world", f"engine={engine} {key}=3", message, f"{key}=2")


def test_two_ranks_that_share_a_sequence_are_fine(quiet):
    quiet("ulysses_divides_world", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2")


@pytest.mark.parametrize("path", ["Qwen/Qwen3.5-4B", "/models/qwen3_5-2b", "Qwen/Qwen3.5-35B-A3B-Instruct"])
def test_qwen3_5_on_veomni_on_npus(path, one, say):
    settings = {"actor_rollout_ref.model.path": path}
    groups = ("platform=npu", "student=qwen2_5_0_5b", "teacher=qwen2_5_3b_instruct", "engine=veomni")
    severity, message, fix = one(engine.qwen3_5_on_veomni, settings, groups)
    assert (severity, fix) == ("error", "engine=fsdp2")
    assert f"{path} cannot be trained with VeOmni on an NPU" in message
    assert say(engine.qwen3_5_on_veomni, {}, groups) == []
    assert say(engine.qwen3_5_on_veomni, settings, groups[:3]) == []

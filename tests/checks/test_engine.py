"""Rules about the engine that trains the student."""

import pytest

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


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (f"{ACTOR}.fsdp_config.fsdp_size=3", "is 3, and 4 ranks", f"{ACTOR}.fsdp_config.fsdp_size=2"),
        (f"{ACTOR}.fsdp_config.fsdp_size=0", "is 0, and 4 ranks", f"{ACTOR}.fsdp_config.fsdp_size=-1"),
        (
            f"engine=veomni cluster=1x16 {ACTOR}.veomni.ulysses_parallel_size=2 {ACTOR}.veomni.fsdp_size=3",
            "is 3, and 4 ranks",
            f"{ACTOR}.veomni.fsdp_size=2",
        ),
    ],
)
def test_shards_that_do_not_divide_the_ranks(fires, overrides, message, fix):
    fires("shards_divide_ranks", overrides, message, fix)


@pytest.mark.parametrize("size", [-1, 1, 2, 4, 8])
def test_shards_that_do(quiet, size):
    quiet("shards_divide_ranks", f"{ACTOR}.fsdp_config.fsdp_size={size}")
    quiet("shards_divide_ranks", f"engine=veomni {ACTOR}.veomni.fsdp_size={size}")


SHARED = [
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2",
    f"engine=veomni {ACTOR}.veomni.ulysses_parallel_size=2",
]
PACKED = "actor_rollout_ref.model.use_remove_padding"


@pytest.mark.parametrize("shared", SHARED)
def test_sequences_that_are_shared_are_packed(fires, quiet, shared):
    message = "2 ranks are to share a sequence, which takes packed sequences"
    fires("packed_when_shared", f"{shared} {PACKED}=false", message, f"{PACKED}=true")
    quiet("packed_when_shared", shared)
    quiet("packed_when_shared", f"{PACKED}=false")


@pytest.mark.parametrize("key", [f"{ACTOR}.pad_to_length", f"{ACTOR}.fsdp_config.pad_to_length"])
def test_top_k_with_fixed_lengths(fires, quiet, key):
    fires("top_k_unpadded", f"loss_mode=forward_kl_topk {key}=true", "exclude each other", f"{key}=false")
    quiet("top_k_unpadded", f"loss_mode=k1 {key}=true")


def test_top_k_with_fixed_lengths_on_veomni(fires):
    key = f"{ACTOR}.veomni.pad_to_length"
    fires("top_k_unpadded", f"engine=veomni loss_mode=forward_kl_topk {key}=true", "exclude", f"{key}=false")


def test_routes_are_replayed_for_packed_sequences(fires, quiet):
    mode, packed = f"{ACTOR}.veomni.router_replay.mode", "actor_rollout_ref.model.use_remove_padding"
    given = f"engine=veomni {mode}=R3"
    fires("replay_packed", f"{given} {packed}=false", f"{mode} is R3, and sequences are not packed", f"{mode}=disabled")
    quiet("replay_packed", given)
    ref = "actor_rollout_ref.ref"
    quiet("replay_packed", f"engine=veomni {ref}.veomni.router_replay.mode=R3")
    fires(
        "replay_packed",
        f"engine=veomni {ACTOR}.use_kl_loss=true {ref}.log_prob_micro_batch_size_per_gpu=1 "
        f"{ref}.veomni.router_replay.mode=R3",
        f"({ref}.use_remove_padding)",
        f"{ref}.veomni.router_replay.mode=disabled",
    )


def test_routes_are_recorded_in_a_pass_that_is_run(fires, quiet):
    mode, bypass = f"{ACTOR}.veomni.router_replay.mode", "algorithm.rollout_correction.bypass_mode"
    fires("replay_records", f"engine=veomni {mode}=R2 {bypass}=true", f"{mode} is R2", f"{bypass}=false")
    quiet("replay_records", f"engine=veomni {mode}=R3 {bypass}=true")

"""Rules of batch arithmetic. The usual run: B = m = 128 prompts, n = 1, micro-batches of 1, four ranks."""

from dataclasses import replace

import pytest

from opd_conf.checks import batch
from opd_conf.checks.batch import batch_splits_over_world
from opd_conf.view import view

BATCH = "data.train_batch_size"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MINI = f"{ACTOR}.ppo_mini_batch_size"
MICRO = f"{ACTOR}.ppo_micro_batch_size"
LOG_PROB = f"{ROLLOUT}.log_prob_micro_batch_size"
DYNAMIC = f"{ACTOR}.use_dynamic_bsz=true"
ULYSSES = f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size"
VEOMNI_ULYSSES = f"engine=veomni {ACTOR}.veomni.ulysses_parallel_size"


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (f"{BATCH}=30", "30 prompts x 1 answers = 30 sequences do not split evenly over 4 student", f"{BATCH}=32"),
        (f"{BATCH}=9 {ROLLOUT}.n=2", "9 prompts x 2 answers = 18 sequences", f"{BATCH}=8"),
        (f"{BATCH}=2", "2 prompts", f"{BATCH}=4"),
        (f"{BATCH}=36 {ULYSSES}=2 trainer.n_gpus_per_node=8", "over 8 student accelerators", f"{BATCH}=32"),
    ],
)
def test_sequences_split_over_the_world(fires, overrides, message, fix):
    fires("batch_splits_over_world", f"cluster=1x16 trainer.n_gpus_per_node=4 {overrides}", message, fix)


@pytest.mark.parametrize("overrides", [f"{BATCH}=30 {DYNAMIC}", f"{BATCH}=30 {ROLLOUT}.n=2", f"{BATCH}=4"])
def test_sequences_split_or_batches_are_dynamic(quiet, overrides):
    quiet("batch_splits_over_world", overrides)


def test_megatron_counts_in_micro_batches_of_data_parallel_ranks(compose):
    run = view(compose("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b"))
    run = replace(run, engine="megatron", model_parallel=2, micro_batch=replace(run.micro_batch, per_gpu=3))
    [finding] = batch_splits_over_world(run)
    assert "over 6 (data-parallel size 2 x micro-batch 3)" in finding.message


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (f"{MINI}=48", "filled up from 128 to 144 sequences, 16 of them made up", f"{MINI}=32"),
        (f"{BATCH}=32 {MINI}=128", "filled up from 32 to 128 sequences, 96 of them", f"{MINI}=32"),
        (f"{BATCH}=64 {MINI}=256 {DYNAMIC}", "filled up from 64 to 256 sequences, 192 of them", f"{MINI}=64"),
        (f"{MINI}=48 {ROLLOUT}.n=8", "filled up from 1024 to 1152 sequences, 128 of them", f"{MINI}=32"),
    ],
)
def test_the_batch_is_a_multiple_of_the_mini_batch(fires, overrides, message, fix):
    fires("mini_batch_divides_batch", overrides, message, fix)


@pytest.mark.parametrize("overrides", ["", f"{MINI}=32", f"{MINI}=4 {ROLLOUT}.n=8"])
def test_mini_batches_that_fill_the_batch(quiet, overrides):
    quiet("mini_batch_divides_batch", overrides)


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (f"{MINI}=2", "A mini-batch of 2 prompts x 1 answers = 2 sequences does not split evenly over 4", f"{MINI}=4"),
        (f"{BATCH}=30 {DYNAMIC}", "A mini-batch of 30 prompts", f"{BATCH}=32"),
        (f"{MINI}=1 {VEOMNI_ULYSSES}=2", "over 2 data-parallel ranks", f"{MINI}=2"),
        (f"{MINI}=1 {ROLLOUT}.n=2", "1 prompts x 2 answers = 2 sequences", f"{MINI}=2"),
    ],
)
def test_a_mini_batch_splits_over_the_ranks(fires, overrides, message, fix):
    fires("mini_batch_splits_over_ranks", overrides, message, fix)


@pytest.mark.parametrize("sequence_parallel", [f"{ULYSSES}=2", f"{ACTOR}.ulysses_sequence_parallel_size=2"])
def test_ranks_that_share_sequences_count_once(quiet, sequence_parallel):
    quiet("mini_batch_splits_over_ranks", f"{MINI}=2 {sequence_parallel}")


def test_a_share_of_the_mini_batch_is_cut_into_micro_batches(fires):
    message = "A rank's share of a mini-batch is 32 sequences, no multiple of its micro-batch of 3"
    fires("micro_batch_divides_mini_batch", f"{MICRO}_per_gpu=3", message, f"{MICRO}_per_gpu=2")


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (f"{LOG_PROB}_per_gpu=3", "share of a batch is 32 sequences", f"{LOG_PROB}_per_gpu=2"),
        (
            f"{ACTOR}.use_kl_loss=true {REF}.log_prob_micro_batch_size_per_gpu=5",
            "micro-batch of 5",
            f"{REF}.log_prob_micro_batch_size_per_gpu=4",
        ),
    ],
)
def test_a_share_of_the_batch_is_cut_for_log_probabilities(fires, overrides, message, fix):
    fires("micro_batch_divides_batch", overrides, message, fix)


@pytest.mark.parametrize("rule", ["micro_batch_divides_mini_batch", "micro_batch_divides_batch", "micro_batch_set"])
@pytest.mark.parametrize("overrides", ["", f"{DYNAMIC} {MICRO}_per_gpu=3 {LOG_PROB}_per_gpu=3", f"{MICRO}_per_gpu=8"])
def test_micro_batches_that_divide_or_do_not_count(quiet, rule, overrides):
    quiet(rule, overrides)


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (f"{MICRO}_per_gpu=null", "per_gpu is not set, and batches are not dynamic", f"{MICRO}_per_gpu=1"),
        (f"{MICRO}=4", f"{MICRO} (4) and {MICRO}_per_gpu (1) are both set", f"{MICRO}=null"),
        (
            f"{LOG_PROB}=4 {LOG_PROB}_per_gpu=null",
            f"{LOG_PROB}=4, deprecated",
            f"{LOG_PROB}_per_gpu=1 {LOG_PROB}=null",
        ),
        (
            "algorithm.use_kl_in_reward=true",
            f"{REF}.log_prob_micro_batch_size_per_gpu is not set",
            f"{REF}.log_prob_micro_batch_size_per_gpu=1",
        ),
    ],
)
def test_each_phase_has_one_micro_batch_in_the_way_verl_reads(fires, overrides, message, fix):
    fires("micro_batch_set", overrides, message, fix)


def test_dynamic_batches_are_for_both_phases(fires):
    key = f"{ROLLOUT}.log_prob_use_dynamic_bsz"
    fires("dynamic_batches_agree", f"{DYNAMIC} {key}=false", f"is true and {key} is false", f"{key}=true")


def test_log_probabilities_follow_the_actor(quiet):
    quiet("dynamic_batches_agree", DYNAMIC)


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            f"{ACTOR}.ppo_max_token_len_per_gpu=2048",
            "holds 2048 tokens, and one sequence may have 1024 + 2048 = 3072",
            f"{ACTOR}.ppo_max_token_len_per_gpu=3072",
        ),
        (
            f"{ROLLOUT}.log_prob_max_token_len_per_gpu=3071",
            "holds 3071 tokens",
            f"{ROLLOUT}.log_prob_max_token_len_per_gpu=3072",
        ),
        (
            f"{ACTOR}.ppo_max_token_len_per_gpu=1024 {ULYSSES}=2",
            "holds 1024 x 2 ranks that share a sequence = 2048 tokens",
            f"{ACTOR}.ppo_max_token_len_per_gpu=1536",
        ),
    ],
)
def test_a_dynamic_batch_holds_the_longest_sequence(fires, overrides, message, fix):
    fires("token_budget", f"{DYNAMIC} {overrides}", message, fix)


@pytest.mark.parametrize(
    "overrides",
    [
        f"{DYNAMIC} {ACTOR}.ppo_max_token_len_per_gpu=3072",
        f"{DYNAMIC} {ACTOR}.ppo_max_token_len_per_gpu=1536 {ULYSSES}=2",
        f"{ACTOR}.ppo_max_token_len_per_gpu=8",
    ],
)
def test_budgets_that_suffice_or_do_not_count(quiet, overrides):
    quiet("token_budget", overrides)


GPU = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
NPU = ("platform=npu", *GPU[1:])
TEXT = ("platform=gpu", "student=qwen2_5_0_5b", "teacher=qwen2_5_3b_instruct", "data=gsm8k")
ONE = {f"{ACTOR}.use_dynamic_bsz": False, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1}


def test_one_sequence_at_a_time(one):
    severity, message, fix = one(batch.micro_batch_of_one, ONE, TEXT)
    assert severity == "warning"
    assert "goes through 32 sequences an accelerator one by one; packed into 8192 tokens" in message
    assert fix == f"{ACTOR}.use_dynamic_bsz=true {ACTOR}.ppo_max_token_len_per_gpu=8192"
    assert one(batch.micro_batch_of_one, {}, GPU)[0] == "note"


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        ({}, TEXT),
        (ONE | {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4}, TEXT),
        (ONE | {"data.max_response_length": 16384}, TEXT),
        (ONE | {"actor_rollout_ref.model.use_remove_padding": False}, TEXT),
        (ONE | {"data.train_batch_size": 4}, TEXT),
        (ONE, NPU),
        (ONE, ("experiment=smoke",)),
    ],
)
def test_where_packing_helps_nobody(settings, groups, say):
    assert say(batch.micro_batch_of_one, settings, groups) == []

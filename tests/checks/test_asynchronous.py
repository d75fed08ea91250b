"""Rules about the trainer's modes and the pools that come with them."""

import pytest

MODE = "trainer.v1.trainer_mode"
ROLLOUT = "actor_rollout_ref.rollout"
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
REWARD = "reward.reward_model"
SEPARATE = (
    f"{MODE}=separate_async {MINI}=32 {ROLLOUT}.nnodes=1 {ROLLOUT}.checkpoint_engine.backend=nccl cluster=2x8 "
    "trainer.n_gpus_per_node=4 distillation.n_gpus_per_node=4"
)


def test_prompts_are_fetched_in_parts_of_a_batch(fires, quiet):
    fires("generated_in_whole_batches", "data.gen_batch_size=48", "does not divide a batch", "data.gen_batch_size=32")
    quiet("generated_in_whole_batches", "data.gen_batch_size=64")
    quiet("generated_in_whole_batches", f"data.gen_batch_size=48 {MODE}=colocate_async")
    quiet("generated_in_whole_batches", "data.gen_batch_size=48 algorithm.filter_groups.enable=true")


@pytest.mark.parametrize(
    ("overrides", "sizes", "fix"),
    [
        ("", "4 x 128 = 512 prompts, and it is 128", f"data.train_batch_size=128 {MINI}=32"),
        (f"{MINI}=64", "4 x 64 = 256 prompts, and it is 128", f"data.train_batch_size=256 {MINI}=64"),
    ],
)
def test_batches_of_separate_pools(fires, quiet, overrides, sizes, fix):
    fires("separate_batches", f"{MODE}=separate_async {overrides}", sizes, fix)
    quiet("separate_batches", overrides)


def test_separate_servers_have_nodes_and_a_way_for_weights(check, quiet):
    found = [finding for finding in check(f"{MODE}=separate_async") if finding.id == "separate_rollout"]
    assert [finding.fix for finding in found] == [f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.checkpoint_engine.backend=nccl"]
    for rule in ("separate_rollout", "separate_batches", "more_pools_fit"):
        quiet(rule, f"{SEPARATE} {ROLLOUT}.n_gpus_per_node=8")
        quiet(rule)


def test_a_reward_model_has_accelerators(fires, quiet):
    pool = f"{REWARD}.enable_resource_pool"
    fires(
        "reward_model_placed", f"cluster=2x8 cluster.nodes=3 {pool}=true", f"{REWARD}.nnodes is 0", f"{REWARD}.nnodes=1"
    )
    fires(
        "reward_model_placed",
        f"{SEPARATE} {ROLLOUT}.n_gpus_per_node=4 {REWARD}.enable=true",
        "needs accelerators of its own",
        f"{pool}=true {REWARD}.nnodes=1 {REWARD}.n_gpus_per_node=1",
    )
    quiet("reward_model_placed", f"{REWARD}.enable=true")


def test_more_pools_than_accelerators(fires, quiet):
    own = f"{REWARD}.enable_resource_pool=true {REWARD}.nnodes=1"
    fires("more_pools_fit", own, "student 4, teacher 4, reward model 8 are 16 accelerators", "cluster.nodes=2")
    quiet("more_pools_fit", f"cluster=1x16 trainer.n_gpus_per_node=4 distillation.n_gpus_per_node=4 {own}")
    quiet("more_pools_fit", "trainer.n_gpus_per_node=8")  # of the two usual pools another rule tells


def test_the_queue_holds_a_step(fires, quiet):
    key = "transfer_queue.backend.SimpleStorage.total_storage_size"
    fires("queue_holds_step", f"{key}=1000 {ROLLOUT}.n=8", "128 x (1 + 8) = 1152", f"{key}=2304")
    quiet("queue_holds_step", f"{key}=1152 {ROLLOUT}.n=8")
    quiet("queue_holds_step", f"{key}=null")

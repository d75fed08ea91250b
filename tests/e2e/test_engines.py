"""engine=veomni and engine=fsdp2 train the same student to the same losses, two ranks each, in the whole stack."""

import pytest

# Greedy rollouts, so that both see the same tokens; the tokens of later steps depend on the weights of earlier ones.
OVERRIDES = (
    "loss_mode=k1",
    "cluster.accelerators_per_node=3",
    "trainer.n_gpus_per_node=2",
    "actor_rollout_ref.rollout.top_k=1",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.actor.ppo_epochs=1",
    "platform.mixed_precision=null",  # VeOmni multiplies in bf16 on any platform
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    # One update a step, and a small one: rounding is not blown up before it is compared.
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    "actor_rollout_ref.actor.optim.lr=1e-4",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
    "trainer.save_freq=-1",
)


def test_both_engines_learn_alike(start):
    losses = {}
    for engine in ("fsdp2", "veomni"):
        run = start(f"engine={engine}", *OVERRIDES, name=engine)
        assert run.end() == 0, run.text()
        losses[engine] = [step.loss for step in run.steps()]
    assert len(losses["fsdp2"]) == 2
    assert losses["veomni"] == pytest.approx(losses["fsdp2"], rel=5e-3)

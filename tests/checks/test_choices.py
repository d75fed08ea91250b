"""Names out of closed sets."""

import pytest
from omegaconf import OmegaConf

from opd_conf.checks.choices import CHOICES

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LOSS = "distillation.distillation_loss"
REWARDS = f"{LOSS}.use_task_rewards=true"


@pytest.mark.parametrize(
    ("key", "wrong", "right", "with_it"),
    [
        (f"{ACTOR}.loss_agg_mode", "token_mean", "token-mean", ""),
        (f"{ACTOR}.loss_agg_mode", "null", "token-mean", ""),
        (f"{LOSS}.policy_loss_mode", "gspo", "vanilla", ""),
        (f"{ACTOR}.policy_loss.loss_mode", "gsp", "gspo", ""),
        (f"{ACTOR}.policy_loss.loss_mode", "vanila", "vanilla", f"loss_mode=k3 {REWARDS}"),
        (f"{ACTOR}.kl_loss_type", "low_var", "low_var_kl", f"{ACTOR}.use_kl_loss=true"),
        ("algorithm.kl_penalty", "low_var", "low_var_kl", "algorithm.use_kl_in_reward=true"),
        (f"{ACTOR}.optim.lr_scheduler_type", "linear", "constant", ""),
        (f"{ACTOR}.optim.lr_scheduler_type", "cosin", "cosine", "engine=veomni"),
        (f"{ACTOR}.optim.warmup_style", "linear", "constant", ""),
        (f"{ROLLOUT}.mode", "sync", "async", ""),
        (f"{ROLLOUT}.agent.default_agent_loop", "tool_agnt", "tool_agent", ""),
        (f"{ROLLOUT}.checkpoint_engine.backend", "hccl", "nccl", ""),
        ("reward.reward_manager.name", "prime", "naive", ""),
        ("trainer.v1.trainer_mode", "colocate", "colocate_async", ""),
        ("trainer.resume_mode", "disabled", "disable", ""),
        (
            "actor_rollout_ref.model.fused_kernel_options.impl_backend",
            "trition",
            "triton",
            "actor_rollout_ref.model.use_fused_kernels=true",
        ),
    ],
)
def test_a_name_that_verl_lacks(fires, key, wrong, right, with_it):
    fires("choice_known", f"{with_it} {key}={wrong}", f"{key} is {wrong}; ", f"{key}={right}")


@pytest.mark.parametrize(
    "overrides",
    [
        *("", "engine=veomni", f"{ACTOR}.optim.lr_scheduler_type=linear engine=veomni"),
        f"{ACTOR}.kl_loss_type=k3+ {ACTOR}.use_kl_loss=true",
        f"{ACTOR}.kl_loss_type=unread",
        f"loss_mode=k3 {ACTOR}.policy_loss.loss_mode=unread",
        f"{ACTOR}.policy_loss.loss_mode=mine actor_rollout_ref.model.external_lib=mine",
        f"{ROLLOUT}.agent.default_agent_loop=mine {ROLLOUT}.agent.agent_loop_config_path=agents.yaml",
        f"{ROLLOUT}.checkpoint_engine.backend=mine {ROLLOUT}.checkpoint_engine.custom_backend_module=mine",
        "reward.reward_manager.name=mine reward.reward_manager.source=importlib",
        "actor_rollout_ref.model.fused_kernel_options.impl_backend=unread",
    ],
)
def test_names_that_verl_has_or_never_reads(quiet, overrides):
    quiet("choice_known", overrides)


def test_every_choice_stands_in_verls_configuration(compose):
    run = ("platform=gpu", "student=tiny", "teacher=tiny")
    trees = [compose(*run, f"engine={engine}") for engine in ("fsdp2", "veomni")]
    for choice in CHOICES:
        found = [OmegaConf.select(tree, choice.key, default="nowhere") for tree in trees]
        assert any(value in (*choice.names, None) for value in found), choice.key

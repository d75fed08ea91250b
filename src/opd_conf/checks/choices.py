"""Names out of closed sets. verl compares most of them where they are used: in a worker, or at the first update."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from opd_conf.checks.finding import Finding, error
from opd_conf.names import nearest
from opd_conf.view import ACTOR, LOSS, ROLLOUT, View


def _always(_: View) -> bool:
    return True


@dataclass(frozen=True)
class Choice:
    """A key and the names that it can have; `read`: whether this run reads it at all; `optional`: null is one too."""

    key: str
    names: tuple[str, ...]
    read: Callable[[View], bool] = _always
    optional: bool = False


def _uses_rewards(run: View) -> bool:
    """Whether the loss of reinforcement learning is computed: trainer/distillation/losses.py:distillation_ppo_loss."""
    return run.policy_gradient or run.setting(f"{LOSS}.use_task_rewards") is not False


def _engine(*blocks: str) -> Callable[[View], bool]:
    return lambda run: run.engine in blocks


def _not_extended(key: str) -> Callable[[View], bool]:
    """Whether no module of the user's may add names."""
    return lambda run: not run.setting(key) and not run.setting("actor_rollout_ref.model.external_lib")


PENALTIES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")

CHOICES = (
    # workers/config/actor.py:ActorConfig.__post_init__
    Choice(
        f"{ACTOR}.loss_agg_mode",
        ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
    ),
    # workers/config/distillation.py:DistillationLossConfig.__post_init__
    Choice(f"{LOSS}.policy_loss_mode", ("vanilla",)),
    # trainer/ppo/core_algos.py:get_policy_loss_fn
    Choice(
        f"{ACTOR}.policy_loss.loss_mode",
        (
            *("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro"),
            *("cispo", "bypass_mode"),
        ),
        lambda run: _uses_rewards(run) and not run.setting("actor_rollout_ref.model.external_lib"),
    ),
    # trainer/ppo/core_algos.py:kl_penalty_forward; a `+` behind a name changes the gradient alone
    Choice(
        f"{ACTOR}.kl_loss_type",
        (*PENALTIES, *(f"{name}+" for name in PENALTIES)),
        lambda run: _uses_rewards(run) and run.setting(f"{ACTOR}.use_kl_loss") is True,
    ),
    Choice(
        "algorithm.kl_penalty",
        (*PENALTIES, *(f"{name}+" for name in PENALTIES)),
        lambda run: run.setting("algorithm.use_kl_in_reward") is True,
    ),
    # workers/config/optimizer.py:FSDPOptimizerConfig.__post_init__
    Choice(f"{ACTOR}.optim.lr_scheduler_type", ("constant", "cosine"), _engine("fsdp_config")),
    Choice(f"{ACTOR}.optim.warmup_style", ("constant", "cosine"), _engine("fsdp_config"), optional=True),
    # veomni's optim/lr_scheduler.py:build_lr_scheduler
    Choice(f"{ACTOR}.optim.lr_scheduler_type", ("constant", "linear", "cosine"), _engine("veomni")),
    # workers/rollout/base.py:get_rollout_class
    Choice(f"{ROLLOUT}.mode", ("async",)),
    # experimental/agent_loop/agent_loop.py:AgentLoopWorker._run_agent_loop
    Choice(
        f"{ROLLOUT}.agent.default_agent_loop",
        ("single_turn_agent", "tool_agent"),
        _not_extended(f"{ROLLOUT}.agent.agent_loop_config_path"),
    ),
    # checkpoint_engine/base.py:CheckpointEngineRegistry; Huawei's is registered as nccl too
    Choice(
        f"{ROLLOUT}.checkpoint_engine.backend",
        ("naive", "nccl", "nixl", "mooncake", "kimi_ckpt_engine", "delta_sharded"),
        _not_extended(f"{ROLLOUT}.checkpoint_engine.custom_backend_module"),
    ),
    # experimental/reward_loop/reward_manager/registry.py:get_reward_manager_cls
    Choice(
        "reward.reward_manager.name",
        ("naive", "dapo", "gdpo", "remote", "rate_limited"),
        lambda run: run.setting("reward.reward_manager.source") == "register",
    ),
    # trainer/ppo/v1/trainer_base.py:get_trainer_cls
    Choice("trainer.v1.trainer_mode", ("sync", "colocate_async", "separate_async")),
    # trainer/ppo/v1/trainer_base.py:_load_checkpoint
    Choice("trainer.resume_mode", ("auto", "disable", "resume_path")),
    # models/transformers/monkey_patch.py:patch_forward_with_backends
    Choice(
        "actor_rollout_ref.model.fused_kernel_options.impl_backend",
        ("torch", "triton", "liger"),
        lambda run: run.fused_kernels and run.engine == "fsdp_config",
    ),
)


def choice_known(run: View) -> Iterator[Finding]:
    """Where verl knows certain names only, the name is one of them.

    verl: workers/config/actor.py, workers/config/optimizer.py, trainer/ppo/core_algos.py:get_policy_loss_fn,
    trainer/ppo/v1/trainer_base.py:get_trainer_cls and :_load_checkpoint, and where else checks/choices.py says.
    """
    for choice in CHOICES:
        value = run.setting(choice.key)
        absent = value is None and (choice.optional or not run.has(choice.key))
        if absent or value in choice.names or not choice.read(run):
            continue
        plain = [name for name in choice.names if not name.endswith("+")]
        guess = nearest(str(value), choice.names) or [choice.names[0]]
        others = f"verl has {', '.join(plain)}" if len(plain) > 1 else f"it can only be {plain[0]}"
        shown = "null" if value is None else value
        yield error(choice.key, message=f"{choice.key} is {shown}; {others}.", fix=run.set(choice.key, guess[0]))

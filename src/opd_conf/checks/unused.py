"""Settings that somebody wanted and that do nothing: verl has the key, and this run never reads it.

Only what differs from verl's own value is told of, and each setting once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from opd_conf.checks.finding import Finding, note, warning
from opd_conf.typed import argument
from opd_conf.view import ACTOR, LOSS, ROLLOUT, View

MODEL = "actor_rollout_ref.model"
V = f"{ACTOR}.veomni"


@dataclass(frozen=True)
class Unused:
    """Keys that do nothing in a run for which `when` holds, and what to know about it."""

    keys: tuple[str, ...]
    reason: str
    when: Callable[[View], bool] = lambda _: True


def _no_entropy_gradient(run: View) -> bool:
    """trainer/ppo/v1/trainer_base.py:_update_actor, `calculate_entropy`."""
    return not run.setting(f"{ACTOR}.calculate_entropy") and not run.setting(f"{ACTOR}.entropy_coeff")


def _on_veomni(run: View) -> bool:
    return run.engine == "veomni"


def _not_megatron(run: View) -> bool:
    return run.engine != "megatron"


def _warm(run: View, block: str) -> bool:
    return bool(run.setting(f"{block}.temperature"))


def _rewards_unused(run: View) -> bool:
    return run.setting(f"{LOSS}.use_task_rewards") is False


UNUSED = (
    # trainer/distillation/losses.py:distillation_ppo_loss
    Unused(
        (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"),
        "with use_task_rewards=false it is worked out, by a reference model that costs memory and time, and then left",
        _rewards_unused,
    ),
    Unused(
        (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.entropy_coeff", f"{LOSS}.distillation_loss_coef"),
        "with use_task_rewards=false the student learns from the teacher alone, with weight 1",
        _rewards_unused,
    ),
    # workers/engine/fsdp/transformer_impl.py:prepare_model_outputs
    Unused(
        (f"{ACTOR}.entropy_checkpointing", f"{ACTOR}.fsdp_config.entropy_checkpointing", f"{V}.entropy_checkpointing"),
        "the update works out no entropy (entropy_coeff is 0); for the log-probabilities before it, "
        "entropy_from_logits_with_chunking saves memory",
        _no_entropy_gradient,
    ),
    # trainer/ppo/v1 and workers/engine_workers.py do not read them
    Unused((f"{ACTOR}.grad_clip",), "gradients are clipped by optim.clip_grad"),
    Unused(
        ("data.truncation",), "prompts that are too long are left out by filter_overlong_prompts, or cut on the left"
    ),
    Unused((f"{ROLLOUT}.do_sample",), "answers are sampled by temperature alone", lambda run: _warm(run, ROLLOUT)),
    Unused(
        (f"{ROLLOUT}.val_kwargs.do_sample",),
        "validation samples by val_kwargs.temperature alone, which is 0",
        lambda run: not _warm(run, f"{ROLLOUT}.val_kwargs"),
    ),
    Unused(("data.reward_fn_key",), "the reward is chosen by the column data_source, whatever this says"),
    Unused(("actor_rollout_ref.nccl_timeout",), "process groups are made with PyTorch's own timeout", _not_megatron),
    Unused(
        (
            *(f"{ACTOR}.{name}" for name in ("freeze_vision_tower", "use_prefix_grouper", "calculate_sum_pi_squared")),
            *(f"{MODEL}.tiled_mlp.enabled", f"{ROLLOUT}.multi_stage_wake_up", f"{ROLLOUT}.over_sample_rate"),
            *("data.return_raw_input_ids", "trainer.balance_batch", "trainer.esi_redundant_time"),
            "algorithm.use_pf_ppo",
        ),
        "verl's V1 trainer does not read it",
        _not_megatron,
    ),
    # utils/checkpoint/fsdp_checkpoint_manager.py:save_checkpoint
    Unused(("trainer.default_hdfs_dir",), "checkpoints are written to default_local_dir alone", _not_megatron),
    # workers/engine/veomni/transformer_impl.py
    Unused(
        (f"{ACTOR}.optim.lr_warmup_steps",),
        "VeOmni's engine reads lr_warmup_steps_ratio alone",
        _on_veomni,
    ),
    Unused((f"{MODEL}.enable_activation_offload",), "VeOmni has enable_async_activation_offload", _on_veomni),
    Unused(
        (
            f"{ACTOR}.optim.override_optimizer_config",
            *(f"{V}.{name}" for name in ("enable_full_shard", "load_checkpoint_path", "force_use_huggingface")),
        ),
        "verl's VeOmni engine does not read it",
        _on_veomni,
    ),
    Unused(
        (f"{MODEL}.override_config",),
        "VeOmni builds the model from its own config.json",
        lambda run: _on_veomni(run) and run.platform != "cpu",
    ),
    Unused(
        (f"{MODEL}.use_fused_kernels",),
        "VeOmni's engine uses them for packed sequences alone (use_remove_padding)",
        lambda run: _on_veomni(run) and run.platform != "cpu" and not run.setting(f"{MODEL}.use_remove_padding"),
    ),
)


TOP_K_KEYS = tuple(f"{LOSS}.{name}" for name in ("topk", "log_prob_min_clamp", "use_chunked_topk"))


def keys_unused(run: View) -> tuple[str, ...]:
    """All keys that do nothing in this run, whatever they say; two runs that differ in these alone are the same."""
    found = [key for unused in UNUSED if unused.when(run) for key in unused.keys]
    return tuple(found) if run.uses_top_k else ("topk", *TOP_K_KEYS, *found)


def setting_unused(run: View) -> Iterator[Finding]:
    """Every setting that was given another value than verl's is one that this run reads.

    verl: none of trainer/ppo/v1, trainer/distillation/losses.py, workers/engine_workers.py and workers/engine.
    """
    for unused in UNUSED:
        keys = [key for key in unused.keys if run.changed(key)]
        if keys and unused.when(run):
            shown = ", ".join(f"{key}={run.setting(key)}" for key in keys)
            yield warning(
                *keys,
                message=f"{shown} has no effect: {unused.reason}.",
                fix=" ".join(argument(key, run.default(key)) for key in keys),
            )


def compile_setting_read(run: View) -> Iterator[Finding]:
    """Whether parts of the model are compiled is said to the engine: actor.use_torch_compile is not wired.

    verl: workers/engine/fsdp/transformer_impl.py:FSDPEngine.__init__, workers/engine/veomni/transformer_impl.py.
    """
    key, read = f"{ACTOR}.use_torch_compile", f"{ACTOR}.{run.engine}.use_torch_compile"
    wanted, real = run.setting(key), run.setting(read)
    if run.changed(key) and run.has(read) and wanted != real:
        yield warning(
            key,
            read,
            message=f"{key}={str(wanted).lower()} has no effect: the engine reads {read}, which is "
            f"{str(real).lower()}.",
            fix=argument(read, wanted),
        )


def loss_setting_unused(run: View) -> Iterator[Finding]:
    """Settings of a top-k loss are given to one: estimators compare sampled tokens, and clamp by loss_max_clamp alone.

    verl: trainer/distillation/fsdp/losses.py:compute_forward_kl_topk; VeOmni's fused kernel has a loss of its own.
    """
    keys = TOP_K_KEYS
    fused = run.engine == "veomni" and run.fused_kernels
    given = [key for key in (keys[1:] if run.uses_top_k else keys) if run.changed(key) and run.setting(key)]
    if given and (fused or not run.uses_top_k):
        who = "VeOmni's fused kernel" if run.uses_top_k else f"loss_mode {run.loss_mode}"
        names = ", ".join(f"{key.rpartition('.')[2]}={run.setting(key)}" for key in given)
        yield note(*given, message=f"{who} does not read {names}.", fix=f"leave out {', '.join(given)}")


def offload_in_one_way(run: View) -> Iterator[Finding]:
    """Offloading is asked for in one way: offload_policy makes FSDP2 ignore param_offload and optimizer_offload.

    verl: workers/engine/fsdp/transformer_impl.py:FSDPEngine._build_fsdp_module.
    """
    policy, *others = (
        f"{ACTOR}.fsdp_config.{name}" for name in ("offload_policy", "param_offload", "optimizer_offload")
    )
    on = [key for key in others if run.setting(key) is True]
    if run.strategy == "fsdp2" and run.setting(policy) is True and on:
        names = " and ".join(key.rpartition(".")[2] for key in on)
        yield note(
            policy,
            *on,
            message=f"With offload_policy, {names} counts for nothing: parameters, gradients and optimizer stay on the "
            "CPU, which makes its steps there (least memory, most time).",
            fix=" ".join(f"{key}=false" for key in on),
        )

"""What the student learns from: the distance to the teacher, and the way it becomes a gradient."""

from collections.abc import Iterator

from opd_conf.checks.finding import Finding, error, warning
from opd_conf.names import nearest
from opd_conf.view import LOSS, View

LOSS_MODES = ("k1", "kl", "k2", "mse", "k3", "low_var_kl", "abs", "forward_kl_topk")
"""trainer/distillation/losses.py, the registry."""

TOP_K_BACKENDS = ("vllm", "sglang")
"""workers/config/distillation.py:_validate_topk_logprobs."""

ADV_ESTIMATORS = (
    "grpo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "opo",
    "grpo_passk",
    "gpg",
    "rloo_vectorized",
    "grpo_vectorized",
    "gdpo",
)
"""trainer/ppo/core_algos.py:AdvantageEstimator, without those that the V1 trainer cannot serve."""

UNSERVED_ESTIMATORS = {
    "gae": "it builds a critic, from ~/models/deepseek-llm-7b-chat unless critic.model.path says otherwise",
    "remax": "it needs reward_baselines, which no step of verl's V1 trainer makes",
    "optimal_token_baseline": "it needs sum_pi_squared, which no step of verl's V1 trainer makes",
    "tir_optimal_token_baseline": "it needs sum_pi_squared, which no step of verl's V1 trainer makes",
}


def distillation_enabled(run: View) -> Iterator[Finding]:
    """Distillation is on, by a boolean.

    verl: workers/config/distillation.py:DistillationConfig.__post_init__, trainer/distillation/losses.py.
    """
    if run.distillation_enabled is True:
        return
    if run.distillation_enabled is False:
        message = "distillation.enabled is false: no teacher is started, and the student learns from rewards alone."
    else:
        message = f"distillation.enabled is {run.distillation_enabled!r}; verl takes any text for true, also off."
    yield error("distillation.enabled", message=message, fix="distillation.enabled=true")


def loss_mode_known(run: View) -> Iterator[Finding]:
    """The loss mode is one that verl has.

    verl: trainer/distillation/losses.py:get_distillation_loss_settings.
    """
    if run.loss_mode not in LOSS_MODES:
        yield error(
            f"{LOSS}.loss_mode",
            message=f"loss_mode {run.loss_mode} is unknown; verl has {', '.join(LOSS_MODES)}.",
            fix=f"{LOSS}.loss_mode={(nearest(run.loss_mode, LOSS_MODES) or ['k1'])[0]}",
        )


def policy_gradient_for_k1(run: View) -> Iterator[Finding]:
    """k1, also by its other name kl, is used as a policy gradient.

    verl: workers/config/distillation.py:DistillationLossConfig.__post_init__, for k1 alone.
    """
    if run.loss_mode in ("k1", "kl") and not run.policy_gradient:
        silent = " (verl refuses this for k1, not for its other name kl)" if run.loss_mode == "kl" else ""
        yield error(
            f"{LOSS}.use_policy_gradient",
            f"{LOSS}.loss_mode",
            message=f"Without a policy gradient, {run.loss_mode} has a gradient that ignores the teacher{silent}.",
            fix=f"{LOSS}.use_policy_gradient=true",
        )


def no_policy_gradient_for_topk(run: View) -> Iterator[Finding]:
    """forward_kl_topk is differentiated directly.

    verl: workers/config/distillation.py:DistillationLossConfig.__post_init__ prints it.
    """
    if run.uses_top_k and run.policy_gradient:
        yield warning(
            f"{LOSS}.use_policy_gradient",
            f"{LOSS}.loss_mode",
            message="As a policy gradient, forward_kl_topk moves only the sampled token and leaves most of the "
            f"teacher's top {run.topk} unused.",
            fix=f"{LOSS}.use_policy_gradient=false",
        )


def topk_size(run: View) -> Iterator[Finding]:
    """A top-k loss has a whole number of tokens to compare.

    verl: workers/config/distillation.py:_validate_topk_logprobs, for null alone.
    """
    size = run.topk
    if run.uses_top_k and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        yield error(
            _topk_key(run),
            message=f"forward_kl_topk compares the teacher's topk most likely tokens, and topk is {size}, "
            "not a whole number of at least 1.",
            fix=f"{_topk_key(run)}=64",
        )


def topk_max_logprobs(run: View) -> Iterator[Finding]:
    """vLLM may return as many log-probabilities as the loss wants.

    verl: workers/config/distillation.py:_validate_topk_logprobs.
    """
    if not (run.uses_top_k and isinstance(run.topk, int)):
        return
    for teacher in run.teachers:
        if teacher.backend == "vllm" and teacher.max_logprobs is not None and teacher.max_logprobs < run.topk:
            key = f"{teacher.at}.engine_kwargs.vllm.max_logprobs"
            yield error(
                key,
                _topk_key(run),
                message=f"Teacher {teacher.entry} returns at most {teacher.max_logprobs} log-probabilities a token, "
                f"and the loss wants {run.topk}.",
                fix=run.set(key, run.topk),
            )


def topk_backend(run: View) -> Iterator[Finding]:
    """The teacher's server can return top-k log-probabilities.

    verl: workers/config/distillation.py:_validate_topk_logprobs.
    """
    for teacher in run.teachers if run.uses_top_k else ():
        if teacher.backend not in TOP_K_BACKENDS:
            key = f"{teacher.at}.name"
            yield error(
                *dict.fromkeys((key, run.origin(key))),
                f"{LOSS}.loss_mode",
                message=f"Teacher {teacher.entry} is served by {teacher.backend}, which gives no top-k "
                f"log-probabilities; {' and '.join(TOP_K_BACKENDS)} do.",
                fix=run.set(key, "vllm"),
            )


def topk_fused_kernels(run: View) -> Iterator[Finding]:
    """Fused kernels compute a top-k loss with VeOmni only.

    verl: workers/engine/fsdp/transformer_impl.py:prepare_model_outputs.
    """
    if run.uses_top_k and run.fused_kernels and run.engine == "fsdp_config":
        yield error(
            "actor_rollout_ref.model.use_fused_kernels",
            f"{LOSS}.loss_mode",
            message="On FSDP, fused kernels never make the logits that forward_kl_topk compares (KeyError at the first "
            "update). VeOmni can (engine=veomni).",
            fix="actor_rollout_ref.model.use_fused_kernels=false",
        )


def adv_estimator(run: View) -> Iterator[Finding]:
    """The advantage estimator exists and needs neither a critic nor a baseline of its own.

    verl: trainer/ppo/utils.py:need_critic, trainer/ppo/core_algos.py:get_adv_estimator_fn.
    """
    alone = run.adv_estimator == "grpo_passk" and run.rollout_n < 2
    if run.adv_estimator in ADV_ESTIMATORS and not alone:
        return
    problem = "it compares answers, and rollout.n is 1" if alone else UNSERVED_ESTIMATORS.get(run.adv_estimator)
    reason = f"cannot be used: {problem}" if problem else f"is unknown; verl has {', '.join(ADV_ESTIMATORS)}"
    guess = [] if problem else nearest(run.adv_estimator, ADV_ESTIMATORS)
    yield error(
        "algorithm.adv_estimator",
        message=f"adv_estimator {run.adv_estimator} {reason}.",
        fix=f"algorithm.adv_estimator={(guess or ['grpo'])[0]}",
    )


def critic_off(run: View) -> Iterator[Finding]:
    """No critic is built: no advantage estimator that can be used here reads its values.

    verl: trainer/ppo/utils.py:need_critic.
    """
    if run.setting("critic.enable") is True:
        yield error(
            "critic.enable",
            message=f"A critic would be built from {run.setting('critic.model.path')} and trained, and nothing reads "
            "its values.",
            fix="critic.enable=null",
        )


def _topk_key(run: View) -> str:
    """Where topk is set: our own key, unless verl's was given a number of its own."""
    return "topk" if run.follows(f"{LOSS}.topk") else f"{LOSS}.topk"

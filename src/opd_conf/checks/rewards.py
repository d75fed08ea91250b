"""Rewards beside the teacher: what learning from them takes."""

from collections.abc import Iterator

from opd_conf.checks.finding import Finding, error, warning
from opd_conf.view import LOSS, ROLLOUT, View


def bypass_has_log_probs(run: View) -> Iterator[Finding]:
    """Log-probabilities of the servers are kept where they are to be learned with.

    verl: trainer/ppo/v1/trainer_base.py:_compute_old_log_prob and :_compute_advantage.
    """
    correction, key = "algorithm.rollout_correction", f"{ROLLOUT}.calculate_log_probs"
    names = ("bypass_mode", "rollout_is", "rollout_rs")
    on = [f"{correction}.{name}" for name in names if run.setting(f"{correction}.{name}")]
    if on and run.setting(key) is False:
        what = "KeyError at the first step" if on[0].endswith("bypass_mode") else "it would silently do nothing"
        yield error(
            key,
            *on,
            message=f"{on[0]} works with the servers' log-probabilities, and calculate_log_probs is false: {what}.",
            fix=f"{key}=true",
        )


def answers_to_compare(run: View) -> Iterator[Finding]:
    """Where rewards are learned from, GRPO has several answers a prompt to compare.

    verl: trainer/ppo/core_algos.py:compute_grpo_outcome_advantage.
    """
    rewards = run.setting(f"{LOSS}.use_task_rewards") is not False
    if rewards and run.adv_estimator in ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized") and run.rollout_n == 1:
        yield warning(
            f"{ROLLOUT}.n",
            f"{LOSS}.use_task_rewards",
            message=f"use_task_rewards is true, and with one answer a prompt {run.adv_estimator} has none to compare: "
            "a reward counts as it is, or not at all.",
            fix=f"{ROLLOUT}.n=8",
        )

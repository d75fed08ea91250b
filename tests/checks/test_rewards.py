"""Rules about rewards beside the teacher."""

import pytest

CORRECTION = "algorithm.rollout_correction"
KEY = "actor_rollout_ref.rollout.calculate_log_probs"
REWARDS = "distillation.distillation_loss.use_task_rewards=true"


@pytest.mark.parametrize(
    ("setting", "message"),
    [("bypass_mode=true", "KeyError at the first step"), ("rollout_is=token", "silently do nothing")],
)
def test_log_probabilities_to_learn_with(fires, quiet, setting, message):
    fires("bypass_has_log_probs", f"{CORRECTION}.{setting} {KEY}=false", message, f"{KEY}=true")
    quiet("bypass_has_log_probs", f"{CORRECTION}.{setting}")
    quiet("bypass_has_log_probs", f"{KEY}=false")


def test_grpo_compares_answers(fires, quiet):
    message = "with one answer a prompt grpo has none to compare"
    fires("answers_to_compare", REWARDS, message, "actor_rollout_ref.rollout.n=8", "warning")
    quiet("answers_to_compare", f"{REWARDS} actor_rollout_ref.rollout.n=4")
    quiet("answers_to_compare", f"{REWARDS} algorithm.adv_estimator=reinforce_plus_plus")
    quiet("answers_to_compare")

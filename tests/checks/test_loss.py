"""Rules about what the student learns from."""

import pytest

LOSS = "distillation.distillation_loss"
TEACHER = "distillation.teacher_models.teacher_model.inference"


@pytest.mark.parametrize(("value", "message"), [("false", "no teacher is started"), ("off", "'off'"), ("1", "1")])
def test_distillation_must_be_on_by_a_boolean(fires, value, message):
    fires("distillation_enabled", f"distillation.enabled={value}", message, "distillation.enabled=true")


@pytest.mark.parametrize(("mode", "nearest"), [("forward_kl", "forward_kl_topk"), ("K3", "k3"), ("jsd", "k1")])
def test_an_unknown_loss_mode_is_answered_with_the_nearest(fires, mode, nearest):
    fires("loss_mode_known", f"{LOSS}.loss_mode={mode}", f"loss_mode {mode} is unknown", f"{LOSS}.loss_mode={nearest}")


@pytest.mark.parametrize("mode", ["k1", "kl"])
def test_k1_and_kl_need_a_policy_gradient(fires, mode):
    overrides = f"loss_mode={mode} {LOSS}.use_policy_gradient=false"
    fires("policy_gradient_for_k1", overrides, f"{mode} has a gradient", f"{LOSS}.use_policy_gradient=true")


@pytest.mark.parametrize("mode", ["k2", "k3", "mse", "abs", "low_var_kl"])
def test_other_estimators_need_no_policy_gradient(quiet, mode):
    quiet("policy_gradient_for_k1", f"loss_mode={mode}")


def test_top_k_as_a_policy_gradient_is_a_warning(fires):
    overrides = f"loss_mode=forward_kl_topk topk=16 {LOSS}.use_policy_gradient=true"
    fix = f"{LOSS}.use_policy_gradient=false"
    fires("no_policy_gradient_for_topk", overrides, "top 16 unused", fix, severity="warning")


def test_top_k_without_a_policy_gradient_is_quiet(quiet):
    quiet("no_policy_gradient_for_topk", "loss_mode=forward_kl_topk")


@pytest.mark.parametrize("size", ["0", "1.5", "null", "true", "'\"64\"'"])
def test_top_k_compares_a_whole_number_of_tokens(fires, size):
    fires("topk_size", f"loss_mode=forward_kl_topk topk={size}", "not a whole number of at least 1", "topk=64")


def test_the_key_to_change_is_verls_when_that_one_was_set(fires):
    fires("topk_size", f"loss_mode=forward_kl_topk {LOSS}.topk=-1", "topk is -1", f"{LOSS}.topk=64")


def test_estimators_do_not_look_at_topk(quiet):
    quiet("topk_size", "loss_mode=k1 topk=0")


def test_vllm_must_return_as_many_log_probabilities_as_the_loss_wants(fires):
    key = f"{TEACHER}.engine_kwargs.vllm.max_logprobs"
    message = "at most 20 log-probabilities a token, and the loss wants 64"
    fires("topk_max_logprobs", f"loss_mode=forward_kl_topk +{key}=20", message, f"{key}=64")


@pytest.mark.parametrize("overrides", ["loss_mode=forward_kl_topk", "loss_mode=k1"])
def test_without_a_limit_verl_sets_it_itself(quiet, overrides):
    quiet("topk_max_logprobs", overrides)


def test_trtllm_gives_no_top_k(fires):
    overrides = f"loss_mode=forward_kl_topk {TEACHER}.name=trtllm"
    fires("topk_backend", overrides, "served by trtllm", f"{TEACHER}.name=vllm")


@pytest.mark.parametrize(
    "overrides", [f"loss_mode=k1 {TEACHER}.name=trtllm", "loss_mode=forward_kl_topk rollout=sglang"]
)
def test_other_servers_give_top_k_and_estimators_need_none(quiet, overrides):
    quiet("topk_backend", overrides)


def test_a_teacher_that_follows_the_student_is_named_with_it(check):
    server = "actor_rollout_ref.rollout.name"
    [said] = [found for found in check("loss_mode=forward_kl_topk", f"{server}=trtllm") if found.id == "topk_backend"]
    assert said.keys[:2] == (f"{TEACHER}.name", server)


def test_fused_kernels_cannot_do_top_k_on_fsdp(fires):
    overrides = "loss_mode=forward_kl_topk actor_rollout_ref.model.use_fused_kernels=true"
    fix = "actor_rollout_ref.model.use_fused_kernels=false"
    fires("topk_fused_kernels", overrides, "engine=veomni", fix)


@pytest.mark.parametrize("overrides", ["loss_mode=k1", "loss_mode=forward_kl_topk engine=veomni"])
def test_fused_kernels_can_do_estimators_and_veomni_can_do_both(quiet, overrides):
    quiet("topk_fused_kernels", f"{overrides} actor_rollout_ref.model.use_fused_kernels=true")


@pytest.mark.parametrize(
    ("name", "message", "fix"),
    [
        ("gae", "builds a critic", "grpo"),
        ("remax", "reward_baselines", "grpo"),
        ("optimal_token_baseline", "sum_pi_squared", "grpo"),
        ("grpo_passk", "rollout.n is 1", "grpo"),
        ("grop", "is unknown", "grpo"),
        ("reinforce_plusplus", "is unknown", "reinforce_plus_plus"),
    ],
)
def test_advantage_estimators_that_cannot_run(fires, name, message, fix):
    fires("adv_estimator", f"algorithm.adv_estimator={name}", message, f"algorithm.adv_estimator={fix}")


@pytest.mark.parametrize("name", ["grpo", "rloo", "gpg", "grpo_passk actor_rollout_ref.rollout.n=2"])
def test_advantage_estimators_that_can(quiet, name):
    quiet("adv_estimator", f"algorithm.adv_estimator={name}")


def test_a_critic_that_nothing_reads(fires, quiet):
    fires("critic_off", "critic.enable=true", "A critic would be built from ~/models/", "critic.enable=null")
    quiet("critic_off", "critic.enable=false")

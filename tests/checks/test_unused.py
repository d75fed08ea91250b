"""Settings that do nothing. What nobody set is never told of."""

import pytest

from opd_conf import checks
from opd_conf.checks import unused
from opd_conf.checks.unused import UNUSED

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
LOSS = "distillation.distillation_loss"
VEOMNI = "engine=veomni"


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            f"{ACTOR}.use_kl_loss=true {ACTOR}.strategy=fsdp2",
            "a reference model that costs",
            f"{ACTOR}.use_kl_loss=false",
        ),
        (f"{ACTOR}.kl_loss_coef=0.1", "from the teacher alone", f"{ACTOR}.kl_loss_coef=0.001"),
        (
            f"{ACTOR}.fsdp_config.entropy_checkpointing=true",
            "no entropy",
            f"{ACTOR}.fsdp_config.entropy_checkpointing=false",
        ),
        (f"{ACTOR}.grad_clip=0.5", "optim.clip_grad", f"{ACTOR}.grad_clip=1.0"),
        ("data.truncation=left", "filter_overlong_prompts", "data.truncation=error"),
        (f"{ROLLOUT}.do_sample=false", "by temperature alone", f"{ROLLOUT}.do_sample=true"),
        (
            f"{ROLLOUT}.val_kwargs.do_sample=true",
            "temperature alone, which is 0",
            f"{ROLLOUT}.val_kwargs.do_sample=false",
        ),
        ("actor_rollout_ref.nccl_timeout=3600", "own timeout", "actor_rollout_ref.nccl_timeout=600"),
        ("trainer.balance_batch=false", "V1 trainer does not read it", "trainer.balance_batch=true"),
        ("trainer.default_hdfs_dir=hdfs://a", "default_local_dir alone", "trainer.default_hdfs_dir=null"),
        (
            f"{VEOMNI} {ACTOR}.optim.lr_warmup_steps=10",
            "lr_warmup_steps_ratio alone",
            f"{ACTOR}.optim.lr_warmup_steps=-1",
        ),
        (
            f"{VEOMNI} {MODEL}.enable_activation_offload=true",
            "enable_async_activation_offload",
            f"{MODEL}.enable_activation_offload=false",
        ),
        (
            f"{VEOMNI} {MODEL}.use_fused_kernels=true {MODEL}.use_remove_padding=false",
            "packed sequences alone",
            f"{MODEL}.use_fused_kernels=false",
        ),
    ],
)
def test_settings_without_an_effect(check, overrides, message, fix):
    [finding] = [finding for finding in check(*overrides.split()) if finding.id == "setting_unused"]
    assert finding.severity == "warning"
    assert message in finding.message
    assert finding.fix == fix
    assert "setting_unused" not in [finding.id for finding in check(*overrides.split(), fix)]


@pytest.mark.parametrize(
    "overrides",
    [
        *("", VEOMNI, "trainer.balance_batch=true", "data.truncation=error"),
        f"{LOSS}.use_task_rewards=true {ACTOR}.kl_loss_coef=0.1 {ACTOR}.entropy_coeff=0.01",
        f"{LOSS}.use_task_rewards=true {ACTOR}.entropy_coeff=0.01 {ACTOR}.entropy_checkpointing=true",
        f"{ACTOR}.optim.lr_warmup_steps=10",
        f"{ACTOR}.fsdp_config.entropy_checkpointing=false",
        f"{ROLLOUT}.val_kwargs.do_sample=true {ROLLOUT}.val_kwargs.temperature=0.6",
        f"{VEOMNI} {MODEL}.use_fused_kernels=true",
        f"{MODEL}.enable_activation_offload=true",
    ],
)
def test_settings_with_an_effect(quiet, overrides):
    quiet("setting_unused", overrides)


def test_veomni_takes_a_models_config_as_it_is(check):
    found = check(VEOMNI, f"+{MODEL}.override_config.rope_theta=1e6")
    assert ["from its own config.json" in finding.message for finding in found] == [True]


def test_settings_are_told_of_once():
    keys = [key for unused in UNUSED for key in unused.keys]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("engine", "block", "value"), [("fsdp2", "fsdp_config", "false"), ("veomni", "veomni", "false")]
)
def test_the_engine_reads_its_own_word_about_compiling(check, engine, block, value):
    read = f"{ACTOR}.{block}.use_torch_compile"
    given = (f"engine={engine}", f"{ACTOR}.use_torch_compile={value}", f"{read}=true")
    [finding] = [finding for finding in check(*given) if finding.id == "compile_setting_read"]
    assert finding.fix == f"{read}=false"
    assert "compile_setting_read" not in [finding.id for finding in check(*given, finding.fix)]


def test_compiling_as_the_engine_does_is_fine(quiet):
    quiet("compile_setting_read", f"platform=npu {ACTOR}.use_torch_compile=false")
    quiet("compile_setting_read", "platform=npu")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (f"loss_mode=k1 {LOSS}.topk=64", "loss_mode k1 does not read topk=64"),
        (f"loss_mode=k3 {LOSS}.log_prob_min_clamp=-10.0", "loss_mode k3 does not read log_prob_min_clamp=-10.0"),
        (
            f"loss_mode=forward_kl_topk {VEOMNI} {MODEL}.use_fused_kernels=true",
            "fused kernel does not read log_prob_min",
        ),
    ],
)
def test_settings_of_another_loss(compose, overrides, message):
    run = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
    found = [f for f in checks.findings(compose(*run, *overrides.split())) if f.id == "loss_setting_unused"]
    assert [finding.severity for finding in found] == ["note"]
    assert message in found[0].message


def test_settings_of_the_loss_itself(say):
    groups = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
    assert say(unused.loss_setting_unused, {}, (*groups, "loss_mode=forward_kl_topk")) == []
    assert say(unused.loss_setting_unused, {"topk": 16}, groups) == []


def test_one_way_to_offload(say):
    at = f"{ACTOR}.fsdp_config"
    policy = {f"{at}.offload_policy": True}
    [finding] = say(unused.offload_in_one_way, policy)
    assert (finding.severity, finding.fix) == ("note", f"{at}.param_offload=false {at}.optimizer_offload=false")
    assert (
        say(unused.offload_in_one_way, policy | {f"{at}.param_offload": False, f"{at}.optimizer_offload": False}) == []
    )
    assert say(unused.offload_in_one_way, {}) == []

"""Rules about keys that verl does not read."""

import pytest

ROLLOUT = "actor_rollout_ref.rollout"
TEACHER = "distillation.teacher_models.teacher_model"


@pytest.mark.parametrize(
    ("key", "meant", "message"),
    [
        ("distillation.topk", "distillation.distillation_loss.topk", "verl's DistillationConfig has no field"),
        ("trainer.save_frq", "trainer.save_freq", "verl never reads trainer.save_frq"),
        (f"{ROLLOUT}.tensor_model_paralell_size", f"{ROLLOUT}.tensor_model_parallel_size", "verl's RolloutConfig"),
        ("actor_rollout_ref.actor.lr", "actor_rollout_ref.actor.optim.lr", "verl's FSDPActorConfig"),
        (f"{TEACHER}.load_format", f"{TEACHER}.inference.load_format", "verl's DistillationTeacherModelConfig"),
        ("data.max_promt_length", "data.max_prompt_length", "verl never reads"),
        ("trainr.save_freq", "trainer.save_freq", "verl never reads trainr"),
    ],
)
def test_a_wrong_key_with_a_plus_is_answered_with_the_nearest(check, key, meant, message):
    [finding] = [f for f in check(f"+{key}=8") if f.id == "unknown_key"]
    assert finding.severity == "error"
    assert message in finding.message
    assert finding.fix == f"{meant}=8"


def test_a_wrong_key_deep_in_a_dataclass_that_the_tree_lacks(check):
    [finding] = check(f"+{ROLLOUT}.server.timeot=3")
    assert "verl's ServerConfig has no field" in finding.message
    assert finding.fix == f"+{ROLLOUT}.server.timeout=3"


def test_a_wrong_key_of_a_named_teacher(check):
    found = check("~teacher", "+distillation.teacher_models.math.infrence.load_format=auto")
    [finding] = [f for f in found if f.id == "unknown_key"]
    assert finding.fix == "+distillation.teacher_models.math.inference.load_format=auto"


@pytest.mark.parametrize("key", ["zzz", "trainer.zzz", "reward.zzz"])
def test_a_key_like_no_other_that_verl_ignores_is_a_warning(check, key):
    [finding] = check(f"+{key}=1")
    assert (finding.id, finding.severity, finding.fix) == ("unknown_key", "warning", f"leave out +{key}")


def test_a_key_like_no_other_that_a_dataclass_refuses_is_an_error(check):
    [finding] = check("+actor_rollout_ref.actor.zzz=1")
    assert (finding.id, finding.severity) == ("unknown_key", "error")


@pytest.mark.parametrize(
    "override",
    [
        # fields of dataclasses that no tree has
        f"+{ROLLOUT}.enable_sleep_mode=false",
        f"+{ROLLOUT}.limit_images=4",
        f"+{ROLLOUT}.server.timeout=3",
        f"+{TEACHER}.inference.pipeline_model_parallel_size=1",
        f"+{TEACHER}.inference.seed=1",
        "+distillation.distillation_loss.use_chunked_topk=true",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision=null",
        "+actor_rollout_ref.model.target_parameters=null",
        "+actor_rollout_ref.actor.checkpoint.save_lora_only=true",
        # open dictionaries
        f"+{ROLLOUT}.engine_kwargs.vllm.mm_processor_cache_gb=0",
        f"+{ROLLOUT}.engine_kwargs.sglang.attention_backend=fa3",
        f"+{TEACHER}.inference.engine_kwargs.vllm.compilation_config.mode=0",
        f"+{ROLLOUT}.checkpoint_engine.engine_kwargs.nccl.rebuild_group=true",
        f"+{ROLLOUT}.custom.a.b=1",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "+actor_rollout_ref.model.lora.foo=1",
        "+actor_rollout_ref.actor.optim.override_optimizer_config.fused=true",
        "+data.apply_chat_template_kwargs.enable_thinking=false",
        "+data.mm_processor_kwargs.min_pixels=1",
        "+ray_kwargs.ray_init.runtime_env.env_vars.NCCL_DEBUG=INFO",
        "+ray_kwargs.ray_init.num_gpus=8",
        "+transfer_queue.controller.polling_mode=true",
        "+reward.reward_kwargs.max_resp_len=3",
        "+trainer.v1.sampler.sampler_kwargs.a=1",
        # read by verl without being anywhere
        "+data.cache_dir=/tmp/x",
        # ours
        "+platform.env.FOO=1",
    ],
)
def test_keys_that_verl_reads_or_hands_on_are_fine(check, override):
    assert check(override) == ()


def test_a_named_teacher_is_no_unknown_key(quiet):
    quiet("unknown_key", "~teacher +distillation.teacher_models.math.inference.max_model_len=4096")


def test_a_key_that_others_are_made_from_is_a_variable(check):
    assert check("+my.length=1000", "data.max_prompt_length=${my.length}") == ()


def test_a_dataset_of_ones_own_may_have_keys_of_its_own(quiet):
    quiet("unknown_key", "data.custom_cls.path=mine.py +data.max_pairs=3")


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        (
            f"+{ROLLOUT}.engine_kwargs.vllm_mm_processor_cache_gb=0",
            f"+{ROLLOUT}.engine_kwargs.vllm.mm_processor_cache_gb=0",
        ),
        (f"+{ROLLOUT}.engine_kwargs.max_logprobs=64", f"+{ROLLOUT}.engine_kwargs.vllm.max_logprobs=64"),
        (
            f"+{TEACHER}.inference.engine_kwargs.sglang_attention_backend=fa3",
            f"+{TEACHER}.inference.engine_kwargs.sglang.attention_backend=fa3",
        ),
    ],
)
def test_an_argument_right_below_engine_kwargs_is_ignored_by_verl(check, override, fix):
    [finding] = check(override)
    assert (finding.id, finding.severity, finding.fix) == ("engine_kwargs_backend", "error", fix)

"""Random settings of the right type, judged by verl's own code: what it refuses, we refuse, and name the key.

`OPD_EXAMPLES=20000 python -m pytest tests/verl/test_differential.py --hypothesis-show-statistics` tries more than the
usual number, and counts which of our rules refuse what verl's code takes, to fail, hang or train wrongly later.
"""

import functools
import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hydra.utils import instantiate as hydra_instantiate
from hypothesis import event, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

pytest.importorskip("torch")

import judge
from judge import ABSENT, Settings, cause, chosen, errors, refusals

EXAMPLES = int(os.environ.get("OPD_EXAMPLES", 1500))

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"
LOSS = "distillation.distillation_loss"
TEACHERS = "distillation.teacher_models"
SINGLE = f"{TEACHERS}.teacher_model"

BIG, SMALL = "teacher=qwen3_5_35b_a3b", "teacher=qwen2_5_3b_instruct"
NAMED = (
    "~teacher",
    f"+teacher@{TEACHERS}.math=qwen2_5_3b_instruct",
    f"+teacher@{TEACHERS}.geo=qwen2_5_3b_instruct",
    *(f"{TEACHERS}.{name}.key={name}" for name in ("math", "geo")),
    *(f"{TEACHERS}.{name}.inference.tensor_model_parallel_size=2" for name in ("math", "geo")),
)
CHOICES = (
    ("platform=gpu", "student=qwen3_5_2b", BIG),
    ("platform=gpu", "student=qwen2_5_0_5b", SMALL, "engine=veomni", "loss_mode=forward_kl_topk"),
    ("platform=gpu", "student=qwen2_5_0_5b", *NAMED, "loss_mode=forward_kl_topk"),
    ("platform=npu", "student=qwen3_5_4b", BIG, "rollout=sglang", "loss_mode=k3"),
    ("platform=npu", "student=qwen2_5_0_5b", *NAMED, "engine=veomni", "rollout=sglang"),
    ("platform=cpu", "student=tiny", "teacher=tiny", "cluster=cpu", "data=tiny", "loss_mode=forward_kl_topk"),
)
"""Each is right as it stands; the settings come on top."""

BLOCKS = (ACTOR, REF, ROLLOUT, MODEL, "distillation", "algorithm", "skip", "critic", "trainer", "global_profiler")
"""What becomes a dataclass, or what validate_config looks at: any plain value here may be set."""

SIZES = (1, 2, 3, 4, 8)
MICRO = (None, 1, 2, 3, 16)
PROFILERS = (None, "nsys", "npu", "torch", "torch_memory", "precision_debugger", "other")
CONTENTS = ([], ["cpu"], ["cuda", "memory"], ["npu", "module"], ["other"])
TOKENS = (None, 0, 2, 4, -1)

LOOKED_AT: dict[str, tuple[Any, ...]] = {
    "data.train_batch_size": (4, 16, 30, 64, 128),
    "data.max_prompt_length": (512, 1024),
    "data.max_response_length": (512, 4096),
    "trainer.nnodes": (1, 2),
    "trainer.n_gpus_per_node": SIZES,
    "distillation.nnodes": (1, 2),
    "distillation.n_gpus_per_node": SIZES,
    "distillation.enabled": (True, False),
    "topk": (None, 1, 16, 64),
    f"{LOSS}.topk": (None, 1, 16, 64),
    f"{LOSS}.loss_mode": ("k1", "kl", "k2", "mse", "k3", "low_var_kl", "abs", "forward_kl_topk", "k4"),
    f"{LOSS}.policy_loss_mode": ("vanilla", "gspo", "other"),
    f"{LOSS}.use_policy_gradient": (True, False),
    f"{LOSS}.use_chunked_topk": (True, False),
    f"{LOSS}.bogus": (1,),
    "distillation.topk": (16,),
    f"{ACTOR}.strategy": ("fsdp", "fsdp2", "fsdp_turbo", "veomni", "megatron", "fsdp3"),
    f"{ACTOR}.ppo_mini_batch_size": (4, 16, 30, 64, 128, 256),
    f"{ACTOR}.ppo_micro_batch_size": MICRO,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": MICRO,
    f"{ACTOR}.ppo_infer_micro_batch_size_per_gpu": MICRO,
    f"{ACTOR}.use_dynamic_bsz": (True, False),
    f"{ACTOR}.use_kl_loss": (True, False),
    f"{ACTOR}.loss_agg_mode": (
        *("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
        *("token_mean", "other"),
    ),
    f"{ACTOR}.loss_scale_factor": (None, 1),
    f"{ACTOR}.policy_loss.loss_mode": ("vanilla", "gspo", "dro", "other"),
    f"{ACTOR}.policy_loss.dro_beta": (None, 0.1),
    f"{ACTOR}.use_remove_padding": (True, False),
    f"{ACTOR}.bogus": (1,),
    f"{ACTOR}.optim.lr_scheduler_type": ("constant", "cosine", "linear", "other"),
    f"{ACTOR}.optim.warmup_style": (None, "constant", "cosine", "linear"),
    f"{ACTOR}.optim.grad_clip": (None, 1.0),
    f"{ACTOR}.optim.bogus": (1,),
    f"{ACTOR}.checkpoint.save_contents": (["model"], ["model", "optimizer", "extra", "hf_model"], ["other"], []),
    f"{ACTOR}.checkpoint.load_contents": (["model"], ["other"], []),
    f"{ACTOR}.checkpoint.bogus": (1,),
    f"{ACTOR}.profiler.enable": (True, False),
    f"{ACTOR}.profiler.tool": PROFILERS,
    f"{ACTOR}.profiler.ranks": ([], [0], None),
    f"{ACTOR}.profiler.finish_hook_cmd": (None, "true"),
    f"{ACTOR}.profiler.tool_config.npu.level": ("level_none", "level0", "level1", "level2", "level3"),
    f"{ACTOR}.profiler.tool_config.npu.contents": CONTENTS,
    f"{ACTOR}.profiler.tool_config.npu.profile_token_start": TOKENS,
    f"{ACTOR}.profiler.tool_config.npu.profile_token_end": TOKENS,
    f"{ACTOR}.profiler.tool_config.torch.contents": CONTENTS,
    f"{ACTOR}.profiler.tool_config.torch.profile_token_start": TOKENS,
    f"{ACTOR}.profiler.tool_config.torch.profile_token_end": TOKENS,
    f"{ACTOR}.profiler.tool_config.precision_debugger.steps": (None, [1], []),
    f"{ACTOR}.profiler.tool_config.precision_debugger.stages": (None, ["actor_update"], ["other"]),
    f"{ACTOR}.qat.mode": ("w4a16", "w4a4", "other"),
    f"{ACTOR}.qat.quantization_config_path": (None, "config.json"),
    "global_profiler.tool": PROFILERS,
    "global_profiler.steps": (None, [1], [1, 2]),
    f"{REF}.log_prob_micro_batch_size": MICRO,
    f"{REF}.log_prob_micro_batch_size_per_gpu": MICRO,
    f"{REF}.bogus": (1,),
    f"{ROLLOUT}.name": ("vllm", "sglang", "trtllm", "hf"),
    f"{ROLLOUT}.mode": ("async", "sync", "other"),
    f"{ROLLOUT}.n": (1, 2, 3, 8),
    f"{ROLLOUT}.temperature": (1.0, 0.5, 0.0),
    f"{ROLLOUT}.tensor_model_parallel_size": SIZES,
    f"{ROLLOUT}.data_parallel_size": SIZES,
    f"{ROLLOUT}.pipeline_model_parallel_size": SIZES,
    f"{ROLLOUT}.expert_parallel_size": SIZES,
    f"{ROLLOUT}.moe_tensor_parallel_size": SIZES,
    f"{ROLLOUT}.max_model_len": (None, 1024, 3073, 8192),
    f"{ROLLOUT}.log_prob_micro_batch_size": MICRO,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": MICRO,
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": (True, False),
    f"{ROLLOUT}.val_kwargs.do_sample": (True, False),
    f"{ROLLOUT}.val_kwargs.bogus": (1,),
    f"{ROLLOUT}.trace.max_samples_per_step_per_worker": (None, 0, 5, -1),
    f"{ROLLOUT}.quantization": (None, "fp8", "other"),
    f"{ROLLOUT}.disaggregation.enabled": (True, False),
    f"{ROLLOUT}.disaggregation.transfer_backend": ("nixl", "mooncake", "ascend", "mori", "fake", "other"),
    f"{ROLLOUT}.disaggregation.mooncake_protocol": ("nvlink", "local", "rdma", "tcp", "other"),
    f"{ROLLOUT}.disaggregation.prefill_replicas": (0, 1, 2),
    f"{ROLLOUT}.disaggregation.decode_replicas": (0, 1, 2),
    f"{ROLLOUT}.disaggregation.bootstrap_port": (None, 0, 8998, 65536),
    f"{ROLLOUT}.disaggregation.bogus": (1,),
    f"{ROLLOUT}.agent.num_workers": (1, 8),
    f"{ROLLOUT}.multi_turn.max_user_turns": (None, 1),
    f"{ROLLOUT}.checkpoint_engine.backend": ("naive", "nccl", "nixl", "other"),
    f"{ROLLOUT}.bogus": (1,),
    f"{MODEL}.use_remove_padding": (True, False),
    f"{MODEL}.use_fused_kernels": (True, False),
    f"{MODEL}.lora_rank": (0, 8, 512, 513, 1024),
    f"{MODEL}.lora.rank": (0, 8, 512, 513, 1024),
    f"{MODEL}.lora.merge": (True, False),
    f"{MODEL}.target_modules": ("all-linear", ["q_proj"], [1], 1, None),
    f"{MODEL}.target_parameters": (None, ["q_proj"]),
    f"{MODEL}.exclude_modules": (None, "lm_head"),
    f"{MODEL}.mtp.enable": (True, False),
    f"{MODEL}.mtp.enable_train": (True, False),
    f"{MODEL}.mtp.method": ("mtp", "other"),
    f"{MODEL}.bogus": (1,),
    "algorithm.adv_estimator": ("grpo", "rloo", "gae", "remax", "other"),
    "algorithm.use_kl_in_reward": (True, False),
    "algorithm.rollout_correction.bypass_mode": (True, False),
    "critic.enable": (None, False, True),
    "skip.rollout.action": ("cache", "repeat", "random"),
    "skip.rollout_tq.action": ("cache", "repeat", "random"),
    "skip.rollout_tq.steps": ([], [1], ["1"]),
}
"""Values by key, right and wrong about equally often, of what verl's code looks at."""

FSDP: dict[str, tuple[Any, ...]] = {
    f"{ACTOR}.ulysses_sequence_parallel_size": SIZES,
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": SIZES,
    f"{ACTOR}.fsdp_config.strategy": ("fsdp", "fsdp2", "fsdp_turbo", "fsdp3"),
    f"{ACTOR}.fsdp_config.mixed_precision": (None, {"param_dtype": "fp32"}),
    f"{ACTOR}.fsdp_config.router_replay.mode": ("disabled", "R2", "R3", "R4"),
    f"{ACTOR}.fsdp_config.dtype": ("bfloat16", "float16", "other"),
    f"{ACTOR}.fsdp_config.bogus": (1,),
    f"{REF}.fsdp_config.strategy": ("fsdp", "fsdp2", "fsdp_turbo", "fsdp3"),
    f"{REF}.strategy": ("fsdp", "fsdp2", "fsdp3"),
}
VEOMNI: dict[str, tuple[Any, ...]] = {
    f"{ACTOR}.veomni.ulysses_parallel_size": SIZES,
    f"{ACTOR}.veomni.expert_parallel_size": SIZES,
    f"{ACTOR}.veomni.strategy": ("veomni", "fsdp2"),
    f"{ACTOR}.veomni.router_replay.mode": ("disabled", "R2", "R3", "R4"),
    f"{ACTOR}.veomni.activation_offload_host_cache_limit_gb": (0.0, 4.0, -1.0),
    f"{ACTOR}.veomni.ckpt_manager": ("dcp", "other"),
    f"{ACTOR}.veomni.attn_implementation": ("eager", "sdpa", "flash_attention_2", "other"),
    f"{ACTOR}.veomni.bogus": (1,),
    f"{REF}.veomni.strategy": ("veomni", "fsdp2"),
    f"{REF}.veomni.router_replay.mode": ("disabled", "R2", "R4"),
}


ELSEWHERE = {
    "vllm version None not supported": "LoRA, where no vLLM is installed by that name: a matter of the machine",
}
"""What verl says about something else than settings, with the reason why no rule of ours says it from them."""


def of_a_teacher(at: str) -> dict[str, tuple[Any, ...]]:
    """Values by key of one teacher's entry; a named one may lack any."""
    lacks = () if at == SINGLE else (ABSENT,)
    server = f"{at}.inference"
    return {
        f"{at}.key": ("math", "geo", None, *lacks),
        f"{at}.model_path": ("Qwen/Qwen2.5-3B", None, *lacks),
        f"{at}.num_replicas": (0, 1, 2, None, *lacks),
        f"{at}.bogus": (1,),
        f"{server}.name": ("vllm", "sglang", "trtllm", "hf", *lacks),
        f"{server}.load_format": ("auto", "dummy", *lacks),
        f"{server}.tensor_model_parallel_size": (*SIZES, *lacks),
        f"{server}.data_parallel_size": (*SIZES, *lacks),
        f"{server}.pipeline_model_parallel_size": SIZES,
        f"{server}.expert_parallel_size": (*SIZES, *lacks),
        f"{server}.moe_tensor_parallel_size": SIZES,
        f"{server}.prompt_length": (512, 1024, *lacks),
        f"{server}.response_length": (512, 4096, *lacks),
        f"{server}.max_model_len": (None, 1024, 3072, 3073, 8192, *lacks),
        f"{server}.engine_kwargs": ({}, {"vllm": {"max_logprobs": 20}}, {"vllm": {"max_logprobs": 128}}, *lacks),
        f"{server}.mode": ("async", "sync", "other"),
        f"{server}.disaggregation.enabled": (True, False),
        f"{server}.bogus": (1,),
    }


def by_kind(value: Any) -> tuple[Any, ...]:
    """Other values of the same type, for keys that nothing above knows; none for null and for what has an order."""
    if isinstance(value, bool):
        return (True, False)
    if isinstance(value, int):
        return (-1, 0, 1, 2, 8)
    if isinstance(value, float):
        return (-1.0, 0.0, 0.5, 1.0)
    return ("other",) if isinstance(value, str) else ()


@functools.cache
def tables(groups: tuple[str, ...]) -> tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]]]:
    """Values by key for a choice of groups: what verl looks at, and every other plain value of its dataclasses."""
    config, values = chosen(groups)
    entries = ["math", "geo"] if "~teacher" in groups else ["teacher_model"]
    known = LOOKED_AT | (VEOMNI if "engine=veomni" in groups else FSDP)
    for entry in entries:
        known |= of_a_teacher(f"{TEACHERS}.{entry}")
    others = {
        key: by_kind(value)
        for block in BLOCKS
        for key, value in leaves(OmegaConf.to_container(config[block.split(".")[0]], resolve=True), block.split(".")[0])
        if key.startswith(f"{block}.") and key not in known and values.has(key) and not key.endswith("_target_")
    }
    return known, {key: options for key, options in others.items() if options}


def leaves(tree: Any, at: str) -> list[tuple[str, Any]]:
    """Plain values of a tree by dotted key."""
    if isinstance(tree, dict):
        return [leaf for name, value in tree.items() for leaf in leaves(value, f"{at}.{name}")]
    return [(at, tree)]


@st.composite
def runs(draw: st.DrawFn) -> tuple[tuple[str, ...], Settings]:
    """A choice of groups and up to six settings."""
    groups = draw(st.sampled_from(CHOICES))
    known, others = tables(groups)
    key = st.sampled_from([*known]) | st.sampled_from([*known]) | st.sampled_from([*others])
    keys = draw(st.lists(key, min_size=1, max_size=6))
    return groups, {key: draw(st.sampled_from((known | others)[key])) for key in dict.fromkeys(keys)}


def disagreements(groups: tuple[str, ...], settings: Settings) -> list[str]:
    """Refusals of verl's that our errors do not foresee: what it says, and the fewest settings for it.

    A refusal is about the fewest settings with which verl still says it: of these, or of the keys in its words, one of
    our errors about these settings alone names one. What stands beside them must not silence us altogether.
    """
    missed = []
    for step, words in refusals(groups, settings).items():
        if any(reason in words for reason in ELSEWHERE):
            continue
        fewest = cause(groups, settings, step, words)
        named = [key for finding in errors(groups, fewest) for key in finding.keys]
        silenced = fewest != settings and not errors(groups, settings)
        if silenced or not any(key in words or is_about(key, fewest) for key in named):
            missed.append(f"{step} refuses {fewest}: {words} Ours names {named}.")
    return missed


def is_about(key: str, settings: Settings) -> bool:
    """Whether a key is one of the settings, or a part of one that is a block."""
    return any(f"{key}.".startswith(f"{setting}.") for setting in settings)


@pytest.fixture(autouse=True, scope="module")
def _quickly() -> Iterator[None]:
    with judge.quickly():
        yield


@pytest.mark.parametrize("groups", CHOICES)
def test_choices_are_right_as_they_stand(groups):
    assert errors(groups, {}) == []
    assert refusals(groups, {}) == {}


@pytest.mark.parametrize("groups", CHOICES[:4])
@pytest.mark.parametrize("block", [ACTOR, ROLLOUT, "distillation"])
def test_what_is_built_quickly_is_what_hydra_builds(groups, block):
    built = OmegaConf.select(chosen(groups)[0], block)
    assert judge.instantiate(built) == hydra_instantiate(built, _convert_="partial")


@hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    suppress_health_check=[*hypothesis.HealthCheck],
    phases=[hypothesis.Phase.generate],  # a disagreement is as small as it can be already
)
@given(runs())
def test_what_verl_refuses_is_refused_by_name(run):
    assert disagreements(*run) == []
    if "OPD_EXAMPLES" in os.environ:
        said = refusals(*run)
        for rule in {finding.id for finding in errors(*run)}:
            event(f"{'verl too' if said else 'ours alone'}: {rule}")


@pytest.mark.parametrize("groups", CHOICES)
def test_every_setting_was_taken_back(groups):
    config, before = chosen(groups)
    known, _ = tables(groups)
    with judge.changed(groups, {key: values[-1] for key, values in known.items()}):
        assert OmegaConf.to_container(config) != before.raw
    assert OmegaConf.to_container(config) == before.raw

"""Rules about VeOmni's engine."""

import json

import pytest

from opd_conf.checks import veomni

V = "actor_rollout_ref.actor.veomni"
RUN = "engine=veomni"
TEXT = f"{RUN} student=qwen2_5_0_5b teacher=qwen2_5_3b_instruct data=gsm8k"


@pytest.mark.parametrize("path", ["Qwen/Qwen3.5-4B", "/models/qwen3_5-2b", "Qwen/Qwen3.5-35B-A3B-Instruct"])
def test_qwen3_5_on_veomni_on_npus(path, one, say):
    settings = {"actor_rollout_ref.model.path": path}
    groups = ("platform=npu", "student=qwen2_5_0_5b", "teacher=qwen2_5_3b_instruct", "engine=veomni")
    severity, message, fix = one(veomni.qwen3_5_on_veomni, settings, groups)
    assert (severity, fix) == ("error", "engine=fsdp2")
    assert f"{path} cannot be trained with VeOmni on an NPU" in message
    assert say(veomni.qwen3_5_on_veomni, {}, groups) == []
    assert say(veomni.qwen3_5_on_veomni, settings, groups[:3]) == []


@pytest.mark.parametrize(
    ("settings", "message", "fix"),
    [
        ("optimizer_offload=true", "optimizer_offload without param_offload", "param_offload=true"),
        ("enable_fsdp_offload=true param_offload=true", "FSDP2 stops", "enable_fsdp_offload=false"),
    ],
)
def test_offloads_that_do_not_go_together(fires, settings, message, fix):
    overrides = " ".join(f"{V}.{setting}" for setting in settings.split())
    fires("veomni_offloads_agree", f"{RUN} {overrides}", message, f"{V}.{fix}")


@pytest.mark.parametrize(
    "settings", ["", "param_offload=true optimizer_offload=true", "param_offload=true", "enable_fsdp_offload=true"]
)
def test_offloads_that_do(quiet, settings):
    quiet("veomni_offloads_agree", f"{RUN} {' '.join(f'{V}.{setting}' for setting in settings.split())}")


def test_where_weights_are_made(fires, quiet):
    fires(
        "veomni_init_device",
        f"{RUN} {V}.init_device=cuda",
        "with several ranks VeOmni takes meta",
        f"{V}.init_device=meta",
    )
    fires("veomni_init_device", f"{TEXT} cluster=1x2", "with a single rank VeOmni takes cuda", f"{V}.init_device=cuda")
    quiet("veomni_init_device", RUN)
    quiet("veomni_init_device", f"{TEXT} cluster=1x2 {V}.init_device=cuda")


MOE = f"{RUN} actor_rollout_ref.model.path=Qwen/Qwen3.5-35B-A3B"


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (f"{MOE} {V}.expert_parallel_size=3", "is 3, which does not divide the 4 ranks", 2),
        (f"{MOE} {V}.fsdp_size=2 {V}.expert_parallel_size=4", "does not divide the 2 ranks", 2),
        (f"{RUN} {V}.expert_parallel_size=2", "Qwen/Qwen3.5-2B has no experts", 1),
    ],
)
def test_experts_that_cannot_be_shared(fires, overrides, message, fix):
    fires("veomni_experts", overrides, message, f"{V}.expert_parallel_size={fix}")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_experts_that_can(quiet, size):
    quiet("veomni_experts", f"{MOE} {V}.expert_parallel_size={size}")


@pytest.mark.parametrize(
    ("overrides", "name", "value", "fix"),
    [
        (RUN, "rms_norm", "npu", "eager"),
        (RUN, "swiglu_mlp", "triton", "eager"),
        (RUN, "chunk_gated_delta_rule", "npu", "eager"),
        (MOE, "moe", "fused_npu", "fused"),
        (f"{TEXT} platform=npu", "rotary_pos_emb", "triton", "eager"),
    ],
)
def test_kernels_that_the_device_lacks(check, overrides, name, value, fix):
    given = (*overrides.split(), f"{V}.{name}_implementation={value}")
    [finding] = [finding for finding in check(*given) if finding.id == "veomni_kernels"]
    assert f"{V}.{name}_implementation is {value}; on a" in finding.message
    assert finding.fix == f"{V}.{name}_implementation={fix}"


@pytest.mark.parametrize(
    "overrides",
    [
        f"{RUN} {V}.rms_norm_implementation=liger_kernel {V}.chunk_gated_delta_rule_implementation=flash_qla",
        f"{TEXT} platform=npu {V}.rms_norm_implementation=npu {V}.cross_entropy_loss_implementation=chunk_loss",
        f"{RUN} platform=npu",
        f"{TEXT} platform=npu {V}.causal_conv1d_implementation=fla {V}.moe_implementation=fused_quack",
    ],
)
def test_kernels_that_the_device_has_or_the_model_never_runs(quiet, overrides):
    quiet("veomni_kernels", overrides)


def test_packed_linear_attention_needs_kernels(fires, quiet):
    keys = [f"{V}.{name}_implementation" for name in ("causal_conv1d", "chunk_gated_delta_rule")]
    fires(
        "veomni_linear_attention",
        f"{RUN} {' '.join(f'{key}=eager' for key in keys)}",
        "cannot take the packed sequences of Qwen/Qwen3.5-2B",
        " ".join(f"{key}=fla" for key in keys),
    )
    quiet("veomni_linear_attention", RUN)
    quiet("veomni_linear_attention", TEXT)
    quiet("veomni_linear_attention", f"{RUN} {keys[0]}=eager actor_rollout_ref.model.use_remove_padding=false")


@pytest.mark.parametrize(("kind", "fine"), [("gemma3", False), ("qwen3_vl", True)])
def test_models_whose_pictures_reach_veomni(say, tmp_path, kind, fine):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "vision_config": {}}))
    groups = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", RUN)
    found = say(veomni.veomni_vision, {"actor_rollout_ref.model.path": str(tmp_path)}, groups)
    assert [finding.fix for finding in found] == ([] if fine else ["engine=fsdp2"])
    assert say(veomni.veomni_vision, {"actor_rollout_ref.model.path": str(tmp_path)}, groups[:3]) == []


@pytest.mark.parametrize("name", ["lora_rank", "lora.rank"])
def test_lora(fires, quiet, name):
    key = f"actor_rollout_ref.model.{name}"
    fires("veomni_lora", f"{RUN} {key}=8", f"{key} is 8, and verl's VeOmni engine has no LoRA", f"{key}=0")
    quiet("veomni_lora", f"{key}=8")


def test_a_rate_that_falls_to_nothing(say):
    groups = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", RUN)
    kind, lowest = (f"actor_rollout_ref.actor.optim.{name}" for name in ("lr_scheduler_type", "lr_min"))
    [finding] = say(veomni.veomni_rate_falls, {kind: "cosine"}, groups)
    assert (finding.severity, finding.fix) == ("note", f"{kind}=constant")
    assert "falls from 1e-06 to 0 over the run (cosine, lr_min=0)" in finding.message
    assert say(veomni.veomni_rate_falls, {kind: "cosine", lowest: 1e-7}, groups) == []
    assert say(veomni.veomni_rate_falls, {}, groups) == []

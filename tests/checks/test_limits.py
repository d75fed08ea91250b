"""Bounds of single values."""

import pytest

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
TEACHER = "distillation.teacher_models.teacher_model.inference"
TOOLS = f"{ACTOR}.profiler.tool_config"
APART = f"{ROLLOUT}.disaggregation"
WITH_REF = f"{ACTOR}.use_kl_loss=true {REF}.log_prob_micro_batch_size_per_gpu=1"


@pytest.mark.parametrize(
    ("typed", "wanted", "fix"),
    [
        (f"{ACTOR}.profiler.ranks=null", "null; verl takes a list", f"{ACTOR}.profiler.ranks=[]"),
        (f"{TOOLS}.npu.level=level3", "level3; verl takes level0 or level1", f"{TOOLS}.npu.level=level0"),
        (f"{TOOLS}.npu.contents=[cuda]", "['cuda']; verl takes a list of npu, cpu", f"{TOOLS}.npu.contents=[]"),
        (f"{TOOLS}.torch.contents=[npu]", "['npu']; verl takes a list of cuda, cpu", f"{TOOLS}.torch.contents=[]"),
        (f"{TOOLS}.torch.schedule.wait=-1", "-1; verl takes at least 0", f"{TOOLS}.torch.schedule.wait=0"),
        (f"{WITH_REF} {REF}.profiler.ranks=null", "null; verl takes a list", f"{REF}.profiler.ranks=[]"),
        (
            f"+{TOOLS}.npu.profile_token_start=-1",
            "-1; verl takes null or at least 0",
            f"{TOOLS}.npu.profile_token_start=null",
        ),
        (
            f"{ROLLOUT}.trace.max_samples_per_step_per_worker=-1",
            "-1; verl takes null or at least 0",
            f"{ROLLOUT}.trace.max_samples_per_step_per_worker=null",
        ),
        (f"+{TEACHER}.mode=sync", "sync; verl takes async", f"{TEACHER}.mode=async"),
        (
            f"+{ROLLOUT}.moe_tensor_parallel_size=2",
            "2; verl takes 1 with vllm",
            f"{ROLLOUT}.moe_tensor_parallel_size=1",
        ),
        (f"{APART}.enabled=true {APART}.decode_replicas=0", "0; verl takes at least 1", f"{APART}.decode_replicas=1"),
        (
            f"{APART}.enabled=true {APART}.transfer_backend=nccl",
            "nccl; verl takes nixl or mooncake",
            f"{APART}.transfer_backend=nixl",
        ),
        (
            f"{APART}.enabled=true {APART}.transfer_backend=mooncake +{APART}.mooncake_protocol=udp",
            "udp; verl takes nvlink or local",
            f"{APART}.mooncake_protocol=nvlink",
        ),
        (
            f"{APART}.enabled=true {APART}.bootstrap_port=0",
            "0; verl takes null or a port",
            f"{APART}.bootstrap_port=null",
        ),
        (f"{ROLLOUT}.name=trtllm {APART}.enabled=true", "True; verl takes false with trtllm", f"{APART}.enabled=false"),
        (f"{ACTOR}.fsdp_config.strategy=fsdp3", "fsdp3; verl takes fsdp2 or", f"{ACTOR}.fsdp_config.strategy=fsdp2"),
        (
            f"engine=veomni {ACTOR}.veomni.router_replay.mode=R1",
            "R1; verl takes disabled or R2 or R3",
            f"{ACTOR}.veomni.router_replay.mode=disabled",
        ),
        (
            f"engine=veomni {ACTOR}.veomni.activation_offload_host_cache_limit_gb=-1.0",
            "-1.0; verl takes at least 0",
            f"{ACTOR}.veomni.activation_offload_host_cache_limit_gb=4.0",
        ),
        (f"{MODEL}.lora_rank=1024", "1024; verl takes at most 512 with vLLM", f"{MODEL}.lora_rank=512"),
        (f"{MODEL}.target_modules=1", "1; verl takes a name or", f"{MODEL}.target_modules=all-linear"),
        ("skip.rollout_tq.action=random", "random; verl takes cache or repeat", "skip.rollout_tq.action=cache"),
    ],
)
def test_a_value_beyond_its_bounds(fires, typed, wanted, fix):
    fires("value_allowed", typed, f"{fix.split('=')[0]} is {wanted}", fix)


def test_a_value_that_several_workers_take_over_is_named_once_and_at_its_origin(fires):
    depth = "global_profiler.global_tool_config.torch_memory.stack_depth"
    fires("value_allowed", f"{depth}=0", f"{depth} is 0; verl takes at least 1", f"{depth}=32")


@pytest.mark.parametrize(
    "overrides",
    [
        *("", "engine=veomni", "rollout=sglang", "platform=npu"),
        f"{REF}.profiler.ranks=null",
        f"{APART}.transfer_backend=nccl {APART}.decode_replicas=0",
        f"{APART}.enabled=true {APART}.bootstrap_port=8998",
        f"{MODEL}.lora_rank=1024 rollout=sglang",
        f"{MODEL}.lora_rank=1024 {MODEL}.lora.merge=true",
        f"{MODEL}.target_modules=[q_proj]",
        f"{TOOLS}.torch.contents=[cuda,shapes]",
    ],
)
def test_values_within_their_bounds_or_never_read(quiet, overrides):
    quiet("value_allowed", overrides)


def test_profiled_tokens_in_order(fires, quiet):
    start, end = (f"{ROLLOUT}.profiler.tool_config.torch.profile_token_{side}" for side in ("start", "end"))
    fires("profiled_tokens_in_order", f"{start}=4 {end}=4", f"{end} is 4, and it starts at 4", f"{end}=null")
    quiet("profiled_tokens_in_order", f"{start}=4 {end}=5")
    quiet("profiled_tokens_in_order", f"{start}=4")

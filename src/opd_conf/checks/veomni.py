"""VeOmni's engine, whose settings are `actor.veomni.*`: what VeOmni asserts once it builds the model."""

from collections.abc import Iterator

from opd_conf import model_files, models
from opd_conf.checks.finding import Finding, error, note
from opd_conf.checks.models import parts
from opd_conf.view import ACTOR, View, is_qwen3_5, largest_divisor

BLOCK = f"{ACTOR}.veomni"

KERNELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "moe": (("fused", "fused_triton", "fused_quack"), ("fused", "fused_npu", "fused_triton")),
    "cross_entropy_loss": (("liger_kernel", "chunk_loss"), ("npu", "chunk_loss", "liger_kernel")),
    "rms_norm": (("liger_kernel", "triton"), ("npu", "liger_kernel")),
    "rotary_pos_emb": (("liger_kernel", "triton"), ("npu", "liger_kernel")),
    "swiglu_mlp": (("liger_kernel",), ("liger_kernel",)),
    "load_balancing_loss": (("triton",), ("triton",)),
    "rms_norm_gated": (("fla",), ()),
    "causal_conv1d": (("fla",), ()),
    "chunk_gated_delta_rule": (("fla", "flash_qla"), ()),
}
"""Kernels beside `eager` by operation, on GPUs and on NPUs: veomni/arguments/arguments_types.py, of 0.1.12.

VeOmni takes its own defaults on an NPU for something else that works there.
"""

LINEAR = ("rms_norm_gated", "causal_conv1d", "chunk_gated_delta_rule")
"""Operations of Qwen3.5 alone."""

VISION = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Types of models whose pictures reach VeOmni: workers/engine/veomni/utils.py:VL_TYPE2INDEX."""


def qwen3_5_on_veomni(run: View) -> Iterator[Finding]:
    """Qwen3.5 is trained with FSDP2 on NPUs: VeOmni 0.1.11 has no kernels for its linear attention there.

    verl: workers/config/engine.py:VeOmniEngineConfig.
    """
    if run.platform != "npu" or run.engine != "veomni":
        return
    path = run.student_path or ""
    if is_qwen3_5(path):
        yield error(
            "engine",
            "actor_rollout_ref.model.path",
            message=f"{path} cannot be trained with VeOmni on an NPU: no kernels for its linear attention.",
            fix="engine=fsdp2",
        )


def veomni_offloads_agree(run: View) -> Iterator[Finding]:
    """VeOmni's optimizer is offloaded together with the parameters only, and neither beside enable_fsdp_offload.

    verl: workers/engine/veomni/transformer_impl.py:initialize, with workers/engine/base.py:BaseEngine.to.
    """
    parameters, optimizer, whole = (
        run.setting(f"{BLOCK}.{name}") is True for name in ("param_offload", "optimizer_offload", "enable_fsdp_offload")
    )
    if run.engine != "veomni":
        return
    if whole and (parameters or optimizer):
        yield error(
            f"{BLOCK}.enable_fsdp_offload",
            f"{BLOCK}.param_offload",
            f"{BLOCK}.optimizer_offload",
            message="enable_fsdp_offload keeps the parameters on the CPU, and param_offload and optimizer_offload "
            "bring them to the device: FSDP2 stops at the first forward.",
            fix=f"{BLOCK}.enable_fsdp_offload=false" + ("" if parameters else f" {BLOCK}.param_offload=true"),
        )
    elif optimizer and not parameters:
        yield error(
            f"{BLOCK}.optimizer_offload",
            f"{BLOCK}.param_offload",
            message="optimizer_offload without param_offload: verl's VeOmni engine moves gradients with the "
            "optimizer, and asserts that the parameters go with them.",
            fix=f"{BLOCK}.param_offload=true",
        )


def veomni_init_device(run: View) -> Iterator[Finding]:
    """Weights are made on `meta` where ranks share them, and on the device where there is a single rank.

    VeOmni: distributed/torch_parallelize.py:build_parallelize_model.
    """
    key, device = f"{BLOCK}.init_device", "npu" if run.platform == "npu" else "cuda"
    right = ("meta",) if run.student_world > 1 else ("cuda", "npu")
    if run.engine == "veomni" and run.setting(key) not in right:
        ranks = "several ranks" if run.student_world > 1 else "a single rank"
        yield error(
            key,
            "trainer.n_gpus_per_node",
            message=f"{key} is {run.setting(key)}, and with {ranks} VeOmni takes {' or '.join(right)} alone.",
            fix=f"{key}={'meta' if run.student_world > 1 else device}",
        )


def veomni_experts(run: View) -> Iterator[Finding]:
    """Ranks that share VeOmni's experts divide those that hold a model between them, and there are experts.

    VeOmni: distributed/parallel_state.py:init_parallel_state, distributed/torch_parallelize.py.
    """
    key = f"{BLOCK}.expert_parallel_size"
    size = run.number(key, 1)
    if run.engine != "veomni" or size < 2:
        return
    shards = run.number(f"{BLOCK}.fsdp_size", -1)
    ranks = (shards if 0 < shards < run.data_parallel else run.data_parallel) * run.sequence_parallel
    facts = models.facts(run.student_path, run.variable) if run.student_path else None
    if facts and facts.experts is None:
        message = f"{key} is {size}, and {run.student_path} has no experts: VeOmni has no plan to share them."
        yield error(key, "actor_rollout_ref.model.path", message=message, fix=f"{key}=1")
    elif ranks % size:
        message = f"{key} is {size}, which does not divide the {ranks} ranks that hold a model between them."
        yield error(key, f"{BLOCK}.fsdp_size", message=message, fix=f"{key}={largest_divisor(ranks, size)}")


def veomni_kernels(run: View) -> Iterator[Finding]:
    """Kernels that are chosen by name exist for the device.

    VeOmni: arguments/arguments_types.py:OpsImplementationConfig, ops/kernel_registry.py.
    """
    if run.engine != "veomni" or run.platform not in ("gpu", "npu"):
        return
    facts = models.facts(run.student_path, run.variable) if run.student_path else None
    linear = run.platform == "gpu" and is_qwen3_5(run.student_path or "")  # on an NPU qwen3_5_on_veomni tells
    unused: tuple[str, ...] = () if linear else LINEAR
    unused += ("moe",) if facts and facts.experts is None else ()
    for operation, by_device in KERNELS.items():
        if operation in unused:
            continue
        key = f"{BLOCK}.{operation}_implementation"
        known = ("eager", *by_device[run.platform == "npu"])
        value = run.setting(key, "eager")
        if value not in known:
            device = "an NPU" if run.platform == "npu" else "a GPU"
            message = f"{key} is {value}; on {device} VeOmni has {', '.join(known)}."
            yield error(key, message=message, fix=f"{key}={known[1] if operation == 'moe' else 'eager'}")


def veomni_linear_attention(run: View) -> Iterator[Finding]:
    """Packed sequences of Qwen3.5 have kernels for its linear attention: `eager` cannot take them.

    verl: workers/config/engine.py:VeOmniEngineConfig.
    """
    keys = [f"{BLOCK}.{name}_implementation" for name in LINEAR[1:]]  # the norm can be eager
    packed = run.setting("actor_rollout_ref.model.use_remove_padding") is True
    if run.engine != "veomni" or run.platform != "gpu" or not packed or not is_qwen3_5(run.student_path or ""):
        return
    eager = [key for key in keys if run.setting(key, "eager") == "eager"]
    if eager:
        names = " and ".join(key.rpartition(".")[2] for key in eager)
        yield error(
            *eager,
            message=f"{names} eager: it cannot take the packed sequences of {run.student_path}, and stops at the first "
            "forward.",
            fix=" ".join(f"{key}=fla" for key in eager),
        )


def veomni_vision(run: View) -> Iterator[Finding]:
    """A student with vision is of a type whose pictures verl's VeOmni engine passes on.

    verl: workers/engine/veomni/utils.py:VL_TYPE2INDEX.
    """
    for part in parts(run) if run.engine == "veomni" else ():
        kind = part.config.get("model_type")
        if part.role == "the student" and kind not in VISION and model_files.sees_images(part.config):
            yield error(
                part.key,
                message=f"{part.path} is of type {kind}; pictures reach VeOmni for {', '.join(VISION)} alone.",
                fix="engine=fsdp2",
            )


def veomni_rate_falls(run: View) -> Iterator[Finding]:
    """The learning rate ends above 0: VeOmni's decay goes down to lr_min, which is 0 unless set.

    verl: workers/engine/veomni/transformer_impl.py:_build_lr_scheduler.
    """
    kind, lowest = f"{ACTOR}.optim.lr_scheduler_type", f"{ACTOR}.optim.lr_min"
    if run.engine == "veomni" and run.setting(kind) in ("linear", "cosine") and run.setting(lowest) == 0:
        yield note(
            kind,
            lowest,
            message=f"The learning rate falls from {run.setting(f'{ACTOR}.optim.lr')} to 0 over the run "
            f"({run.setting(kind)}, lr_min=0).",
            fix=f"{kind}=constant",
        )


def veomni_lora(run: View) -> Iterator[Finding]:
    """LoRA is trained with FSDP2: verl's VeOmni engine has none.

    verl: workers/engine/veomni/transformer_impl.py:get_per_tensor_param.
    """
    keys = [f"actor_rollout_ref.model.{name}" for name in ("lora_rank", "lora.rank")]
    given = [key for key in keys if run.number(key, 0) > 0]
    if run.engine == "veomni" and given:
        yield error(
            *given,
            message=f"{given[0]} is {run.setting(given[0])}, and verl's VeOmni engine has no LoRA: all parameters "
            "would be trained, and the server would wait for an adapter.",
            fix=" ".join(f"{key}=0" for key in given),
        )

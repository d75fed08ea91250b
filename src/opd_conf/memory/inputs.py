"""What the estimate is made from: plain numbers, read from a run. Sizes are bytes; batches count sequences."""

from dataclasses import dataclass
from math import ceil

from opd_conf.memory.hardware import Room, device_room, host_room
from opd_conf.models import ModelFacts, facts
from opd_conf.view import ACTOR, ROLLOUT, Server, View

MODEL = "actor_rollout_ref.model"
BLOCKS = {"fsdp_config": f"{ACTOR}.fsdp_config", "veomni": f"{ACTOR}.veomni"}
"""Where the settings of an engine stand, for the engines that the formulas hold for."""


@dataclass(frozen=True)
class Student:
    """What the student's training takes its memory from. Batches count sequences of one data-parallel rank."""

    model: ModelFacts
    engine: str
    parameter_bytes: int
    trained: int
    shards: int
    per_node: int
    sequence: int
    image_share: float
    sequence_parallel: int
    batch: int
    mini_batch: int
    budget: int | None
    micro_batch: int
    log_prob_budget: int | None
    log_prob_micro_batch: int
    top_k: bool
    topk: int
    checkpointing: bool
    fused: bool
    scaled: bool
    entropy: bool
    eager_entropy: bool
    flash_loss: bool
    param_offload: bool
    optimizer_offload: bool
    offload_policy: bool
    reshard: bool
    no_sync: bool
    bucket: int

    @property
    def tokens(self) -> int:
        """Tokens of the largest micro-batch of an update on one rank, should all responses be as long as they may."""
        return self._tokens(self.budget, self.micro_batch, self.mini_batch)

    @property
    def log_prob_tokens(self) -> int:
        """The same for the log-probabilities of the old policy."""
        return self._tokens(self.log_prob_budget, self.log_prob_micro_batch, self.batch)

    def _tokens(self, budget: int | None, micro_batch: int, batch: int) -> int:
        whole = ceil(batch * self.sequence / self.sequence_parallel)
        part = budget if budget is not None else ceil(micro_batch * self.sequence / self.sequence_parallel)
        return min(whole, part)

    @property
    def several(self) -> bool:
        """Whether gradients of an earlier micro-batch are there during the next."""
        return self.tokens < self.mini_batch * self.sequence / self.sequence_parallel

    @property
    def shard(self) -> float:
        """Bytes of the parameters that a rank stores."""
        return self.parameter_bytes * self.model.parameters / self.shards

    @property
    def trained_shard(self) -> float:
        """The same, of the parameters that are trained: the size of the gradients, and half of Adam's state."""
        return self.parameter_bytes * self.trained / self.shards


@dataclass(frozen=True)
class Served:
    """A model that a server runs: the student's, or a teacher's (`scores`: it gives prompt log-probabilities)."""

    at: str
    name: str
    model: ModelFacts
    weight_bytes: int
    tensor: int
    pipeline: int
    expert: int
    utilization: float
    length: int
    batched_tokens: int
    backend: str
    eager: bool
    sleeps: bool
    scores: bool

    @property
    def weights(self) -> float:
        """Bytes of weights on a rank, split by tensor parallelism; experts by expert parallelism if there is any."""
        experts = self.model.expert_parameters
        split = (self.model.parameters - experts) / self.tensor
        split += experts / (self.expert if self.expert > 1 else self.tensor)
        return self.weight_bytes * split / self.pipeline

    @property
    def sequence_cache(self) -> float:
        """Bytes of keys and values of the longest sequence on a rank, with the recurrent state of linear attention."""
        kv = self.model.kv_bytes(self.tensor) * self.length
        return (kv + self.model.state_bytes / self.tensor) / self.pipeline


@dataclass(frozen=True)
class Settings:
    """All that the estimate is made from; `device` and `host` are what there is, None when nobody said."""

    student: Student
    server: Served
    teachers: tuple[Served, ...]
    npu: bool
    hccl_buffer: int
    device: Room | None
    host: Room | None


def settings(run: View) -> Settings | None:
    """What the estimate needs; None when a model's facts are unknown, or its engine is one without formulas."""
    model = facts(run.student_path or "", run.variable)
    teachers = [(teacher, facts(teacher.model_path or "", run.variable)) for teacher in run.teachers]
    known = [(teacher, its_model) for teacher, its_model in teachers if its_model is not None]
    if model is None or len(known) < len(teachers) or run.engine not in BLOCKS:
        return None
    npu = run.platform == "npu"
    return Settings(
        student=_student(run, model),
        server=_served(run, run.rollout, "student rollout", model, scores=False),
        teachers=tuple(
            _served(run, teacher, f"teacher {teacher.entry}" if len(known) > 1 else "teacher", its_model, scores=True)
            for teacher, its_model in known
        ),
        npu=npu,
        hccl_buffer=int(_number(run, "platform.env.HCCL_BUFFSIZE", 200)) * 2**20 if npu else 0,
        device=device_room(run),
        host=host_room(run),
    )


def unknown(run: View) -> list[str]:
    """The models without facts, by path."""
    paths = dict.fromkeys([run.student_path or "", *(teacher.model_path or "" for teacher in run.teachers)])
    return [path for path in paths if facts(path, run.variable) is None]


def utilization(run: View, server: Server) -> float:
    """The fraction of a device that a server takes; verl's default is 0.5 (workers/config/rollout.py)."""
    return _number(run, f"{server.at}.gpu_memory_utilization", 0.5)


def _student(run: View, model: ModelFacts) -> Student:
    block = BLOCKS[run.engine]
    fsdp = run.engine == "fsdp_config"
    policy = _flag(run, f"{block}.{'offload_policy' if fsdp else 'enable_fsdp_offload'}")
    policy = policy and not (fsdp and run.strategy == "fsdp")  # FSDP1 does not read it
    size = int(_number(run, f"{block}.fsdp_size", -1))
    narrow = _text(run, f"{block}.model_dtype") in ("bf16", "bfloat16", "fp16", "float16")
    lora = _number(run, f"{MODEL}.lora_rank", 0) > 0
    frozen = model.vision_parameters if _flag(run, f"{ACTOR}.freeze_vision_tower") else 0
    chunked = _flag(run, f"{block}.entropy_from_logits_with_chunking")
    samples = run.train_batch * run.rollout_n
    return Student(
        model=model,
        engine=run.engine,
        parameter_bytes=2 if (narrow if fsdp else not _flag(run, f"{block}.mixed_precision")) else 4,
        trained=0 if lora else model.parameters - frozen,
        shards=size if size > 0 else run.student_world,
        per_node=run.student_per_node,
        sequence=run.sequence_length,
        image_share=run.prompt_length / run.sequence_length,
        sequence_parallel=run.sequence_parallel,
        batch=ceil(samples / run.data_parallel),
        mini_batch=ceil(run.mini_batch * run.rollout_n / run.data_parallel),
        budget=(run.token_budget or run.sequence_length) if run.dynamic else None,
        micro_batch=run.micro_batch.per_gpu or ceil((run.micro_batch.overall or 1) / run.data_parallel),
        log_prob_budget=(run.log_prob_token_budget or run.sequence_length) if run.log_prob_dynamic else None,
        log_prob_micro_batch=run.log_prob_micro_batch.per_gpu
        or ceil((run.log_prob_micro_batch.overall or 1) / run.data_parallel),
        top_k=run.uses_top_k,
        topk=run.topk if isinstance(run.topk, int) else 0,
        checkpointing=_flag(run, f"{MODEL}.enable_gradient_checkpointing"),
        fused=run.fused_kernels and not (fsdp and run.uses_top_k),
        scaled=_number(run, f"{ROLLOUT}.temperature", 1) != 1,
        entropy=_number(run, f"{ACTOR}.entropy_coeff", 0) != 0 or _flag(run, f"{ACTOR}.calculate_entropy"),
        eager_entropy=not (chunked or _flag(run, f"{block}.use_torch_compile")),
        flash_loss=run.platform == "gpu" and _text(run, "platform.attention") == "flash_attention_2",
        param_offload=_flag(run, f"{block}.param_offload") and not (policy and fsdp),
        optimizer_offload=_flag(run, f"{block}.optimizer_offload") and not (policy and fsdp),
        offload_policy=policy,
        reshard=not fsdp or _flag(run, f"{block}.reshard_after_forward"),
        no_sync=_flag(run, f"{block}.use_no_sync_for_gradient_accumulation"),
        bucket=int(_number(run, f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", 2048)) * 2**20,
    )


def _served(run: View, server: Server, name: str, model: ModelFacts, scores: bool) -> Served:
    dtype = _text(run, f"{server.at}.dtype")
    return Served(
        at=server.at,
        name=name,
        model=model,
        weight_bytes=4 if dtype in ("float32", "fp32", "float") else 2,
        tensor=server.tensor_parallel,
        pipeline=server.pipeline_parallel,
        expert=server.expert_parallel,
        utilization=utilization(run, server),
        length=server.max_model_len or model.max_positions,
        batched_tokens=int(_number(run, f"{server.at}.max_num_batched_tokens", 8192)),
        backend=server.backend or "",
        eager=_flag(run, f"{server.at}.enforce_eager", True),
        sleeps=_flag(run, f"{server.at}.free_cache_engine", True)
        and _flag(run, f"{server.at}.enable_sleep_mode", True),
        scores=scores,
    )


def _number(run: View, key: str, default: float) -> float:
    found = run.setting(key, default)
    try:
        return default if isinstance(found, bool) else float(found)
    except (TypeError, ValueError):
        return default


def _flag(run: View, key: str, default: bool = False) -> bool:
    return run.setting(key, default) is True


def _text(run: View, key: str) -> str:
    return str(run.setting(key, ""))

"""How much memory a run takes, by phase and by part, before anything starts.

Sizes are bytes of one device (of one node for host RAM) unless a name says GiB. P is the number of a model's
parameters, b the bytes that one of them is stored in, S the ranks that share them, T the tokens of the largest
micro-batch, V the rows of the vocabulary, H the hidden size, L the layers. Every coefficient stands in this module,
once, with where it is from:

- measured: one H200, verl 0.9.1, FSDP2, bf16 compute, Qwen3-0.6B and 1.7B (tests/data/memory.jsonl, within 3 %).
- read: from verl's and vLLM's code.
- guessed: seen elsewhere or derived; it counts as uncertain, and so can cause a warning but no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from opd_conf.models import ModelFacts, facts
from opd_conf.view import ACTOR, ROLLOUT, Server, View

if TYPE_CHECKING:
    from rich.table import Table

GIB = 2**30
MODEL = "actor_rollout_ref.model"
BLOCKS = {"fsdp_config": f"{ACTOR}.fsdp_config", "veomni": f"{ACTOR}.veomni"}
"""Where the settings of an engine stand, for the engines that the formulas hold for."""

PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "KV cache", "workspace", "context")

# Measured: bytes for each token and row of the vocabulary, while the loss is worked out.
ESTIMATOR_LOGITS = 2  # bf16 logits; flash-attn's cross entropy works in place
TOP_K_LOGITS = 12  # 2 logits, 4 log-softmax, 4 its gradient, 2 gradient of the logits; use_chunked_topk saves nothing
LOG_PROB_LOGITS = 2
# Measured: bytes for each token and hidden unit around the loss.
ESTIMATOR_HEAD = 10.4
TOP_K_HEAD = 8.4
LOG_PROB_HEAD = 2
SAVED_BYTES = 2  # read: one bf16 hidden state a layer and token, with gradient checkpointing
SAVED_WITHOUT_CHECKPOINTING = 70  # measured: the same without it, for a dense Qwen3
BASE = int(0.06 * GIB)  # measured: what is allocated beside all of these
# Guessed.
LOGITS_WITHOUT_FLASH = 8  # more for each token and row when flash-attn's cross entropy is not there
LOGITS_EAGER_ENTROPY = 12  # more, when the entropy is neither compiled nor made in chunks
LOGITS_TEMPERATURE = 2  # more, when the logits are divided by a temperature
FUSED_CHUNK = 1024  # tokens whose logits fused kernels hold at a time
LAYER_HIDDEN, LAYER_MLP = 16, 8  # bytes a token for one layer that is computed again
FRAGMENTED = 0.3  # of what comes and goes; measured 0.02 to 0.94, but the allocator gives blocks back before it fails
CUDA_CONTEXT = GIB // 2  # of each process
CUDA_SPARE = GIB  # NCCL's buffers
NPU_CONTEXT = 3 * GIB  # an idle NPU shows 3.0 to 3.4 GB; torch sees 61 of 64 GiB
ASLEEP = 2 * GIB  # vLLM while it sleeps: 1 to 3 GB
SGLANG_ACTIVATIONS = 2 * GIB  # SGLang's fraction counts weights and KV cache only
GRAPHS = GIB  # CUDA graphs of a server that does not run eagerly
# Read: vLLM 0.24. Measured for V2 only: 0.60 GiB with V of 151,936.
V2_CHUNK, V2_BYTES, V1_BYTES = 1024, 4, 6
V2_CLASSES = (
    "Qwen3ForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2MoeForCausalLM",
)
"""Classes that vLLM 0.24 runs with its V2 runner, which makes prompt log-probabilities in chunks."""


@dataclass(frozen=True)
class Part:
    """Bytes of one kind: `size` are there for all we know, `uncertain` may come on top."""

    name: str
    size: float = 0.0
    uncertain: float = 0.0


@dataclass(frozen=True)
class Phase:
    """One moment of a run; a phase with several candidates for its peak (`moment`) has an entry for each."""

    name: str
    parts: tuple[Part, ...]
    moment: str = ""
    of_device: bool = True

    @property
    def size(self) -> float:
        """Bytes that are there for all we know."""
        return sum(part.size for part in self.parts)

    @property
    def upper(self) -> float:
        """Bytes with all that is uncertain."""
        return self.size + sum(part.uncertain for part in self.parts)

    def part(self, name: str) -> Part:
        """All parts of a name together."""
        found = [part for part in self.parts if part.name == name]
        return Part(name, sum(part.size for part in found), sum(part.uncertain for part in found))


@dataclass(frozen=True)
class Estimate:
    """What a run takes, and what that was worked out from."""

    phases: tuple[Phase, ...]
    given: Settings

    @property
    def device(self) -> float | None:
        """Bytes that a device has; None when nobody said."""
        return self.given.device

    def peaks(self) -> list[tuple[Phase, Phase]]:
        """Of each phase the moment that surely takes most, and the one that may take most."""
        groups = [list(group) for _, group in groupby(self.phases, key=lambda phase: phase.name)]
        return [(max(group, key=lambda m: m.size), max(group, key=lambda m: m.upper)) for group in groups]

    def peak(self, name: str) -> tuple[float, float]:
        """Bytes of a phase at its peak: for all we know, and with all that is uncertain."""
        return next((sure.size, upper.upper) for sure, upper in self.peaks() if sure.name == name)


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

    @property
    def workspace(self) -> Part:
        """Bytes for prompt log-probabilities beside what the server has planned with, and for what else it forgets."""
        unplanned = SGLANG_ACTIVATIONS if self.backend == "sglang" else 0 if self.eager else GRAPHS
        if not self.scores:
            return Part("workspace", 0, unplanned)
        rows = self.model.vocabulary
        whole = min(self.batched_tokens, self.length) * rows * V1_BYTES
        if self.backend == "vllm" and self.model.architecture in V2_CLASSES:
            return Part("workspace", min(V2_CHUNK, self.length) * rows * V2_BYTES, unplanned)
        return Part("workspace", 0, whole + unplanned)


@dataclass(frozen=True)
class Settings:
    """All that the estimate is made from, in plain numbers."""

    student: Student
    server: Served
    teachers: tuple[Served, ...]
    npu: bool
    hccl_buffer: int
    device: float | None


@dataclass(frozen=True)
class Lever:
    """One setting that would take less: what to type for it, and what it changes, in words."""

    overrides: Mapping[str, str]
    change: str
    settings: Settings
    last_resort: bool = False


# The formulas, a phase each.


def phases(given: Settings) -> tuple[Phase, ...]:
    """All phases of a run, each with the moments that may be its peak."""
    return (
        _loss(given),
        _layers(given),
        *_optimizer_step(given),
        _log_prob(given),
        _rollout(given),
        _weight_sync(given),
        *(_teacher(given, teacher) for teacher in given.teachers),
        _host(given),
    )


def _states(s: Student, gradients: float) -> tuple[Part, ...]:
    """Parameters, gradients and Adam's states, as they are during an update; on the host with offload_policy."""
    on_device = 0 if s.offload_policy else 1
    gathered = 0 if s.reshard else 2 * s.model.parameters  # read: bf16, from forward to backward
    unsharded = 2 * s.trained if s.no_sync else 0  # read: gradients of all ranks; bf16, or fp32
    return (
        Part("parameters", on_device * s.shard + gathered),
        Part("gradients", on_device * gradients * s.trained_shard + unsharded, unsharded),
        Part("optimizer", on_device * 2 * s.trained_shard),
    )


def _loss(given: Settings) -> Phase:
    """The student's update where the logits are: measured, k1 and forward_kl_topk."""
    s, model = given.student, given.student.model
    tokens, rows = s.tokens, given.student.model.vocabulary
    saved = SAVED_BYTES * model.layers if s.checkpointing else SAVED_WITHOUT_CHECKPOINTING * model.layers
    head = (TOP_K_HEAD if s.top_k else ESTIMATOR_HEAD) if s.checkpointing else 0
    activations = tokens * model.hidden * (saved + head)
    logits = Part("logits", 0, TOP_K_LOGITS * FUSED_CHUNK * rows)
    if not s.fused:
        per_row = TOP_K_LOGITS if s.top_k else ESTIMATOR_LOGITS
        more = LOGITS_TEMPERATURE * s.scaled + LOGITS_EAGER_ENTROPY * s.entropy
        more += 0 if s.top_k or s.flash_loss else LOGITS_WITHOUT_FLASH
        logits = Part("logits", per_row * tokens * rows, more * tokens * rows)
    # Measured: the output matrix in bf16 and its gradient; with top-k both come after the peak. With offload_policy two
    # bytes more a row and unit: fits its one point within 1 %.
    matrices = (0 if s.top_k else 4) + (2 if s.offload_policy else 0)
    workspace = BASE + matrices * model.embedding
    changing = activations + logits.size + workspace
    return Phase(
        "student update",
        (
            *_states(s, 1 if s.several else 0),
            Part("activations", activations, _images(s, tokens)),
            logits,
            Part("workspace", workspace, FRAGMENTED * changing),
            *_beside_training(given),
        ),
        "loss",
    )


def _layers(given: Settings) -> Phase:
    """The student's update in the backward pass of the largest layer: the constants are guessed."""
    s, model = given.student, given.student.model
    width = model.intermediate
    if model.experts:
        width = max(width, model.experts.per_token * model.experts.intermediate + model.experts.shared)
    layer = s.tokens * (LAYER_HIDDEN * model.hidden + LAYER_MLP * width)
    saved = s.tokens * model.hidden * model.layers * (SAVED_BYTES if s.checkpointing else 0)
    size = model.largest_layer
    workspace = BASE + 2 * model.embedding + 2 * size  # root unit and one layer in bf16
    return Phase(
        "student update",
        (
            *_states(s, 1 if s.several else 0),
            Part("activations", saved, layer + _images(s, s.tokens)),
            # The next layer, this one's gradients in bf16 and, to be summed, in fp32.
            Part("workspace", workspace, (2 + 2 + 4) * size + FRAGMENTED * (saved + workspace)),
            *_beside_training(given),
        ),
        "layers",
    )


def _optimizer_step(given: Settings) -> Iterator[Phase]:
    """Adam's step: measured, 5bP, the fifth for what it makes on the way. On the host with offload_policy."""
    s = given.student
    if not s.offload_policy:
        yield Phase(
            "student update",
            (*_states(s, 1), Part("workspace", BASE + s.trained_shard), *_beside_training(given)),
            "optimizer step",
        )


def _log_prob(given: Settings) -> Phase:
    """Log-probabilities of the old policy: measured, with the entropy compiled."""
    s, model, tokens = given.student, given.student.model, given.student.log_prob_tokens
    states = _states(s, 0)
    resident = not (s.optimizer_offload or s.offload_policy)
    workspace = BASE + 2 * model.embedding
    rows = 0 if s.fused else tokens * model.vocabulary
    more = LOGITS_EAGER_ENTROPY * s.eager_entropy + (0 if s.flash_loss else LOGITS_WITHOUT_FLASH)
    activations = LOG_PROB_HEAD * tokens * model.hidden
    changing = workspace + activations + LOG_PROB_LOGITS * rows
    return Phase(
        "log-prob",
        (
            Part("parameters", 0 if s.offload_policy else s.shard),
            Part("optimizer", states[2].size if resident else 0),
            Part("activations", activations, _images(s, tokens)),
            Part("logits", LOG_PROB_LOGITS * rows, more * rows),
            Part("workspace", workspace, FRAGMENTED * changing),
            *_beside_training(given),
        ),
    )


def _images(s: Student, tokens: int) -> float:
    """The vision tower's saved states, were all prompts images: guessed, `merge`² patches a token, two bytes each."""
    tower = s.model.tower
    if tower is None:
        return 0
    return tokens * s.image_share * tower.merge**2 * 2 * tower.hidden * (tower.depth + 8)


def _beside_training(given: Settings) -> tuple[Part, ...]:
    """What else is on the student's device while it trains: its server, asleep or not, and the contexts of both."""
    server = given.server
    if server.sleeps:
        return (Part("workspace", 0, ASLEEP), _context(given, processes=2))
    cache = _cache(given, server)
    return (Part("parameters", server.weights), Part("KV cache", cache), _context(given, processes=2))


def _context(given: Settings, processes: int) -> Part:
    """Driver contexts and the buffers of NCCL or HCCL (read: twice HCCL_BUFFSIZE a communicator)."""
    if given.npu:
        return Part("context", NPU_CONTEXT, 2 * given.hccl_buffer * processes)
    return Part("context", processes * CUDA_CONTEXT, CUDA_SPARE)


def _cache(given: Settings, served: Served) -> float:
    """KV cache and activations of a server: its fraction of the device less its weights; at least one sequence."""
    planned = 0 if given.device is None else served.utilization * given.device - served.weights
    return max(planned, served.sequence_cache)


def _resident(s: Student) -> tuple[Part, Part]:
    """What training leaves on the device while it pauses: read, verl's three offload settings."""
    parameters = 0 if s.param_offload or s.offload_policy else s.shard
    optimizer = 0 if s.optimizer_offload or s.offload_policy else 2 * s.trained_shard
    return Part("parameters", parameters), Part("optimizer", optimizer)


def _rollout(given: Settings) -> Phase:
    """The student's server generates, beside what training leaves on the device."""
    server = given.server
    return Phase(
        "student rollout",
        (
            Part("parameters", server.weights),
            *_resident(given.student),
            Part("KV cache", _cache(given, server)),
            server.workspace,
            _context(given, processes=2),
        ),
    )


def _weight_sync(given: Settings) -> Phase:
    """New weights go to the server, which has no KV cache yet: read, verl's bucket and the largest tensor, whole."""
    s, server = given.student, given.server
    return Phase(
        "weight sync",
        (
            Part("parameters", server.weights + (0 if s.offload_policy else s.shard)),
            _resident(s)[1],
            Part("KV cache", 0 if server.sleeps else _cache(given, server)),
            Part("workspace", BASE + s.bucket + s.parameter_bytes * s.model.largest_tensor, ASLEEP),
            _context(given, processes=2),
        ),
    )


def _teacher(given: Settings, teacher: Served) -> Phase:
    """A teacher scores; nothing else is on its device."""
    return Phase(
        teacher.name,
        (
            Part("parameters", teacher.weights),
            Part("KV cache", _cache(given, teacher)),
            teacher.workspace,
            _context(given, processes=1),
        ),
    )


def _host(given: Settings) -> Phase:
    """RAM of a node with student ranks: what is offloaded, and, uncertain, whole models in fp32 while they load."""
    s, ranks = given.student, given.student.per_node
    parameters = s.shard if s.param_offload or s.offload_policy else 0
    optimizer = 2 * s.trained_shard if s.optimizer_offload or s.offload_policy else 0
    gradients = s.trained_shard if s.offload_policy else 0
    asleep = given.server.weights if given.npu and given.server.sleeps else 0  # read: verl's sleep level 1 on an NPU
    loading = 4 * s.model.parameters * (ranks if s.model.tied else 1)  # read: rank 0, all ranks with tied embeddings
    samples = s.batch * s.sequence * s.topk * 8 if s.top_k else 0
    return Phase(
        "host RAM, a node",
        (
            Part("parameters", ranks * (parameters + asleep)),
            Part("gradients", ranks * gradients),
            Part("optimizer", ranks * optimizer),
            Part("workspace", 0, loading + ranks * samples),
        ),
        of_device=False,
    )


# From a composed configuration.


def estimate(run: View) -> Estimate | None:
    """The estimate for a run; None when a model's facts are unknown, or its engine is one without formulas."""
    given = settings(run)
    return None if given is None else estimated(given)


def estimated(given: Settings) -> Estimate:
    """The estimate for settings, of a run or as they might be."""
    return Estimate(phases(given), given)


def unknown(run: View) -> list[str]:
    """What stands in the way of an estimate: models without facts, an engine without formulas."""
    paths = [_text(run, f"{MODEL}.path"), *(teacher.model_path or "" for teacher in run.teachers)]
    models = [path for path in dict.fromkeys(paths) if facts(path) is None]
    engines = [] if run.engine in BLOCKS else [f"the engine of {run.tree}"]
    return models + engines


def device_memory(run: View) -> float | None:
    """Bytes of a device: `platform.device_memory_gib`."""
    gib = _number(run, "platform.device_memory_gib", 0)
    return gib * GIB if gib > 0 else None


def settings(run: View) -> Settings | None:
    """What the estimate needs, read from a run."""
    model = facts(_text(run, f"{MODEL}.path"))
    teachers = [facts(teacher.model_path or "") for teacher in run.teachers]
    known = [teacher for teacher in teachers if teacher is not None]
    if model is None or len(known) < len(teachers) or run.engine not in BLOCKS:
        return None
    several = len(teachers) > 1
    npu = _text(run, "platform.name") == "npu"
    return Settings(
        student=_student(run, model),
        server=_served(run, run.rollout, "student rollout", model, scores=False),
        teachers=tuple(
            _served(run, teacher, f"teacher {teacher.entry}" if several else "teacher", its_model, scores=True)
            for teacher, its_model in zip(run.teachers, known, strict=True)
        ),
        npu=npu,
        hccl_buffer=int(_number(run, "platform.env.HCCL_BUFFSIZE", 200)) * 2**20 if npu else 0,
        device=device_memory(run),
    )


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
        flash_loss=_text(run, "platform.name") == "gpu" and _text(run, "platform.attention") == "flash_attention_2",
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
        utilization=_number(run, f"{server.at}.gpu_memory_utilization", 0.5),
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


# What would help.


def levers(run: View, now: Estimate, phase: str, wanted: Callable[[Estimate], bool]) -> list[tuple[Lever, float]]:
    """Settings to change until an estimate is as wanted, and the bytes that each frees of a phase, the largest first.

    Each is the largest lever that is left, found by making the estimate again. What slows an update down a lot is taken
    only when nothing else is left. Empty when nothing frees anything.
    """
    chosen: list[tuple[Lever, float]] = []
    while not (chosen and wanted(now)) and len(chosen) < 8:
        freed = [
            (lever, now.peak(phase)[1] - estimated(lever.settings).peak(phase)[1])
            for lever in _candidates(run, now.given, phase)
        ]
        useful = [found for found in freed if found[1] > 0.05 * GIB]
        if not useful:
            break
        chosen.append(max(useful, key=lambda found: (not found[0].last_resort, found[1])))
        now = estimated(chosen[-1][0].settings)
    return chosen


def typed(run: View, found: list[tuple[Lever, float]]) -> str:
    """What to type for levers; of two changes of one key the later counts."""
    values = {key: value for lever, _ in found for key, value in lever.overrides.items()}
    return " ".join(run.set(key, value) for key, value in values.items())


def _candidates(run: View, given: Settings, phase: str) -> Iterator[Lever]:
    for served in (given.server, *given.teachers):
        if served.name == phase:
            yield from _utilizations(given, served)
    if not phase.startswith("teacher"):
        yield from _micro_batches(run, given, phase)
        yield from _engine_levers(given)


def _with(given: Settings, **changed: Any) -> Settings:
    return replace(given, student=replace(given.student, **changed))


def _micro_batches(run: View, given: Settings, phase: str) -> Iterator[Lever]:
    """Half of a micro-batch, at least one sequence; log-probabilities follow the update where their key does."""
    s = given.student
    least = ceil(s.sequence / s.sequence_parallel)
    kinds = {
        "student update": (f"{ACTOR}.ppo_max_token_len_per_gpu", "budget", s.budget, run.micro_batch.at),
        "log-prob": (
            f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
            "log_prob_budget",
            s.log_prob_budget,
            run.log_prob_micro_batch.at,
        ),
    }
    if phase not in kinds:
        return
    key, field, budget, at = kinds[phase]
    if budget is not None and budget > least:
        half = max(least, budget // 2)
        follows = field == "budget" and s.log_prob_budget == budget
        changed = {field: half} | ({"log_prob_budget": half} if follows else {})
        yield Lever({key: str(half)}, f"micro-batch tokens {budget} → {half}", _with(given, **changed))
    field = "micro_batch" if phase == "student update" else "log_prob_micro_batch"
    count = getattr(s, field)
    if budget is None and count > 1:
        half = count // 2
        yield Lever(
            {f"{at}_per_gpu": str(half)}, f"sequences a micro-batch {count} → {half}", _with(given, **{field: half})
        )


def _engine_levers(given: Settings) -> Iterator[Lever]:
    s = given.student
    block, fsdp = BLOCKS[s.engine], s.engine == "fsdp_config"

    def on(key: str, value: str = "true", last_resort: bool = False, **changed: Any) -> Lever:
        return Lever({key: value}, f"{key.rpartition('.')[2]}={value}", _with(given, **changed), last_resort)

    if not s.checkpointing:
        yield on(f"{MODEL}.enable_gradient_checkpointing", checkpointing=True)
    if not s.reshard:
        yield on(f"{block}.reshard_after_forward", reshard=True)
    if s.no_sync:
        yield on(f"{block}.use_no_sync_for_gradient_accumulation", "false", no_sync=False)
    if not s.offload_policy:
        if not s.param_offload:
            yield on(f"{block}.param_offload", param_offload=True)
        if not s.optimizer_offload and (fsdp or s.param_offload):  # VeOmni refuses this one alone
            yield on(f"{block}.optimizer_offload", optimizer_offload=True)
        yield from _offload_policy(given)


def _offload_policy(given: Settings) -> Iterator[Lever]:
    """Everything on the host: measured, an update then takes 6 to 9 times as long."""
    block, fsdp = BLOCKS[given.student.engine], given.student.engine == "fsdp_config"
    changed = _with(given, offload_policy=True, param_offload=False, optimizer_offload=False)
    if fsdp:
        yield Lever({f"{block}.offload_policy": "true"}, "offload_policy=true", changed, last_resort=True)
    else:
        overrides = {"enable_fsdp_offload": "true", "param_offload": "false", "optimizer_offload": "false"}
        keys = {f"{block}.{key}": value for key, value in overrides.items()}
        yield Lever(keys, "enable_fsdp_offload=true", changed, last_resort=True)


def _utilizations(given: Settings, served: Served) -> Iterator[Lever]:
    """The largest fraction, in steps of 0.05, that fits beside the rest and holds the weights and one sequence."""
    if given.device is None:
        return
    mine = estimated(given).peak(served.name)[1]
    fitting = served.utilization - max(0.0, mine - given.device) / given.device
    fraction = floor(round(fitting * 20, 6)) / 20
    if fraction < served.utilization and fraction * given.device >= served.weights + served.sequence_cache:
        changed = replace(served, utilization=fraction)
        yield Lever(
            {f"{served.at}.gpu_memory_utilization": f"{fraction:g}"},
            f"gpu_memory_utilization {served.utilization:g} → {fraction:g}",
            _replaced(given, served, changed),
        )


def _replaced(given: Settings, old: Served, new: Served) -> Settings:
    if given.server == old:
        return replace(given, server=new)
    return replace(given, teachers=tuple(new if teacher == old else teacher for teacher in given.teachers))


# For people.


def gib(size: float) -> str:
    """Bytes as GiB, for people."""
    return f"{size / GIB:.1f}"


def table(found: Estimate) -> Table:
    """The estimate as a table: parts down, phases across, in GiB, `+` before what is uncertain."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    limit = "" if found.device is None else f", of {gib(found.device)} a device"
    made = Table(
        title=f"Memory in GiB at the peak of each phase{limit}; + uncertain",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
    )
    made.add_column("", no_wrap=True)
    peaks = [peak for _, peak in found.peaks()]
    for peak in peaks:
        made.add_column(f"{peak.name}\n({peak.moment})" if peak.moment else peak.name, justify="right")
    for name in PARTS:
        made.add_row(name, *(_cell(peak, name) for peak in peaks))
    made.add_section()
    made.add_row("sum", *(_numbers(peak.size, peak.upper - peak.size) for peak in peaks))
    return made


def _cell(phase: Phase, name: str) -> str:
    part = phase.part(name)
    return _numbers(part.size, part.uncertain) if part.size or part.uncertain else ""


def _numbers(size: float, uncertain: float) -> str:
    return gib(size) + (f" +{gib(uncertain)}" if uncertain >= 0.05 * GIB else "")

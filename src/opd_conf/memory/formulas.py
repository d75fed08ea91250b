"""The formulas: what each phase of a run takes, part by part.

P is the number of a model's parameters, b the bytes that one of them is stored in, S the ranks that share them, T the
tokens of the largest micro-batch, V the rows of the vocabulary, H the hidden size, L the layers. Every coefficient
stands in this module, once, with where it is from:

- measured: one H200, verl 0.9.1, FSDP2, bf16 compute, Qwen3-0.6B and 1.7B (tests/data/memory.jsonl, within 3 %).
- read: from verl's and vLLM's code.
- guessed: seen elsewhere or derived; it counts as uncertain, and so can cause a warning but no error.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from opd_conf.memory.hardware import GIB, Room
from opd_conf.memory.inputs import Served, Settings, Student

PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "KV cache", "workspace", "context")
HOST = "host RAM, a node"

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

    def room(self, phase: str) -> Room | None:
        """What there is for a phase: a device's memory or a node's; None when nobody said."""
        return self.given.host if phase == HOST else self.given.device

    @property
    def strained(self) -> set[str]:
        """The phases that may not fit; of a node's RAM only what is sure counts."""
        taken = {sure.name: sure.size if sure.name == HOST else upper.upper for sure, upper in self.peaks()}
        rooms = {name: self.room(name) for name in taken}
        return {name for name, room in rooms.items() if room is not None and taken[name] > room.size}

    def peaks(self) -> list[tuple[Phase, Phase]]:
        """Of each phase the moment that surely takes most, and the one that may take most."""
        groups = [list(group) for _, group in groupby(self.phases, key=lambda phase: phase.name)]
        return [(max(group, key=lambda m: m.size), max(group, key=lambda m: m.upper)) for group in groups]

    def peak(self, name: str) -> tuple[float, float]:
        """Bytes of a phase at its peak: for all we know, and with all that is uncertain."""
        return next((sure.size, upper.upper) for sure, upper in self.peaks() if sure.name == name)


def estimated(given: Settings) -> Estimate:
    """The estimate for settings, of a run or as they might be."""
    return Estimate(phases(given), given)


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


def _server_workspace(served: Served) -> Part:
    """Bytes for prompt log-probabilities beside what the server has planned with, and for what else it forgets."""
    unplanned = SGLANG_ACTIVATIONS if served.backend == "sglang" else 0 if served.eager else GRAPHS
    if not served.scores:
        return Part("workspace", 0, unplanned)
    rows = served.model.vocabulary
    if served.backend == "vllm" and served.model.architecture in V2_CLASSES:
        return Part("workspace", min(V2_CHUNK, served.length) * rows * V2_BYTES, unplanned)
    return Part("workspace", 0, min(served.batched_tokens, served.length) * rows * V1_BYTES + unplanned)


def _cache(given: Settings, served: Served) -> float:
    """KV cache and activations of a server: its fraction of the device less its weights; at least one sequence."""
    planned = 0 if given.device is None else served.utilization * given.device.size - served.weights
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
            _server_workspace(server),
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
            _server_workspace(teacher),
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
        HOST,
        (
            Part("parameters", ranks * (parameters + asleep)),
            Part("gradients", ranks * gradients),
            Part("optimizer", ranks * optimizer),
            Part("workspace", 0, loading + ranks * samples),
        ),
    )

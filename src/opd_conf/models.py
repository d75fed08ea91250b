"""A model's dimensions, from its config.json or from a table, and the parameters and bytes that follow from them.

Every count is worked out by formula, so that a config.json which nobody has seen yet works too. Counts are numbers of
elements; a size in bytes says so in its name. The formulas are those of transformers 5.9.0's modules; the counts of
published checkpoints agree with them to the last digit (tests/test_models.py).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the MLP, in `layers` of the layers; `shared` is the width of the shared one."""

    count: int
    per_token: int
    intermediate: int
    shared: int = 0
    layers: int = 0


@dataclass(frozen=True)
class Linear:
    """Gated DeltaNet: heads and their width for keys and for values, and the length of the convolution."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    kernel: int = 4


@dataclass(frozen=True)
class Tower:
    """A vision tower of the Qwen3-VL kind; `mergers` counts the deepstack mergers, `out` is the text's hidden size."""

    depth: int
    hidden: int
    intermediate: int
    out: int
    mergers: int = 0
    patch: int = 16
    temporal_patch: int = 2
    merge: int = 2
    positions: int = 2304
    channels: int = 3

    @property
    def parameters(self) -> int:
        """Patch embedding, positions, blocks (attention, MLP and two norms, all with biases), mergers."""
        h, f, merged = self.hidden, self.intermediate, self.merge**2 * self.hidden
        patches = self.channels * self.temporal_patch * self.patch**2 * h + h
        block = 4 * h * h + 2 * h * f + f + 9 * h
        projection = merged * merged + merged + merged * self.out + self.out
        mergers = 2 * h + projection + self.mergers * (2 * merged + projection)
        return patches + self.positions * h + self.depth * block + mergers


@dataclass(frozen=True)
class ModelFacts:
    """The dimensions of a model; `full_layers` of its layers have softmax attention, the others are linear.

    `vocabulary` counts rows of the embedding, which are more than the tokenizer has tokens.
    """

    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    max_positions: int
    full_layers: int
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    experts: Experts | None = None
    linear: Linear | None = None
    tower: Tower | None = None
    mtp_layers: int = 0

    @property
    def embedding(self) -> int:
        """Elements of the embedding; the output matrix has as many, or is the same one (`tied`)."""
        return self.vocabulary * self.hidden

    @property
    def attention(self) -> int:
        """One layer of softmax attention; with an output gate the query projection is twice as wide."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        products = self.hidden * (queries * (2 if self.output_gate else 1) + 2 * keys) + queries * self.hidden
        biases = (queries + 2 * keys if self.qkv_bias else 0) + (self.hidden if self.output_bias else 0)
        return products + biases + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def linear_attention(self) -> int:
        """One Gated DeltaNet layer: qkv, z, a and b, convolution, decay, norm, output."""
        if self.linear is None:
            return 0
        keys, values = self.linear.key_heads * self.linear.key_dim, self.linear.value_heads * self.linear.value_dim
        mixed, heads = 2 * keys + values, self.linear.value_heads
        products = self.hidden * (mixed + 2 * values + 2 * heads)
        return products + self.linear.kernel * mixed + 2 * heads + self.linear.value_dim

    @property
    def dense_mlp(self) -> int:
        """One dense MLP: gate, up, down."""
        biases = 2 * self.intermediate + self.hidden if self.mlp_bias else 0
        return 3 * self.hidden * self.intermediate + biases

    def mlp(self, experts: int) -> int:
        """One mixture with so many experts counted: router, experts, shared expert and its gate."""
        if self.experts is None:
            return self.dense_mlp
        shared = 3 * self.hidden * self.experts.shared + self.hidden if self.experts.shared else 0
        return self.hidden * (self.experts.count + 3 * experts * self.experts.intermediate) + shared

    def text(self, experts: int) -> int:
        """Decoder, embedding and output matrix with so many experts counted in each mixture."""
        sparse = self.experts.layers if self.experts else 0
        mixers = self.full_layers * self.attention + (self.layers - self.full_layers) * self.linear_attention
        mlps = sparse * self.mlp(experts) + (self.layers - sparse) * self.dense_mlp
        return self.embedding * (1 if self.tied else 2) + mixers + mlps + self.layers * 2 * self.hidden + self.hidden

    @property
    def text_parameters(self) -> int:
        """Decoder, embedding and output matrix."""
        return self.text(self.experts.count if self.experts else 0)

    @property
    def active_parameters(self) -> int:
        """The same, of the experts only those that a token visits."""
        return self.text(self.experts.per_token if self.experts else 0)

    @property
    def vision_parameters(self) -> int:
        """The vision tower with its mergers."""
        return self.tower.parameters if self.tower else 0

    @property
    def parameters(self) -> int:
        """What transformers loads: text and vision tower. A layer for multi-token prediction stays in the file."""
        return self.text_parameters + self.vision_parameters

    @property
    def without_embedding(self) -> int:
        """The text's parameters without embedding and output matrix, as model cards give them."""
        return self.text_parameters - self.embedding * (1 if self.tied else 2)

    @property
    def expert_parameters(self) -> int:
        """All routed experts of all layers: what expert parallelism divides."""
        if self.experts is None:
            return 0
        return 3 * self.hidden * self.experts.count * self.experts.intermediate * self.experts.layers

    @property
    def largest_layer(self) -> int:
        """Elements of the largest layer: what FSDP gathers at a time."""
        mlp = self.mlp(self.experts.count) if self.experts and self.experts.layers else self.dense_mlp
        return max(self.attention, self.linear_attention) + mlp + 2 * self.hidden

    @property
    def largest_tensor(self) -> int:
        """Elements of the largest tensor: the embedding, or the gate and up projections of all experts of a layer."""
        fused = 2 * self.experts.count * self.experts.intermediate * self.hidden if self.experts else 0
        return max(self.embedding, fused)

    @property
    def mtp_parameters(self) -> int:
        """Layers for multi-token prediction: a projection of two states, three norms and a full layer each."""
        layer = self.attention + self.mlp(self.experts.count if self.experts else 0) + 2 * self.hidden
        return self.mtp_layers * (2 * self.hidden**2 + 3 * self.hidden + layer)

    def kv_bytes(self, tensor_parallel: int = 1) -> int:
        """Bytes of bf16 keys and values a token and rank; with more ranks than heads, heads are repeated."""
        return 2 * 2 * max(1, self.kv_heads // tensor_parallel) * self.head_dim * self.full_layers

    @property
    def state_bytes(self) -> int:
        """Bytes of fp32 recurrent state a sequence, all ranks together."""
        if self.linear is None:
            return 0
        state = self.linear.value_heads * self.linear.key_dim * self.linear.value_dim
        return 4 * (self.layers - self.full_layers) * state


def _qwen2(hidden: int, layers: int, heads: int, kv: int, width: int, rows: int, tied: bool) -> ModelFacts:
    return ModelFacts(
        "Qwen2ForCausalLM", hidden, layers, heads, kv, hidden // heads, width, rows, tied, 32768, layers, qkv_bias=True
    )


def _qwen3(hidden: int, layers: int, heads: int, width: int, tied: bool, positions: int = 40960) -> ModelFacts:
    return ModelFacts(
        "Qwen3ForCausalLM", hidden, layers, heads, 8, 128, width, 151936, tied, positions, layers, qk_norm=True
    )


def _qwen3_vl(text: ModelFacts) -> ModelFacts:
    tower = Tower(27, 1152, 4304, out=text.hidden, mergers=3)
    return replace(text, architecture="Qwen3VLForConditionalGeneration", max_positions=262144, tower=tower)


def _qwen3_5(hidden: int, layers: int, heads: int, kv: int, width: int, values: int, tower: Tower) -> ModelFacts:
    return ModelFacts(
        "Qwen3_5ForConditionalGeneration",
        hidden,
        layers,
        heads,
        kv,
        256,
        width,
        248320,
        tied=hidden < 4096,
        max_positions=262144,
        full_layers=layers // 4,
        qk_norm=True,
        output_gate=True,
        linear=Linear(16, 128, values, 128),
        tower=tower,
        mtp_layers=1,
    )


_QWEN3_8B = _qwen3(4096, 36, 32, 12288, tied=False)
_QWEN3_32B = _qwen3(5120, 64, 64, 25600, tied=False)
_QWEN3_30B = replace(
    _qwen3(2048, 48, 32, 6144, tied=False),
    architecture="Qwen3MoeForCausalLM",
    kv_heads=4,
    experts=Experts(128, 8, 768, layers=48),
)
_QWEN3_5_35B = replace(
    _qwen3_5(2048, 40, 16, 2, 0, 32, Tower(27, 1152, 4304, out=2048)),
    architecture="Qwen3_5MoeForConditionalGeneration",
    tied=False,
    experts=Experts(256, 8, 512, shared=512, layers=40),
)

KNOWN: dict[str, ModelFacts] = {
    "Qwen2.5-0.5B": _qwen2(896, 24, 14, 2, 4864, 151936, tied=True),
    "Qwen2.5-0.5B-Instruct": _qwen2(896, 24, 14, 2, 4864, 151936, tied=True),
    "Qwen2.5-3B-Instruct": _qwen2(2048, 36, 16, 2, 11008, 151936, tied=True),
    "Qwen2.5-7B-Instruct": _qwen2(3584, 28, 28, 4, 18944, 152064, tied=False),
    "Qwen3-0.6B": _qwen3(1024, 28, 16, 3072, tied=True),
    "Qwen3-1.7B": _qwen3(2048, 28, 16, 6144, tied=True),
    "Qwen3-4B": _qwen3(2560, 36, 32, 9728, tied=True),
    "Qwen3-4B-Instruct-2507": _qwen3(2560, 36, 32, 9728, tied=True, positions=262144),
    "Qwen3-8B": _QWEN3_8B,
    "Qwen3-14B": _qwen3(5120, 40, 40, 17408, tied=False),
    "Qwen3-32B": _QWEN3_32B,
    "Qwen3-30B-A3B": _QWEN3_30B,
    "Qwen3-30B-A3B-Instruct-2507": replace(_QWEN3_30B, max_positions=262144),
    "Qwen3-VL-8B-Instruct": _qwen3_vl(_QWEN3_8B),
    "Qwen3-VL-32B-Instruct": _qwen3_vl(_QWEN3_32B),
    "Qwen3.5-2B": _qwen3_5(2048, 24, 8, 2, 6144, 16, Tower(24, 1024, 4096, out=2048)),
    "Qwen3.5-4B": _qwen3_5(2560, 32, 16, 4, 9216, 32, Tower(24, 1024, 4096, out=2560)),
    "Qwen3.5-9B": _qwen3_5(4096, 32, 16, 4, 12288, 32, Tower(27, 1152, 4304, out=4096)),
    "Qwen3.5-35B-A3B": _QWEN3_5_35B,
}
"""Models of the organisation Qwen by name, for when no config.json is in sight.

Dimensions: THUDM/slime@624b824 scripts/models/*.sh, pytorch/torchtitan@b5bcd76 torchtitan/models/qwen3_5, transformers
5.9.0 configuration_*.py, and for max_positions copies of config.json in fine-tunes on the hub.
"""


def facts(path: str, environment: Mapping[str, str] | None = None) -> ModelFacts | None:
    """The facts of a model: from its folder, else from the Hugging Face cache, else from KNOWN; None when unknown.

    A folder that cannot be seen from here is known by its name: a plan may be made elsewhere than on the cluster.
    Raises nothing: a config.json that cannot be read, or has numbers that do not fit together, is as good as none.
    """
    try:
        folder = Path(path).expanduser()
        here = folder.is_dir()
        cache = hub_cache(os.environ if environment is None else environment)
        for config in (folder / "config.json", None if here else _snapshot(path, cache)):
            if config is not None and config.is_file():
                return _read(config, config.stat().st_mtime_ns)
    except (OSError, RuntimeError, ValueError):  # no permission; no home folder; a null byte
        return None
    organisation, _, name = path.rstrip("/").rpartition("/")
    elsewhere = organisation.startswith(("/", "~", ".")) and not here
    return KNOWN.get(name) if organisation == "Qwen" or elsewhere else None


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps models (its constants.py): HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME, ~/.cache."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if given := environment.get(name):
            return Path(given).expanduser()
    home = environment.get("HF_HOME") or f"{environment.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(home).expanduser() / "hub"


def _snapshot(path: str, cache: Path) -> Path | None:
    """config.json of the snapshot that `main` stands for, else of the newest one."""
    if path.count("/") > 1 or path.startswith(("/", "~", ".")):
        return None
    folder = cache / f"models--{path.replace('/', '--')}"
    main = folder / "refs" / "main"
    named = [folder / "snapshots" / main.read_text().strip() / "config.json"] if main.is_file() else []
    others = sorted(folder.glob("snapshots/*/config.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    return next((file for file in [*named, *others] if file.is_file()), None)


@lru_cache(maxsize=64)
def _read(config: Path, _changed: int) -> ModelFacts | None:
    """Rules ask several times in one check; the time of the last change keeps a long-lived process right."""
    try:
        return from_config(json.loads(config.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, IndexError, ZeroDivisionError, AttributeError):
        return None


FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {},
    "Qwen2ForCausalLM": {"qkv_bias": True},
    "Qwen2MoeForCausalLM": {"qkv_bias": True},
    "Qwen3ForCausalLM": {"qk_norm": True},
    "Qwen3MoeForCausalLM": {"qk_norm": True},
    "Qwen3VLForConditionalGeneration": {"qk_norm": True},
    "Qwen3VLMoeForConditionalGeneration": {"qk_norm": True},
    "Qwen3_5ForCausalLM": {"qk_norm": True, "output_gate": True},
    "Qwen3_5ForConditionalGeneration": {"qk_norm": True, "output_gate": True},
    "Qwen3_5MoeForCausalLM": {"qk_norm": True, "output_gate": True},
    "Qwen3_5MoeForConditionalGeneration": {"qk_norm": True, "output_gate": True},
}
"""Classes that the formulas hold for, and what is particular to each."""


def from_config(config: Mapping[str, Any]) -> ModelFacts | None:
    """The facts in a config.json; None for a class that the formulas do not know. KeyError when a number lacks."""
    [architecture] = config["architectures"]
    if architecture not in FAMILIES:
        return None
    text = config.get("text_config") or config
    layers, heads, hidden = text["num_hidden_layers"], text["num_attention_heads"], text["hidden_size"]
    bias = bool(text.get("attention_bias", False))
    plain = ModelFacts(
        architecture=architecture,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=text.get("head_dim") or hidden // heads,
        intermediate=text.get("intermediate_size") or 0,
        vocabulary=text["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        max_positions=text["max_position_embeddings"],
        full_layers=_full_layers(text, layers),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bool(text.get("mlp_bias", False)),
        experts=_experts(text, layers),
        linear=_linear(text),
        tower=_tower(config["vision_config"]) if config.get("vision_config") else None,
        mtp_layers=text.get("mtp_num_hidden_layers") or 0,
    )
    return replace(plain, **FAMILIES[architecture])


def _full_layers(text: Mapping[str, Any], layers: int) -> int:
    if "linear_num_key_heads" not in text:
        return layers
    if kinds := text.get("layer_types"):
        return sum(kind != "linear_attention" for kind in kinds)
    return layers // int(text.get("full_attention_interval", 4))


def _experts(text: Mapping[str, Any], layers: int) -> Experts | None:
    """Which layers are mixtures: transformers' Qwen3MoeDecoderLayer, for decoder_sparse_step and mlp_only_layers."""
    if not (count := text.get("num_experts")):
        return None
    step, dense = text.get("decoder_sparse_step", 1), text.get("mlp_only_layers") or []
    sparse = sum((layer + 1) % step == 0 and layer not in dense for layer in range(layers))
    shared = text.get("shared_expert_intermediate_size") or 0
    return Experts(count, text["num_experts_per_tok"], text["moe_intermediate_size"], shared, sparse)


def _linear(text: Mapping[str, Any]) -> Linear | None:
    if "linear_num_key_heads" not in text:
        return None
    return Linear(
        text["linear_num_key_heads"],
        text["linear_key_head_dim"],
        text["linear_num_value_heads"],
        text["linear_value_head_dim"],
        text.get("linear_conv_kernel_dim", 4),
    )


def _tower(vision: Mapping[str, Any]) -> Tower:
    return Tower(
        depth=vision["depth"],
        hidden=vision["hidden_size"],
        intermediate=vision["intermediate_size"],
        out=vision["out_hidden_size"],
        mergers=len(vision.get("deepstack_visual_indexes") or ()),
        patch=vision["patch_size"],
        temporal_patch=vision.get("temporal_patch_size", 2),
        merge=vision.get("spatial_merge_size", 2),
        positions=vision["num_position_embeddings"],
        channels=vision.get("in_channels", 3),
    )

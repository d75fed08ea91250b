"""A model's dimensions, from its config.json or from models.yaml, and the parameters and bytes that follow from them.

Every count is worked out by formula, so that a config.json which nobody has seen yet works too. Counts are numbers of
elements; a size in bytes says so in its name. The formulas are those of transformers 5.9.0's modules; the counts of
published checkpoints agree with them to the last digit (tests/test_models.py).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from opd_conf import model_files
from opd_conf.model_files import Variable


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


@cache
def known() -> dict[str, ModelFacts]:
    """The facts of models.yaml by name, for models whose config.json is not in sight."""
    text = (Path(__file__).parent / "models.yaml").read_text(encoding="utf-8")
    table = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # the slow loader takes 20 ms more
    found = {name: from_config(config) for name, config in table.items() if not name.startswith(".")}
    return {name: model for name, model in found.items() if model is not None}


def facts(path: str, variable: Variable = os.environ.get) -> ModelFacts | None:
    """The facts of a model: from its config.json where it is here (model_files.find), else by name; None when unknown.

    A folder or address that cannot be opened from here is known by its last name: a plan may be made elsewhere than on
    the cluster. Raises nothing: a config.json that cannot be read, or whose numbers do not fit together, is as good as
    none.
    """
    model = model_files.find(path, variable)
    if model is not None and (model.config is not None or not model.cached):
        return _read(model.config or {})
    organisation, _, name = path.rstrip("/").rpartition("/")
    elsewhere = model_files.is_remote(path) or model_files.looks_local(path)
    return known().get(name) if organisation == "Qwen" or elsewhere else None


def _read(config: Mapping[str, Any]) -> ModelFacts | None:
    try:
        return from_config(config)
    except (ValueError, TypeError, KeyError, IndexError, ZeroDivisionError, AttributeError):
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

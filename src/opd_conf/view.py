"""A composed configuration in the terms of the field: world sizes, pools, batches, lengths, servers.

Everything that a rule counts with is derived here, once. Only what is read is resolved: all of verl's tree takes 0.1 s.
Numbers count accelerators, sequences or tokens; batches are counted in prompts, before `rollout.n` answers each.
"""

import functools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from opd_conf import verl_tree
from opd_conf.platforms import as_text
from opd_conf.reader import Malformed, Reader, Values, plain

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
LOSS = "distillation.distillation_loss"
TEACHERS = "distillation.teacher_models"

TREES = {
    "fsdp_config": "ppo_trainer",
    "veomni": "ppo_veomni_trainer",
    "megatron": "ppo_megatron_trainer",
    "torchtitan": "ppo_torchtitan_trainer",
}
"""verl's tree, by the block below `actor` that only this tree has."""

ACTIONS = ("train", "check", "dry_run", "script")
REPORTS = ("text", "json")
RUNNERS = ("auto", "uv", "python")
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
"""Names of transformers' attention functions; one with a `/` is a kernel of the Hugging Face hub."""

TEACHER_DEFAULTS: dict[str, Any] = {"key": None, "model_path": None, "num_replicas": 0}
"""What a teacher added by name gets for a key that it lacks: workers/config/distillation.py."""

SERVER_DEFAULTS: dict[str, Any] = {
    "name": None,
    "load_format": "dummy",
    "tensor_model_parallel_size": 2,
    "data_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "expert_parallel_size": 1,
    "prompt_length": 512,
    "response_length": 512,
    "max_model_len": None,
}
"""The same for its `inference` block: workers/config/rollout.py:RolloutConfig (there a missing name is MISSING)."""

_ONE_KEY = re.compile(r"\$\{(?:oc\.select:)?([a-z][\w.]*)[,}]")
_SELECT = re.compile(r"\$\{oc\.select:[\w.]+,\s*([^${}]*)\}")
_FROM_SHELL = re.compile(r"\$\{oc\.env:(\w+),\s*(.*)\}")


@dataclass(frozen=True)
class Server:
    """How a model is served; `at` is the key of the block. Lengths in tokens; `max_model_len` None: the model's own."""

    at: str
    backend: str | None
    load_format: str
    tensor_parallel: int
    data_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    prompt_length: int
    response_length: int
    max_model_len: int | None

    @property
    def accelerators(self) -> int:
        """Accelerators of one replica (engine_workers.py:ActorRolloutRefWorker.init_model, distillation.py)."""
        return self.tensor_parallel * self.data_parallel * self.pipeline_parallel

    @property
    def sizes(self) -> str:
        """The same as a calculation for people."""
        sizes = f"{self.tensor_parallel} x {self.data_parallel} x {self.pipeline_parallel}"
        return f"tensor x data x pipeline = {sizes} = {self.accelerators}"


@dataclass(frozen=True)
class Teacher(Server):
    """One teacher that verl will start; `entry` is its name below `distillation.teacher_models`."""

    entry: str
    key: str | None
    model_path: str | None
    num_replicas: int
    max_logprobs: int | None

    @property
    def prefix(self) -> str:
        """The key of the entry."""
        return f"{TEACHERS}.{self.entry}"


@dataclass(frozen=True)
class MicroBatch:
    """A way to cut batches for the accelerator: sequences a device, and verl's deprecated count over all devices."""

    at: str
    per_gpu: int | None
    overall: int | None


@dataclass(frozen=True)
class View:
    """What rules read. `values` is for the few that look at all keys; a single key of no other rule is a `setting`."""

    values: Values = field(repr=False, compare=False)
    ignored: tuple[str, ...]
    action: str
    platform: str
    student_path: str | None

    engine: str
    strategy: str
    sequence_parallel: int
    model_parallel: int
    fused_kernels: bool

    cluster_nodes: int
    cluster_per_node: int
    cluster_cpus: int | None
    student_nodes: int
    student_per_node: int
    teacher_nodes: int
    teacher_per_node: int

    train_batch: int
    mini_batch: int
    rollout_n: int
    dynamic: bool
    log_prob_dynamic: bool
    micro_batch: MicroBatch
    log_prob_micro_batch: MicroBatch
    ref_micro_batch: MicroBatch | None
    token_budget: int | None
    log_prob_token_budget: int | None

    prompt_length: int
    response_length: int
    train_files: tuple[str, ...]
    val_files: tuple[str, ...]

    distillation_enabled: object
    loss_mode: str
    topk: object
    policy_gradient: bool
    adv_estimator: str

    rollout: Server
    teachers: tuple[Teacher, ...]
    dropped_teacher: str | None

    @property
    def tree(self) -> str:
        """The name of verl's tree that this configuration is made from."""
        return TREES[self.engine]

    @property
    def student_world(self) -> int:
        """Accelerators of the student: its number of ranks."""
        return self.student_nodes * self.student_per_node

    @property
    def teacher_pool(self) -> int:
        """Accelerators of all teachers together (trainer_base.py:_init_resource_pool_mgr)."""
        return self.teacher_nodes * self.teacher_per_node

    @property
    def data_parallel(self) -> int:
        """Groups of the student that see different sequences (engine/*/transformer_impl.py:get_data_parallel_size)."""
        return max(1, self.student_world // self.model_parallel)

    @property
    def sequence_length(self) -> int:
        """Tokens of the longest sequence: prompt and response."""
        return self.prompt_length + self.response_length

    @property
    def uses_top_k(self) -> bool:
        """Whether the loss compares top-k distributions instead of sampled tokens."""
        return self.loss_mode == "forward_kl_topk"

    @property
    def model_paths(self) -> dict[str, str]:
        """The paths of student and teachers by key, of those that have one."""
        paths = {"actor_rollout_ref.model.path": self.student_path}
        paths |= {f"{teacher.prefix}.model_path": teacher.model_path for teacher in self.teachers}
        return {key: path for key, path in paths.items() if path}

    @property
    def named_teachers(self) -> bool:
        """Whether teachers were added by name, which changes verl's routing and its arithmetic of replicas."""
        return any(teacher.entry != "teacher_model" for teacher in self.teachers)

    def setting(self, key: str, default: Any = None) -> Any:
        """The value of any key; the default where there is none, or null, or one that cannot be worked out.

        Also where it is of another kind than the default (`value_kind` speaks of that).
        """
        try:
            found = self.values.value(key)
        except OmegaConfBaseException:
            return default
        same = default is None or isinstance(found, type(default)) or {type(found), type(default)} == {int, float}
        return found if found is not None and same else default

    def number(self, key: str, default: int) -> int:
        """The whole number at a key; the default where there is something else, which another rule reports."""
        found = self.setting(key)
        return found if isinstance(found, int) and not isinstance(found, bool) else default

    def variable(self, name: str) -> str | None:
        """An environment variable as the trainer will have it: of the platform's block, else of this shell."""
        key = f"platform.env.{name}"
        if not self.values.has(key):
            return os.environ.get(name) if self.action in ("train", "check") else None
        written = self.values.written(key)
        if isinstance(written, str) and (found := _FROM_SHELL.fullmatch(written)):  # OmegaConf would take a millisecond
            default = found[2].strip("'\"")
            return os.environ.get(found[1], None if default == "null" else default)
        value = self.setting(key)
        return None if value is None else as_text(value)

    @functools.cached_property
    def verl(self) -> Mapping[str, Any]:
        """verl's own tree, as plain data."""
        return verl_tree.read(self.tree)

    def default(self, key: str) -> Any:
        """What stands at a key in verl's own tree, None without one; of `oc.select` what it falls back to."""
        found: Any = self.verl
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        select = _SELECT.fullmatch(found) if isinstance(found, str) else None
        return yaml.safe_load(select[1]) if select else found

    def origin(self, key: str) -> str:
        """The key whose value a key takes over, through interpolations of one key each; the key itself otherwise."""
        found = _ONE_KEY.match(str(self.values.written(key)))
        return self.origin(found[1]) if found and self.has(found[1]) else key

    def changed(self, key: str) -> bool:
        """Whether a key has a plain value of its own, another than verl's: then somebody wanted it."""
        written = self.values.written(key)
        return written != self.default(key) and self.has(key) and "${" not in str(written)

    def has(self, key: str) -> bool:
        """Whether a key is there, so that an override of it needs no `+`."""
        return self.values.has(key)

    def follows(self, key: str) -> bool:
        """Whether a key's value is made from other keys."""
        return "${" in str(self.values.written(key, ""))

    def set(self, key: str, value: object) -> str:
        """What to type to give a key a plain value: `key=value`, or `+key=value` where verl's tree lacks it."""
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        return f"{'' if self.has(key) else '+'}{key}={text}"


def is_qwen3_5(path: str) -> bool:
    """Whether a model's path is one of the Qwen3.5 family, by its name: its files are seldom where a run is planned."""
    return re.search(r"qwen-?3[._]5", path, re.IGNORECASE) is not None


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a number up to a limit: what a size that does not divide may become."""
    # Up to a bound: a number with a larger one is a slip of the hand, and any divisor will do.
    small = [size for size in range(1, min(math.isqrt(number), 10**5) + 1) if number % size == 0]
    return max(size for pair in small for size in (pair, number // pair) if size <= limit)


def view(config: DictConfig) -> View:
    """A composed configuration, with our root keys, as rules read it. Raises Malformed for values of the wrong kind."""
    read = Reader(plain(config))
    engine = next((block for block in TREES if block in _block(read, ACTOR)), "fsdp_config")
    dynamic = read.flag(f"{ACTOR}.use_dynamic_bsz")
    log_prob_dynamic = read.flag(f"{ROLLOUT}.log_prob_use_dynamic_bsz")
    teachers, dropped = _teachers(read)
    seen = View(
        values=read.values,
        ignored=read.texts("checks.ignore"),
        action=read.choice("action", ACTIONS),
        platform=read.text("platform.name"),
        student_path=read.optional_text("actor_rollout_ref.model.path"),
        engine=engine,
        strategy=read.text(f"{ACTOR}.strategy"),
        sequence_parallel=_sequence_parallel(read, engine),
        model_parallel=_model_parallel(read, engine),
        fused_kernels=read.flag("actor_rollout_ref.model.use_fused_kernels"),
        cluster_nodes=read.size("cluster.nodes"),
        cluster_per_node=read.size("cluster.accelerators_per_node"),
        cluster_cpus=read.optional_size("cluster.cpus_per_node"),
        student_nodes=read.size("trainer.nnodes"),
        student_per_node=read.size("trainer.n_gpus_per_node"),
        teacher_nodes=read.size("distillation.nnodes"),
        teacher_per_node=read.size("distillation.n_gpus_per_node"),
        train_batch=read.size("data.train_batch_size"),
        mini_batch=read.size(f"{ACTOR}.ppo_mini_batch_size"),
        rollout_n=read.size(f"{ROLLOUT}.n"),
        dynamic=dynamic,
        log_prob_dynamic=log_prob_dynamic,
        micro_batch=_micro_batch(read, ACTOR, "ppo_micro_batch_size"),
        log_prob_micro_batch=_micro_batch(read, ROLLOUT, "log_prob_micro_batch_size"),
        ref_micro_batch=_micro_batch(read, REF, "log_prob_micro_batch_size") if _uses_ref(read) else None,
        token_budget=read.optional_size(f"{ACTOR}.ppo_max_token_len_per_gpu") if dynamic else None,
        log_prob_token_budget=read.optional_size(f"{ROLLOUT}.log_prob_max_token_len_per_gpu")
        if log_prob_dynamic
        else None,
        prompt_length=read.size("data.max_prompt_length"),
        response_length=read.size("data.max_response_length"),
        train_files=read.texts("data.train_files"),
        val_files=read.texts("data.val_files"),
        distillation_enabled=read.value("distillation.enabled"),
        loss_mode=read.text(f"{LOSS}.loss_mode"),
        topk=read.value(f"{LOSS}.topk"),
        policy_gradient=read.flag(f"{LOSS}.use_policy_gradient"),
        adv_estimator=read.text("algorithm.adv_estimator"),
        rollout=Server(**_server(read, ROLLOUT)),
        teachers=teachers,
        dropped_teacher=dropped,
    )
    _check_ours(read)
    if read.faults:
        # What is made from a wrong value is wrong too: only the value itself is worth a message.
        raise Malformed([fault for fault in read.faults if not seen.follows(fault.key)] or read.faults)
    return seen


def _check_ours(read: Reader) -> None:
    """What no rule counts with and the stages after the checks need, all of it ours."""
    read.choice("checks.report", REPORTS)
    read.choice("launch.runner", RUNNERS)
    read.flag("launch.any_verl_version")
    read.flag("launch.resume")
    read.texts("launch.try_next")
    read.optional_text("launch.verl_root")
    read.name("run_dir")
    if "/" not in str(read.values.written("platform.attention", "/")):
        read.choice("platform.attention", ATTENTIONS)
    read.variables("platform.env")
    read.block("ray_kwargs.ray_init.runtime_env")
    if read.values.written("ray_kwargs.ray_init.runtime_env.env_vars") is not None:
        read.variables("ray_kwargs.ray_init.runtime_env.env_vars")


def _block(read: Reader, key: str) -> dict[str, Any]:
    """The mapping below a key, empty where there is none."""
    found = read.values.written(key)
    return found if isinstance(found, dict) else {}


def _sequence_parallel(read: Reader, engine: str) -> int:
    """Ranks that share one sequence: verl's `sp_size` (engine/*/transformer_impl.py:forward_backward_batch)."""
    if engine == "veomni":
        return read.size(f"{ACTOR}.veomni.ulysses_parallel_size")
    if engine == "megatron":
        return read.size(f"{ACTOR}.megatron.context_parallel_size")
    if engine == "torchtitan":
        return read.size(f"{ACTOR}.torchtitan.tensor_parallel_size")
    # The deprecated key wins when it is above 1: workers/config/actor.py:FSDPActorConfig.__post_init__.
    deprecated = read.size(f"{ACTOR}.ulysses_sequence_parallel_size", 1)
    return deprecated if deprecated > 1 else read.size(f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size")


def _model_parallel(read: Reader, engine: str) -> int:
    """Ranks that work on the same sequences: the world divided by this is the data-parallel size."""
    shared = _sequence_parallel(read, engine)
    if engine == "megatron":
        shared *= read.size(f"{ACTOR}.megatron.tensor_model_parallel_size")
        shared *= read.size(f"{ACTOR}.megatron.pipeline_model_parallel_size")
    return shared


def _uses_ref(read: Reader) -> bool:
    """Whether verl builds a reference policy (trainer/ppo/utils.py:need_reference_policy)."""
    return read.flag("algorithm.use_kl_in_reward") or read.flag(f"{ACTOR}.use_kl_loss")


def _micro_batch(read: Reader, block: str, name: str) -> MicroBatch:
    at = f"{block}.{name}"
    return MicroBatch(at, read.optional_size(f"{at}_per_gpu"), read.optional_size(at))


def _server(read: Reader, at: str, defaults: Mapping[str, Any] = SERVER_DEFAULTS) -> dict[str, Any]:
    """The fields of a Server, from the block `at`."""
    return {
        "at": at,
        "backend": read.optional_text(f"{at}.name", defaults["name"]),
        "load_format": read.text(f"{at}.load_format", defaults["load_format"]),
        "tensor_parallel": _server_size(read, at, "tensor_model_parallel_size"),
        "data_parallel": _server_size(read, at, "data_parallel_size"),
        "pipeline_parallel": _server_size(read, at, "pipeline_model_parallel_size"),
        "expert_parallel": _server_size(read, at, "expert_parallel_size"),
        "prompt_length": _server_size(read, at, "prompt_length"),
        "response_length": _server_size(read, at, "response_length"),
        "max_model_len": read.optional_size(f"{at}.max_model_len", defaults["max_model_len"]),
    }


def _server_size(read: Reader, at: str, name: str) -> int:
    return read.size(f"{at}.{name}", SERVER_DEFAULTS[name])


def _teachers(read: Reader) -> tuple[tuple[Teacher, ...], str | None]:
    """The teachers that verl starts, and the model of the entry that it drops.

    `teacher_model` counts only as long as it is alone: workers/config/distillation.py:_resolve_teacher_models.
    """
    entries = list(_block(read, TEACHERS))
    named = [entry for entry in entries if entry != "teacher_model"]
    dropped = read.optional_text(f"{TEACHERS}.teacher_model.model_path", None) if named else None
    return tuple(_teacher(read, entry) for entry in named or entries), dropped


def _teacher(read: Reader, entry: str) -> Teacher:
    at = f"{TEACHERS}.{entry}"
    return Teacher(
        **_server(read, f"{at}.inference"),
        entry=entry,
        key=read.optional_text(f"{at}.key", TEACHER_DEFAULTS["key"]),
        model_path=read.optional_text(f"{at}.model_path", TEACHER_DEFAULTS["model_path"]),
        num_replicas=read.optional_size(f"{at}.num_replicas", TEACHER_DEFAULTS["num_replicas"], least=0) or 0,
        max_logprobs=read.optional_size(f"{at}.inference.engine_kwargs.vllm.max_logprobs", None, least=-1),
    )

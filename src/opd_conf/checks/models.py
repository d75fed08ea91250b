"""What the models' own files say: paths, heads, positions. verl compares none of them in time."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd_conf import model_files
from opd_conf.checks.engine import ULYSSES
from opd_conf.checks.finding import Finding, error, note, warning
from opd_conf.model_files import Model
from opd_conf.view import ACTOR, ROLLOUT, Server, View

STUDENT = "actor_rollout_ref.model"


@dataclass(frozen=True)
class Part:
    """The student or a teacher: how it is called in a message, the key of its path, its server, its files if here."""

    role: str
    key: str
    path: str
    server: Server
    model: Model | None
    tokenizer: Model | None

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json, empty when it cannot be seen."""
        return (self.model.config if self.model else None) or {}


_latest: list[tuple[View, list[Part]]] = []
"""The run that was asked about last, for the next rule."""


def parts(run: View) -> list[Part]:
    """Student, then teachers; those without a path, which another rule reports, are left out."""
    if not (_latest and _latest[0][0] is run):
        _latest[:] = [(run, _parts(run))]
    return _latest[0][1]


def _parts(run: View) -> list[Part]:
    found = []
    if run.student_path is not None:
        model, tokenizer = model_files.find(run.student_path, run.variable), run.setting(f"{STUDENT}.tokenizer_path")
        own = model_files.find(tokenizer, run.variable) if isinstance(tokenizer, str) else model
        found.append(Part("the student", f"{STUDENT}.path", run.student_path, run.rollout, model, own))
    for teacher in run.teachers:
        if teacher.model_path:
            role = f"teacher {teacher.entry}" if run.named_teachers else "the teacher"
            model = model_files.find(teacher.model_path, run.variable)
            found.append(Part(role, f"{teacher.prefix}.model_path", teacher.model_path, teacher, model, model))
    return found


def model_folder(run: View) -> Iterator[Finding]:
    """A model's path names a folder that is there, or a model of the hub.

    A plan made elsewhere than on the cluster cannot see its folders: then their absence is a warning.

    verl: utils/fs.py:copy_to_local, which leaves `~` as it is.
    """
    say = error if run.action == "train" else warning
    for part in parts(run):
        path = part.path.rstrip("/") or part.path
        if part.path.startswith("~"):
            fix = f"{part.key}={os.path.expanduser(path)}"
            yield error(part.key, message=f"{part.key} is {part.path}; nobody replaces ~ in it.", fix=fix)
        elif part.model is None and model_files.looks_local(part.path):
            here = f" (looked for in {os.getcwd()})" if part.path.startswith(".") else ""
            sums = Path(path).parent == Path(str(run.setting("assets"))) / "sums"
            fix = "python -m opd_conf.cpu.sums" if sums else f"{part.key}=FOLDER"
            yield say(part.key, message=f"No such folder for {part.role}: {part.path}{here}.", fix=fix)


def model_path_without_slash(run: View) -> Iterator[Finding]:
    """A model's path does not end in a slash, which verl refuses.

    verl: utils/fs.py:copy_local_path_from_hdfs.
    """
    for part in parts(run):
        if part.path.endswith("/"):
            path = part.path.rstrip("/")
            yield error(
                part.key,
                message=f"{part.key} ends in a slash, and verl then stops.",
                fix=f"{part.key}={path or 'FOLDER'}",
            )


def one_architecture(run: View) -> Iterator[Finding]:
    """config.json names exactly one architecture.

    verl: workers/config/model.py:HFModelConfig.__post_init__.
    """
    for part in parts(run):
        names = part.config.get("architectures") or []
        if part.config and len(names) != 1:
            yield error(
                part.key,
                message=f"config.json of {part.role} names {len(names)} architectures, and verl wants one: "
                f"{', '.join(map(str, names)) or 'none'}.",
                fix=f"{part.key}=FOLDER   # or edit {part.model.folder if part.model else ''}/config.json",
            )


def heads_divide_tensor_parallel(run: View) -> Iterator[Finding]:
    """Attention heads divide evenly over a server's ranks; key-value heads do, or are copied evenly.

    vLLM asserts it: config/model.py:verify_with_parallel_config, and each model's attention.

    verl: workers/rollout/vllm_rollout/vllm_async_server.py:launch_server, which passes the size on.
    """
    for part in parts(run):
        ranks = part.server.tensor_parallel
        if uneven := _uneven(part, ranks):
            least = next(size for size in range(ranks, 0, -1) if _fits(run, part, size))
            sizes = {"tensor_model_parallel_size": least}
            if part.server.expert_parallel > 1:
                sizes["expert_parallel_size"] = least * part.server.data_parallel
            yield error(
                f"{part.server.at}.tensor_model_parallel_size",
                part.key,
                message=f"{part.path} has {uneven}: they do not divide over {ranks} ranks (tensor parallel) of "
                f"{part.role}'s server.",
                fix=" ".join(run.set(f"{part.server.at}.{name}", size) for name, size in sizes.items()),
            )


def _uneven(part: Part, ranks: int) -> str:
    """The heads of a model that do not divide over so many ranks, in words."""
    text = model_files.text_part(part.config)
    uneven = [
        f"{count} {words}"
        for key, words in {
            "num_attention_heads": "attention heads",
            "linear_num_key_heads": "key heads of linear attention",
            "linear_num_value_heads": "value heads of linear attention",
        }.items()
        if isinstance(count := text.get(key), int) and count % ranks
    ]
    shared = text.get("num_key_value_heads")
    # With latent attention (kv_lora_rank) there are no key-value heads to share out.
    if isinstance(shared, int) and shared > 0 and "kv_lora_rank" not in text and shared % ranks and ranks % shared:
        uneven.append(f"{shared} key-value heads")
    return " and ".join(uneven)


def _fits(run: View, part: Part, ranks: int) -> bool:
    """Whether so many ranks suit the model's heads and leave whole replicas in its accelerators."""
    server = part.server
    world = run.student_world if server.at == ROLLOUT else run.teacher_pool
    replica = ranks * server.data_parallel * server.pipeline_parallel
    return ranks == 1 or (not _uneven(part, ranks) and world % replica == 0)


def heads_divide_sequence_parallel(run: View) -> Iterator[Finding]:
    """The student's heads divide over the ranks that share a sequence.

    verl: models/transformers/monkey_patch.py:apply_monkey_patch.
    """
    ranks = run.sequence_parallel
    for part in parts(run)[:1]:
        text = model_files.text_part(part.config)
        heads, shared = text.get("num_attention_heads"), text.get("num_key_value_heads")
        counts = [count for count in (heads, shared) if isinstance(count, int) and count > 0]
        if part.server.at != ROLLOUT or run.engine not in ULYSSES or len(counts) < 2:
            return
        fits = [size for size in range(1, ranks + 1) if _shares(counts[0], counts[1], size)]
        if ranks not in fits:
            key = ULYSSES[run.engine]
            size = next(size for size in reversed(fits) if run.student_world % size == 0)
            yield error(
                key,
                part.key,
                message=f"{part.path} has {counts[0]} attention heads and {counts[1]} key-value heads: {ranks} ranks "
                "cannot share a sequence.",
                fix=f"{key}={size}",
            )


def _shares(heads: int, shared: int, ranks: int) -> bool:
    return heads % ranks == 0 and (shared % ranks == 0 or ranks % shared == 0)


def fused_kernels_reach_last_layer(run: View) -> Iterator[Finding]:
    """With fused kernels on FSDP2, the student's last layer is its embedding: one of its own is only there in shards.

    verl: utils/fsdp_utils.py:_select_fsdp2_wrap_targets, against
    models/transformers/dense_common.py:forward_with_torch_backend, which takes `lm_head.weight` as it is.
    """
    key, backend = f"{STUDENT}.use_fused_kernels", run.setting(f"{STUDENT}.fused_kernel_options.impl_backend")
    fused = run.fused_kernels and run.strategy == "fsdp2" and backend == "torch"
    for part in parts(run)[:1] if fused else ():
        if part.server.at == ROLLOUT and part.config.get("tie_word_embeddings") is False:
            yield error(
                key,
                f"{ACTOR}.strategy",
                part.key,
                message=f"{part.path} has a last layer of its own (tie_word_embeddings is false). FSDP2 shards it, and "
                'fused kernels multiply with a shard: "got mixed torch.Tensor and DTensor" at the first forward.',
                fix=f"{key}=false",
            )


def positions_hold_sequence(run: View) -> Iterator[Finding]:
    """The models have positions for prompt and response, and servers ask for no more than there are.

    verl: workers/rollout/vllm_rollout/vllm_async_server.py:_validate_configs; without max_model_len it takes the
    model's number, and cuts answers (student) or fails samples (teacher) beyond it.
    """
    for part in parts(run):
        override = run.setting(f"{STUDENT}.override_config.max_position_embeddings")
        own = part.model.number("max_position_embeddings") if part.model else None
        positions = override if part.server.at == ROLLOUT and isinstance(override, int) else own
        spare = 0 if part.server.at == ROLLOUT and part.server.backend != "sglang" else 1
        needed = part.server.max_model_len or run.sequence_length + spare
        if positions is not None and needed > positions:
            room = positions - run.prompt_length - 1
            yield error(
                f"{part.server.at}.max_model_len",
                "data.max_prompt_length",
                "data.max_response_length",
                message=f"{part.path} has {positions} positions, and {part.role}'s server is to hold {needed} tokens "
                f"({run.prompt_length} of the prompt, {run.response_length} of the response).",
                fix=_shorter(run, part, positions, room),
            )


def _shorter(run: View, part: Part, positions: int, room: int) -> str:
    """What to type so that a sequence has positions: a smaller server where that is enough, else a shorter response."""
    key = f"{part.server.at}.max_model_len"
    if run.sequence_length + 1 <= positions:
        return f"{key}={positions}"
    if room < 1:
        return f"data.max_prompt_length={positions // 2 - 1} data.max_response_length={positions // 2}"
    fix = f"data.max_response_length={room}"
    follows = run.follows(key) or part.server.max_model_len is None
    return fix if follows else f"{fix} {key}={positions}"


def models_seen(run: View) -> Iterator[Finding]:
    """The models' files can be read from here; those that cannot are named once, and left to verl.

    verl: workers/config/model.py:HFModelConfig.__post_init__ fetches them when workers start.
    """
    unseen = {part.path: part for part in parts(run) if not _seen(part) and not _missing(part)}
    if unseen:
        hub = [path for path, part in unseen.items() if part.model is None and not model_files.is_remote(path)]
        yield note(
            *dict.fromkeys(part.key for part in unseen.values()),
            message=f"Not looked into: {', '.join(f'{path} ({_reason(part)})' for path, part in unseen.items())}. "
            "Heads, positions and tokenizers are compared once their files are here.",
            fix=f"hf download {hub[0]}" if hub else "nothing to do when they are in order",
        )


def _seen(part: Part) -> bool:
    return bool(part.config) and part.tokenizer is not None and part.tokenizer.tokens is not None


def _missing(part: Part) -> bool:
    """Whether another rule has told that there is no such folder."""
    return part.model is None and model_files.looks_local(part.path)


def _reason(part: Part) -> str:
    if part.model is None:
        return "on another file system" if model_files.is_remote(part.path) else "not in the Hugging Face cache"
    if not part.config:
        return "no readable config.json"
    return "no readable tokenizer.json"

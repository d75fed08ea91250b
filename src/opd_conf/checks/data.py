"""What stands in the data: columns and a sample of rows, of files that are here.

Of each parquet file the metadata and the first rows of its first row group are read, of pictures only how many there
are, so that ten gigabytes take no longer than ten rows. Samples that verl cannot use fail one by one, without an end.
"""

import ast
import functools
import importlib.util
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd_conf import model_files, models, verl_tree
from opd_conf.checks.finding import Finding, error, note, warning
from opd_conf.checks.models import parts
from opd_conf.errors import UserError
from opd_conf.names import nearest
from opd_conf.view import ROLLOUT, View

ROWS = 256
"""Rows of a file that are looked at."""

FILES = 8
"""Files whose rows are looked at, of each set; metadata is read of all."""

FORMATS = (".parquet", ".json", ".jsonl")
"""utils/dataset/rl_dataset.py:RLHFDataset._read_files_and_tokenize."""

SOURCE, REWARD, TRUTH = "data_source", "reward_model", "ground_truth"
"""Columns whose names verl's reward managers write out: experimental/reward_loop/reward_manager/*.py."""


@dataclass(frozen=True)
class Sample:
    """A parquet file: its number of rows, its columns, and the first rows; `problem` where it cannot be read."""

    file: str
    rows: int = 0
    columns: tuple[str, ...] = ()
    first: tuple[Mapping[str, Any], ...] = ()
    problem: str | None = None


class NoPyarrow(Exception):
    """pyarrow is not installed here."""


def _key(run: View, name: str) -> str:
    return str(run.setting(f"data.{name}"))


def _samples(run: View, which: str) -> list[Sample]:
    """The parquet files of a set (`train_files`, `val_files`) that are here."""
    if run.setting("data.custom_cls.path"):
        return []  # a data set of one's own reads what it likes
    columns = (_key(run, "prompt_key"), SOURCE, REWARD, str(run.setting("distillation.teacher_key")))
    media = _key(run, "image_key")
    samples: list[Sample] = []
    for file in getattr(run, which):
        path = Path(os.path.expanduser(file))
        if path.suffix == ".parquet" and path.is_file():
            stat = path.stat()
            wanted = columns if len(samples) < FILES else ()
            try:
                samples.append(_read(path, stat.st_mtime_ns, stat.st_size, wanted, media))
            except NoPyarrow:
                return []
    return samples


@functools.lru_cache(maxsize=64)
def _read(path: Path, _changed: int, _size: int, wanted: tuple[str, ...], media: str) -> Sample:
    """Reads a file's metadata, and of its first rows the wanted columns and one leaf of the column of pictures."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as missing:
        raise NoPyarrow from missing
    try:
        with parquet.ParquetFile(path) as file:
            columns = tuple(file.schema_arrow.names)
            leaves = [name for name in wanted if name in columns] + _smallest_leaf(file.metadata, media)
            first = _first_rows(file, leaves) if wanted and file.metadata.num_row_groups else []
            return Sample(str(path), file.metadata.num_rows, columns, tuple(first))
    except Exception as problem:  # pyarrow's own kinds, OSError, decoding: all mean that verl cannot read it either
        return Sample(str(path), problem=str(problem).splitlines()[0] if str(problem) else type(problem).__name__)


def _smallest_leaf(metadata: Any, column: str) -> list[str]:
    """The part of a nested column that takes the fewest bytes: enough to count its elements."""
    if not metadata.num_row_groups:
        return []
    group = metadata.row_group(0)
    leaves = [group.column(index) for index in range(group.num_columns)]
    sizes = {leaf.path_in_schema: leaf.total_compressed_size for leaf in leaves}
    inside = [path for path in sizes if path.split(".")[0] == column]
    return [min(inside, key=sizes.__getitem__)] if inside else []


def _first_rows(file: Any, leaves: Sequence[str]) -> list[dict[str, Any]]:
    batches = file.iter_batches(batch_size=ROWS, row_groups=[0], columns=list(leaves))
    return [row for batch in itertools.islice(batches, 1) for row in batch.to_pylist()]


def _sets(run: View) -> Iterator[tuple[str, list[Sample]]]:
    """Both sets by key, without files that cannot be read."""
    for which in ("train_files", "val_files"):
        yield f"data.{which}", [sample for sample in _samples(run, which) if sample.problem is None]


def _with_rows(run: View) -> Iterator[tuple[str, Sample]]:
    for key, samples in _sets(run):
        yield from ((key, sample) for sample in samples if sample.first)


def data_readable(run: View) -> Iterator[Finding]:
    """Files of data are of a kind that verl reads, and can be read.

    verl: utils/dataset/rl_dataset.py:RLHFDataset._read_files_and_tokenize.
    """
    for which in ("train_files", "val_files"):
        own_class = run.setting("data.custom_cls.path")
        for file in () if own_class else getattr(run, which):
            if Path(file).suffix not in FORMATS:
                message = f"{file}: verl reads {', '.join(FORMATS)}."
                yield error(f"data.{which}", message=message, fix=f"data.{which}=FILE.parquet")
        for sample in _samples(run, which):
            if sample.problem:
                message = f"{sample.file} cannot be read: {sample.problem.rstrip('.')}."
                yield error(f"data.{which}", message=message, fix=f"data.{which}=FILE.parquet")


def data_seen(run: View) -> Iterator[Finding]:
    """Files of data that are here can be looked into.

    verl: utils/dataset/rl_dataset.py:RLHFDataset, which reads them once the trainer runs.
    """
    kinds = {
        Path(file).suffix for file in (*run.train_files, *run.val_files) if Path(os.path.expanduser(file)).is_file()
    }
    keys = ("data.train_files", "data.val_files")
    if ".parquet" in kinds and not _pyarrow():
        message = "Rows of the data were not looked into: pyarrow is not installed."
        yield note(*keys, message=message, fix="pip install pyarrow")
    if other := sorted(kinds & set(FORMATS[1:])):
        message = f"Rows of the data were not looked into: {' and '.join(other)}; only parquet files are."
        yield note(*keys, message=message, fix="nothing to do when they are in order")


def _pyarrow() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def prompts_are_messages(run: View) -> Iterator[Finding]:
    """The column of prompts is there and holds messages: lists of role and content.

    verl: utils/dataset/rl_dataset.py:RLHFDataset._build_messages.
    """
    key = "data.prompt_key"
    name = _key(run, "prompt_key")
    for which, sample in _with_rows(run):
        if name not in sample.columns:
            near = nearest(name, sample.columns)
            found = ", ".join(sample.columns)
            message = f"{sample.file} has no column {name} for prompts; it has {found}."
            yield error(key, which, message=message, fix=f"{key}={(near or ['COLUMN'])[0]}")
        elif wrong := next((row for row in sample.first if not _messages(row[name])), None):
            message = (
                f"{sample.file}: {name} holds {_shown(wrong[name])} instead of a list of messages (role, content)."
            )
            yield error(key, which, message=message, fix=f"{key}=COLUMN   # or make the file again with messages")


def _messages(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, dict) and "role" in message and "content" in message for message in value)
    )


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'the text "{value[:20]}…"' if len(value) > 20 else f'the text "{value}"'
    return {list: "a list of something else", type(None): "nothing"}.get(type(value), f"a {type(value).__name__}")


# Rewards


def reward_knows_source(run: View) -> Iterator[Finding]:
    """Every data_source is one that verl's reward function knows, unless another function is set.

    The reward is worked out even when it is not learned from, and a sample that it cannot grade is lost.

    verl: utils/reward_score/__init__.py:default_compute_score, experimental/reward_loop/reward_manager/naive.py.
    """
    if _own_reward(run):
        return
    exact, starts = known_sources()
    for which, sample in _with_rows(run):
        say = error if which == "data.train_files" else warning
        if SOURCE not in sample.columns:
            message = (
                f"{sample.file} has no column {SOURCE}, by which verl chooses the reward: every sample would fail."
            )
            yield say(which, message=message, fix="reward.custom_reward_function.path=FILE.py   # and add the column")
            continue
        values = {str(row[SOURCE]) for row in sample.first}
        unknown = sorted(value for value in values if value not in exact and not value.startswith(starts))
        if unknown and exact:
            near = nearest(unknown[0], sorted(exact))
            hint = f"; nearest: {near[0]}" if near else ""
            message = (
                f"{sample.file}: verl has no reward for {SOURCE} {', '.join(unknown[:3])}{hint}. Such samples fail, "
                "also when rewards are not learned from."
            )
            yield say(
                which,
                "reward.custom_reward_function.path",
                message=message,
                fix="reward.custom_reward_function.path=FILE.py",
            )


def _own_reward(run: View) -> bool:
    """Whether something else than verl's function by data_source grades."""
    chosen = {
        name: run.setting(name)
        for name in (
            "reward.custom_reward_function.path",
            "custom_reward_function.path",
            "reward.reward_model.enable",
            "reward_model.enable",
            "reward.reward_manager.module.path",
        )
    }
    return any(chosen.values())


@functools.cache
def known_sources() -> tuple[frozenset[str], tuple[str, ...]]:
    """Names, and beginnings of names, in `default_compute_score`, read from verl's source without importing it."""
    try:
        text = (verl_tree.package_folder() / "utils" / "reward_score" / "__init__.py").read_text()
        functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    except (UserError, OSError, SyntaxError):
        return frozenset(), ()
    body = next((node for node in functions if node.name == "default_compute_score"), None)
    nodes = list(ast.walk(body)) if body else []
    names = {text for node in nodes if isinstance(node, ast.Compare) for text in _compared(node)}
    return frozenset(names), tuple(text for node in nodes if isinstance(node, ast.Call) for text in _beginning(node))


def _compared(node: ast.Compare) -> list[str]:
    """The texts of `data_source == "a"` or `data_source in ["a", "b"]`."""
    if not (isinstance(node.left, ast.Name) and node.left.id == SOURCE):
        return []
    return [
        part.value
        for part in ast.walk(node.comparators[0])
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]


def _beginning(node: ast.Call) -> list[str]:
    """The text of `data_source.startswith("a")`."""
    of = node.func
    if not (isinstance(of, ast.Attribute) and of.attr == "startswith" and isinstance(of.value, ast.Name)):
        return []
    return [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def ground_truth_there(run: View) -> Iterator[Finding]:
    """Rows have reward_model.ground_truth: every reward manager reads it, whatever the function.

    verl: experimental/reward_loop/reward_manager/naive.py:run_single.
    """
    by_model = run.setting("reward.reward_model.enable")
    if run.setting("reward.reward_manager.module.path") or by_model:
        return
    for which, sample in _with_rows(run):
        lacking = [
            row for row in sample.first if not isinstance(row.get(REWARD), dict) or row[REWARD].get(TRUTH) is None
        ]
        if lacking:
            what = f"no column {REWARD}" if REWARD not in sample.columns else f"rows without {REWARD}.{TRUTH}"
            say = error if which == "data.train_files" else warning
            yield say(
                which,
                message=f"{sample.file} has {what} ({len(lacking)} of the first {len(sample.first)}); verl reads it "
                "for every sample, also when rewards are not learned from.",
                fix=f"{which}=FILE.parquet   # made again with {REWARD}={{style: rule, {TRUTH}: …}}",
            )


# Lengths


def overlong_prompts_left_out(run: View) -> Iterator[Finding]:
    """Prompts that are too long are left out before the run, not cut.

    verl: experimental/agent_loop/agent_loop.py, which cuts a text on the left and fails one with pictures.
    """
    key = "data.filter_overlong_prompts"
    if run.setting(key, False) is False and not run.setting("data.custom_cls.path"):
        yield warning(
            key,
            "data.max_prompt_length",
            message=f"Prompts over {run.prompt_length} tokens stay in the data ({key} is false): texts lose their "
            "beginning, and samples with pictures fail one by one.",
            fix=f"{key}=true",
        )


# Pictures


def images_match_prompts(run: View) -> Iterator[Finding]:
    """Rows have as many pictures, in the column of pictures, as `<image>` in their prompts.

    Without the column `<image>` stays a word, and the run learns from text alone.

    verl: utils/dataset/rl_dataset.py:RLHFDataset._build_messages.
    """
    key, column, prompt = "data.image_key", _key(run, "image_key"), _key(run, "prompt_key")
    for which, sample in _with_rows(run):
        pairs = [(_places(row.get(prompt)), len(row.get(column) or [])) for row in sample.first]
        wrong = [pair for pair in pairs if pair[0] is not None and pair[0] != pair[1]]
        if wrong and column not in sample.columns:
            near = next((name for name in sample.columns if "image" in name or "picture" in name), None)
            message = (
                f"{sample.file}: {len(wrong)} of the first {len(pairs)} prompts have <image>, and there is no column "
                f"{column}: verl would leave the word and train without pictures."
            )
            yield error(key, which, message=message, fix=f"{key}={near or 'COLUMN'}")
        elif wrong:
            message = (
                f"{sample.file}: a prompt has {wrong[0][0]} times <image>, and its row {wrong[0][1]} pictures in "
                f"{column} ({len(wrong)} of the first {len(pairs)} rows)."
            )
            yield error(key, which, message=message, fix=f"{which}=FILE.parquet   # made again, one <image> a picture")


def _places(messages: object) -> int | None:
    """How often `<image>` stands in a prompt; None where its parts are lists, which verl takes as they are."""
    if not isinstance(messages, list) or not _messages(messages):
        return None
    contents = [message["content"] for message in messages]
    if not all(isinstance(content, str) for content in contents):
        return None
    return sum(str(content).count("<image>") for content in contents)


def images_reach_vision_models(run: View) -> Iterator[Finding]:
    """Rows with pictures go to models that see: the student, and the teacher that such rows are sent to.

    verl: experimental/teacher_loop/teacher_manager.py:compute_teacher_logprobs_single passes pictures on.
    """
    column = _key(run, "image_key")
    rows = [(sample, row) for key, sample in _with_rows(run) if key == "data.train_files" for row in sample.first]
    pictured = [(sample, row) for sample, row in rows if row.get(column)]
    for part in parts(run) if pictured else []:
        key = None if part.server.at == ROLLOUT or not run.named_teachers else getattr(part.server, "key", None)
        asked = [sample for sample, row in pictured if key is None or len(run.teachers) < 2 or _routed(run, row) == key]
        if asked and part.config and not model_files.sees_images(part.config):
            yield error(
                part.key,
                "data.train_files",
                message=f"{asked[0].file} has rows with pictures for {part.role}, and {part.path} has no vision part: "
                "they would fail one by one.",
                fix=f"{part.key}=MODEL   # one with vision",
            )


def patches_counted(run: View) -> Iterator[Finding]:
    """The length filter counts pictures in the student's own patches: verl's 14 is none of Qwen3-VL's or Qwen3.5's.

    verl: utils/dataset/rl_dataset.py:RLHFDataset.__init__; null takes the processor's own.
    """
    key, column = "data.image_patch_size", _key(run, "image_key")
    size = run.number(key, 0)
    known = models.facts(run.student_path, run.variable) if run.student_path else None
    own = known.tower.patch if known and known.tower else size
    seen = [sample for sample in _samples(run, "train_files") if sample.problem is None]
    text_only = bool(seen) and not any(column in sample.columns for sample in seen)
    if size and size != own and not text_only and run.setting("data.filter_overlong_prompts") is True:
        yield warning(
            key,
            "actor_rollout_ref.model.path",
            message=f"{key} is {size}, and {run.student_path} sees patches of {own}: the length filter counts "
            f"{(own / size) ** 2:.2f} times as many tokens a picture as there are.",
            fix=f"{key}={own}",
        )


def videos_reach_teacher(run: View) -> Iterator[Finding]:
    """Rows with videos meet one kind of server: vLLM is handed frames, SGLang what the processor made of them.

    verl: workers/rollout/llm_server.py:LLMServerClient.generate asks for the student's kind alone.
    """
    column = _key(run, "video_key")
    others = [teacher for teacher in run.teachers if teacher.backend != run.rollout.backend]
    for which, sample in _sets(run) if others else ():
        if which == "data.train_files" and (files := [found.file for found in sample if column in found.columns]):
            yield warning(
                f"{others[0].at}.name",
                which,
                message=f"{files[0]} has a column {column}, and the student is served by {run.rollout.backend}, "
                f"teacher {others[0].entry} by {others[0].backend}: samples with videos would fail one by one.",
                fix=run.set(f"{others[0].at}.name", run.rollout.backend),
            )


# Routing and sizes


def _routed(run: View, row: Mapping[str, Any]) -> str | None:
    value = row.get(str(run.setting("distillation.teacher_key")))
    return None if value is None else str(value)


def teachers_cover_data(run: View) -> Iterator[Finding]:
    """With several teachers, every row's teacher_key names one of them; rows of no teacher vanish.

    verl: experimental/teacher_loop/teacher_manager.py:_resolve_teacher_key.
    """
    keys = sorted(teacher.key for teacher in run.teachers if teacher.key is not None)
    column = str(run.setting("distillation.teacher_key"))
    if len(run.teachers) < 2:
        return
    for which, sample in _with_rows(run):
        if which != "data.train_files":
            continue  # teachers are asked in training only
        if column not in sample.columns:
            message = f"{sample.file} has no column {column}, by which rows are sent to {len(run.teachers)} teachers."
            near = nearest(column, sample.columns)
            yield error(
                "distillation.teacher_key",
                which,
                message=message,
                fix=f"distillation.teacher_key={(near or ['COLUMN'])[0]}",
            )
            continue
        unknown = sorted({str(_routed(run, row)) for row in sample.first} - set(keys))
        if unknown:
            near = nearest(unknown[0], keys)
            teacher = next((teacher for teacher in run.teachers if near and teacher.key == near[0]), run.teachers[0])
            yield error(
                f"{teacher.prefix}.key",
                "distillation.teacher_key",
                which,
                message=f"{sample.file}: no teacher has the key {', '.join(unknown[:3])} ({column} of the rows); "
                f"teachers have {', '.join(keys)}. Such rows would vanish from training.",
                fix=f"{teacher.prefix}.key={unknown[0]}",
            )


def rows_fill_batch(run: View) -> Iterator[Finding]:
    """There are rows for at least one batch, and for validation.

    verl: trainer/ppo/v1/trainer_base.py, steps an epoch = rows // batch, and a division by it.
    """
    for which in ("train_files", "val_files"):
        key, rows = f"data.{which}", _rows(run, which)
        if which == "train_files" and rows is not None and rows < run.train_batch:
            yield error(
                "data.train_batch_size",
                key,
                message=f"{key} has {rows} rows, fewer than a batch of {run.train_batch}: no step would be made.",
                fix=f"data.train_batch_size={rows}" if rows else f"{key}=FILE.parquet",
            )
        elif which == "val_files" and rows == 0:
            yield error(key, message=f"{key} has no rows; verl wants some.", fix=f"{key}=FILE.parquet")


def train_rows(run: View) -> int | None:
    """Rows of the training files; None unless all of them are seen."""
    return _rows(run, "train_files")


def _rows(run: View, which: str) -> int | None:
    samples = _samples(run, which)
    if not samples or len(samples) < len(getattr(run, which)) or any(sample.problem for sample in samples):
        return None  # what cannot be seen may have more
    limit = run.setting("data.train_max_samples" if which == "train_files" else "data.val_max_samples")
    rows = sum(sample.rows for sample in samples)
    return min(rows, limit) if isinstance(limit, int) and limit > 0 else rows

"""A task small enough for a CPU: sums of two digits, with a teacher that knows them and a student that does not.

    python -m opd_conf.cpu.sums [FOLDER] [--seed N]

makes, in well under a minute, `student/` and `teacher/` (Hugging Face folders with one character tokenizer) and
`train.parquet` and `test.parquet` in the columns that verl reads. Answers look like GSM8K's ("#### 12") and name it
as their source, so verl's own reward grades them. Seventy of the hundred sums are for training, thirty are held out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
"""Raised whenever what is made changes; a folder with another version is made anew."""

STAMP = "sums.json"
CONTENTS = ("student", "teacher", "train.parquet", "test.parquet", STAMP)

PAD, END, USER, ASSISTANT, UNKNOWN = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|unknown|>"
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

HELD_OUT = 30
REPEATS = 20
"""How often train.parquet goes through its sums: 1,400 rows, more than a short run reads."""


@dataclass(frozen=True)
class Sum:
    """One addition of two numbers below ten."""

    left: int
    right: int

    @property
    def question(self) -> str:
        return f"{self.left}+{self.right}="

    @property
    def total(self) -> str:
        return str(self.left + self.right)

    @property
    def answer(self) -> str:
        """The total in the form that verl's reward for GSM8K looks for."""
        return f"#### {self.total}"


@dataclass(frozen=True)
class Recipe:
    """How large a model is, and when its training ends: at a share of right answers, or after so many updates."""

    hidden: int
    heads: int
    learning_rate: float
    updates: int
    stop_at: float


TEACHER = Recipe(hidden=128, heads=4, learning_rate=3e-3, updates=600, stop_at=0.995)
STUDENT = Recipe(hidden=64, heads=2, learning_rate=3e-3, updates=40, stop_at=1.0)


# Rows


def all_sums() -> list[Sum]:
    """The hundred sums, in order."""
    return [Sum(left, right) for left in range(10) for right in range(10)]


def split_sums(seed: int) -> tuple[list[Sum], list[Sum]]:
    """Which sums are trained on and which are held out; the same seed gives the same split."""
    sums = all_sums()
    random.Random(seed).shuffle(sums)
    return sums[HELD_OUT:], sums[:HELD_OUT]


def make_row(example: Sum, split: str, index: int) -> dict[str, Any]:
    """One row in verl's columns (verl/utils/dataset/rl_dataset.py, examples/data_preprocess/gsm8k.py)."""
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": example.question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": example.total},
        "extra_info": {"split": split, "index": index},
    }


def make_rows(seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows to train on (each sum once in every seventy, in changing order) and to test on (each held-out sum once)."""
    train, test = split_sums(seed)
    order = random.Random(seed + 1)
    drawn = [example for _ in range(REPEATS) for example in order.sample(train, len(train))]
    return (
        [make_row(example, "train", index) for index, example in enumerate(drawn)],
        [make_row(example, "test", index) for index, example in enumerate(test)],
    )


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


# Tokenizer


def make_tokenizer() -> Any:
    """A PreTrainedTokenizerFast: 100 tokens, one a character (printable ASCII) and five marks; with a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    wrap: Any = PreTrainedTokenizerFast
    marks = [PAD, END, USER, ASSISTANT, UNKNOWN]
    letters = [chr(code) for code in range(32, 127)]
    vocabulary = {token: number for number, token in enumerate(marks + letters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")  # pyright: ignore
    tokenizer.decoder = decoders.Fuse()  # pyright: ignore
    fast = wrap(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    fast.chat_template = TEMPLATE
    return fast


# Models


def make_model(recipe: Recipe, vocabulary: int) -> Any:
    """A two-layer Qwen3ForCausalLM with random weights; heads of 32, the smallest that vLLM's CPU attention takes."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    build: Any = Qwen3ForCausalLM
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=2 * recipe.hidden,
        num_hidden_layers=2,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        dtype="float32",
    )
    return build(config)


def encode(sums: Sequence[Sum], tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Token ids and labels, both [sums, length]; only answers have labels (-100 elsewhere)."""
    import torch

    inputs: list[list[int]] = []
    labels: list[list[int]] = []
    for example in sums:
        prompt = tokenizer.encode(f"{USER}{example.question}{END}{ASSISTANT}", add_special_tokens=False)
        answer = tokenizer.encode(f"{example.answer}{END}", add_special_tokens=False)
        inputs.append(prompt + answer)
        labels.append([-100] * len(prompt) + answer)
    length = max(map(len, inputs))
    pad = tokenizer.convert_tokens_to_ids(PAD)
    return (
        torch.tensor([ids + [pad] * (length - len(ids)) for ids in inputs]),
        torch.tensor([ids + [-100] * (length - len(ids)) for ids in labels]),
    )


def share_right(logits: Tensor, labels: Tensor) -> float:
    """Probability, averaged over sums, of sampling exactly the right answer at temperature 1.

    logits [sums, length, vocabulary] and labels [sums, length] are from one forward pass over the right answers.
    """
    wanted = labels[:, 1:]
    known = wanted != -100
    chosen = logits[:, :-1].log_softmax(-1).gather(-1, wanted.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return float((chosen * known).sum(-1).exp().mean())


def train(model: Any, recipe: Recipe, batch: tuple[Tensor, Tensor]) -> Iterator[tuple[int, float]]:
    """Plain supervised training on one batch; yields (update, share of right answers) until the recipe's end."""
    import torch

    inputs, labels = batch
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.0)
    model.train()
    for update in range(1, recipe.updates + 1):
        output = model(input_ids=inputs, labels=labels)
        right = share_right(output.logits.detach(), labels)
        yield update, right
        if right >= recipe.stop_at:
            break
        optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


class Progress:
    """Prints a line now and then, but nothing at all when the work is short."""

    def __init__(self, patience: float = 2.0) -> None:
        self._next = time.monotonic() + patience
        self._patience = patience

    def tell(self, line: str) -> None:
        """Print the line unless another one was printed a moment ago."""
        if time.monotonic() >= self._next:
            print(line, flush=True)
            self._next = time.monotonic() + self._patience


def make_models(folder: Path, seed: int, progress: Progress) -> None:
    """Train teacher (all hundred sums) and student (training sums, stopped early), and save both with the tokenizer.

    On one thread: matrices are too small for more, which on a busy machine would wait for each other, and the same
    seed gives the same weights.
    """
    import torch
    from transformers.utils import logging

    bars: Any = logging
    tokenizer = make_tokenizer()
    jobs = {"teacher": (TEACHER, all_sums()), "student": (STUDENT, split_sums(seed)[0])}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        for name, (recipe, sums) in jobs.items():
            torch.manual_seed(seed)
            model = make_model(recipe, len(tokenizer))
            for update, right in train(model, recipe, encode(sums, tokenizer)):
                progress.tell(f"{name}: update {update} of at most {recipe.updates}, {right:.0%} right")
            bars.disable_progress_bar()
            model.save_pretrained(folder / name)
            bars.enable_progress_bar()
            tokenizer.save_pretrained(folder / name)
    torch.set_num_threads(threads)


# The folder


def default_folder() -> Path:
    """`sums` in the folder that conf/opd.yaml calls `assets`."""
    return Path(os.environ.get("OPD_ASSETS") or Path.home() / ".cache" / "opd_conf") / "sums"


def is_current(folder: Path, seed: int) -> bool:
    """Whether the folder was completed by this version of the program with this seed."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return bool(stamp == make_stamp(seed))


def make_stamp(seed: int) -> dict[str, int]:
    """What the stamp file of a finished folder says."""
    return {"version": VERSION, "seed": seed}


def refuse_foreign(folder: Path) -> None:
    """Raise FileExistsError when the folder holds anything that this program did not make."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; name another folder")
    names = {entry.name for entry in folder.iterdir()}
    foreign = sorted(names - set(CONTENTS))
    if foreign or (names and STAMP not in names):
        raise FileExistsError(
            f"{folder} holds other files ({', '.join(foreign or sorted(names))}); name another folder"
        )


def put_in_place(made: Path, folder: Path) -> None:
    """Move a finished folder to its name; an older one of ours steps aside first and is removed."""
    refuse_foreign(folder)
    if folder.exists():
        folder.rename(made / "old")
        (made / "new").rename(folder)
        shutil.rmtree(made / "old")
    else:
        (made / "new").rename(folder)


def ensure(folder: Path, seed: int = 0) -> bool:
    """Make the task unless the folder already holds it; True when it was made.

    Everything is built beside the folder and renamed at the end, so that a folder with this name is always complete.
    """
    if is_current(folder, seed):
        return False
    refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        make_models(new, seed, Progress())
        train_rows, test_rows = make_rows(seed)
        write_rows(train_rows, new / "train.parquet")
        write_rows(test_rows, new / "test.parquet")
        (new / STAMP).write_text(json.dumps(make_stamp(seed)) + "\n")
        if is_current(folder, seed):  # another process was faster
            return False
        put_in_place(Path(scratch), folder)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: make the task, say where it is."""
    parser = argparse.ArgumentParser(prog="python -m opd_conf.cpu.sums", description="Make the sums task.")
    parser.add_argument("folder", nargs="?", type=Path, default=None, help=f"default: {default_folder()}")
    parser.add_argument("--seed", type=int, default=0, help="for weights, split and order (default 0)")
    options = parser.parse_args(arguments)
    folder: Path = (options.folder or default_folder()).expanduser().absolute()
    try:
        made = ensure(folder, options.seed)
    except FileExistsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{folder}: {'made' if made else 'already there'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

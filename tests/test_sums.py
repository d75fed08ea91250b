"""The tiny task: the same rows for the same seed, a tokenizer that loses nothing, answers that verl's reward grades."""

import json
from pathlib import Path
from typing import Any

import pytest

from opd_conf.cpu import sums
from opd_conf.cpu.sums import Sum


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are saved almost untrained."""
    for name in ("TEACHER", "STUDENT"):
        monkeypatch.setattr(sums, name, sums.Recipe(hidden=32, heads=1, learning_rate=1e-3, updates=2, stop_at=1.0))


def questions(rows: list[dict[str, Any]]) -> list[str]:
    return [row["prompt"][0]["content"] for row in rows]


def test_rows_depend_on_the_seed_alone() -> None:
    assert sums.make_rows(3) == sums.make_rows(3)
    assert sums.make_rows(3) != sums.make_rows(4)


def test_no_sum_is_in_both_files_and_none_is_missing() -> None:
    train, test = (questions(rows) for rows in sums.make_rows(0))

    assert set(train) | set(test) == {f"{left}+{right}=" for left in range(10) for right in range(10)}
    assert not set(train) & set(test)
    assert len(test) == len(set(test)) == sums.HELD_OUT


def test_each_stretch_of_the_training_file_has_each_sum_once() -> None:
    train = questions(sums.make_rows(0)[0])
    length = len(set(train))

    assert len(train) == sums.REPEATS * length
    assert {frozenset(train[start : start + length]) for start in range(0, len(train), length)} == {frozenset(train)}
    assert train[:length] != train[length : 2 * length]


def test_verls_reward_grades_right_and_wrong_answers() -> None:
    from verl.utils.reward_score import default_compute_score

    row = sums.make_row(Sum(7, 5), "train", 0)
    truth = row["reward_model"]["ground_truth"]

    def score(text: str) -> float:
        return float(default_compute_score(row["data_source"], text, truth))

    assert truth == "12"
    assert score(Sum(7, 5).answer) == 1.0
    assert score("#### 13") == 0.0
    assert score("12") == 0.0


def test_the_tokenizer_gives_back_what_it_gets() -> None:
    tokenizer = sums.make_tokenizer()
    text = "".join(map(chr, range(32, 127)))

    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text)
    assert len(tokenizer) == 100


def test_a_question_becomes_the_prompt_that_the_models_were_trained_on() -> None:
    tokenizer = sums.make_tokenizer()
    (message,) = sums.make_row(Sum(3, 8), "train", 0)["prompt"]
    prompt = tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    inputs, labels = sums.encode([Sum(3, 8)], tokenizer)

    assert prompt == "<|user|>3+8=<|end|><|assistant|>"
    assert tokenizer.decode(inputs[0]) == f"{prompt}#### 11<|end|>"
    assert tokenizer.decode(labels[0][labels[0] != -100]) == "#### 11<|end|>"


def test_share_right_is_the_probability_of_the_whole_answer() -> None:
    import torch

    labels = torch.tensor([[-100, 1, 2]])
    sure = torch.full((1, 3, 4), -1e9)
    sure[0, 0, 1] = sure[0, 1, 2] = 0.0
    assert sums.share_right(sure, labels) == pytest.approx(1.0)
    assert sums.share_right(torch.zeros(1, 3, 4), labels) == pytest.approx(1 / 16)


@pytest.mark.usefixtures("quick")
def test_a_folder_is_made_once_and_can_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow.parquet as pq
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "some" / "sums"
    assert sums.main([str(folder)]) == 0
    made = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert sums.main([str(folder)]) == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == made
    assert capsys.readouterr().out.splitlines() == [f"{folder}: made", f"{folder}: already there"]
    assert [entry.name for entry in folder.parent.iterdir()] == ["sums"]

    assert pq.read_table(folder / "train.parquet").to_pylist() == sums.make_rows(0)[0]
    for model in ("student", "teacher"):
        assert AutoModelForCausalLM.from_pretrained(folder / model).config.vocab_size == 100
        assert AutoTokenizer.from_pretrained(folder / model).eos_token == "<|end|>"


@pytest.mark.usefixtures("quick")
def test_another_seed_or_version_replaces_what_the_program_made(tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    assert sums.ensure(folder, seed=0)
    assert sums.ensure(folder, seed=1)
    (folder / sums.STAMP).write_text(json.dumps({"version": 0, "seed": 1}))
    assert sums.ensure(folder, seed=1)
    assert not sums.ensure(folder, seed=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["sums"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["notes.txt", "student"])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text("mine")

    assert sums.main([str(tmp_path)]) == 2
    assert "name another folder" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "mine"


def test_the_default_folder_follows_opd_assets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPD_ASSETS", "/data/opd")
    assert sums.default_folder() == Path("/data/opd/sums")
    monkeypatch.delenv("OPD_ASSETS")
    monkeypatch.setenv("HOME", "/home/someone")
    assert sums.default_folder() == Path("/home/someone/.cache/opd_conf/sums")

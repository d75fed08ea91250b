"""Rules about tokenizers and vocabularies: small folders with real tokenizer.json files."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opd_conf import model_files
from opd_conf.checks import Finding, tokenizers
from opd_conf.view import View

pytestmark = pytest.mark.usefixtures("no_cache")

GROUPS = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "data=gsm8k")
STUDENT, TEACHER = "actor_rollout_ref.model.path", "distillation.teacher_models.teacher_model.model_path"
WORDS = {"<end>": 0, "<user>": 1, "a": 2, "b": 3, "c": 4, "vocab": 5}


@pytest.fixture
def say(say):
    """What a rule says about a run on text."""
    return lambda rule, settings, groups=GROUPS: say(rule, settings, groups)


# Templates


def test_a_student_without_a_chat_template(say, make):
    folder = make("student", tokenizer={"eos_token": "<end>"})
    [finding] = say(tokenizers.chat_template_there, {STUDENT: folder})
    assert finding.severity == "error"
    assert "verl would drop every sample" in finding.message
    assert finding.fix.startswith(f"cp TEMPLATE.jinja {folder}/chat_template.jinja")
    for elsewhere in (
        {"actor_rollout_ref.model.custom_chat_template": "{{ x }}"},
        {"actor_rollout_ref.model.tokenizer_path": make("b")},
        {"data.apply_chat_template_kwargs.chat_template": "{{ x }}"},
    ):
        assert say(tokenizers.chat_template_there, {STUDENT: folder} | elsewhere) == []
    Path(folder, "chat_template.jinja").write_text("{{ messages }}")
    assert say(tokenizers.chat_template_there, {STUDENT: folder}) == []


def test_templates_elsewhere(say, pair, in_cache, make, tmp_path):
    assert say(tokenizers.chat_template_there, pair(tokenizer={"a": 1})) == []  # the teacher's is not used
    several = {"chat_template": [{"name": "default", "template": "{{ messages }}"}]}
    assert say(tokenizers.chat_template_there, {STUDENT: make("several", tokenizer=several)}) == []
    in_cache(make("none", tokenizer={"a": 1}), "a/b")
    assert [finding.severity for finding in say(tokenizers.chat_template_there, {STUDENT: "a/b"})] == ["warning"]


# Tokens


@pytest.fixture
def tokens_of(say, pair):
    """What is said about a pair, whose teacher is as told."""
    return lambda settings=None, **teacher: say(tokenizers.teachers_share_tokens, pair(**teacher) | (settings or {}))


def test_one_tokenizer_for_both(tokens_of):
    assert tokens_of() == []
    assert tokens_of(tokens=dict(reversed(WORDS.items()))) == []  # another file, the same ids


def test_two_tokens_swapped(tokens_of):
    [finding] = tokens_of(tokens=WORDS | {"b": 4, "c": 3})
    assert finding.severity == "error"
    assert finding.keys == (TEACHER, STUDENT)
    assert "differ in 2 tokens: 'b' is 3 for the student, and the teacher" in finding.message
    assert "has it as 4. What" in finding.message
    assert finding.fix.startswith(f"{TEACHER}=MODEL")


def test_another_token_under_the_same_id(tokens_of):
    other = {token: number for token, number in WORDS.items() if token != "<user>"} | {"<human>": 1}
    [finding] = tokens_of(tokens=other)
    assert finding.severity == "error"
    assert "differ in 1 token: '<user>' is 1 for the student" in finding.message
    assert "has '<human>' there" in finding.message


def test_a_teacher_with_more_tokens(tokens_of):
    [finding] = tokens_of(tokens=WORDS | {"<think>": 6, "<tool>": 7})
    assert finding.severity == "note"
    assert "The teacher has 2 tokens that the student lacks, first '<think>', 6" in finding.message


def test_a_student_with_more_tokens(tokens_of):
    [finding] = tokens_of(tokens={token: number for token, number in WORDS.items() if number < 5})
    assert finding.severity == "warning"
    assert "The student has 1 tokens that the teacher" in finding.message
    assert "'vocab', 5" in finding.message


def test_every_named_teacher_is_compared(say, make):
    teachers = "distillation.teacher_models"
    settings: dict[str, Any] = {STUDENT: make("student")}
    for name, tokens in {"math": WORDS, "geo": WORDS | {"a": 3, "b": 2}}.items():
        settings[f"{teachers}.{name}"] = {"key": name, "model_path": make(name, tokens), "inference": {"name": "vllm"}}
    [finding] = say(tokenizers.teachers_share_tokens, settings)
    assert finding.keys[0] == f"{teachers}.geo.model_path"
    assert "teacher geo" in finding.message


def test_tokenizers_in_the_cache(say, in_cache, make, tmp_path):
    in_cache(make("one"), "a/one")
    in_cache(make("two", WORDS | {"b": 4, "c": 3}), "a/two")
    assert len(say(tokenizers.teachers_share_tokens, {STUDENT: "a/one", TEACHER: "a/two"})) == 1
    assert say(tokenizers.teachers_share_tokens, {STUDENT: "a/one", TEACHER: "a/one"}) == []
    assert say(tokenizers.teachers_share_tokens, {STUDENT: "a/one", TEACHER: "a/three"}) == []


def test_a_start_token_of_one(say, pair, make):
    settings = pair(tokenizer={"add_bos_token": True, "chat_template": "x"})
    [finding] = say(tokenizers.start_token_alike, settings)
    assert finding.severity == "note"
    assert "The tokenizer of the teacher begins a text with a start token, that of the student does not" in (
        finding.message
    )
    assert say(tokenizers.start_token_alike, pair()) == []
    assert say(tokenizers.start_token_alike, pair(tokenizer={"add_bos_token": False})) == []


def test_vocabularies_of_lists(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps({"added_tokens": [], "model": {"type": "Unigram", "vocab": [["<pad>", 0.0], ["a", -1]]}})
    )
    assert model_files.read_tokens(path) == {"<pad>": 0, "a": 1}
    path.write_text(json.dumps({"added_tokens": None, "model": {}}))
    assert model_files.read_tokens(path) is None
    assert model_files.read_tokens(tmp_path / "none") is None


def test_a_file_that_changes_is_read_again(write_tokenizer, tmp_path):
    write_tokenizer(tmp_path, WORDS)
    first = model_files.read_tokens(tmp_path / "tokenizer.json")
    assert model_files.read_tokens(tmp_path / "tokenizer.json") is first
    write_tokenizer(tmp_path, WORDS | {"d": 6})
    assert (model_files.read_tokens(tmp_path / "tokenizer.json") or {})["d"] == 6


# Rows


@pytest.fixture
def rows_of(say, pair):
    """What is said about a pair, whose teacher is as told."""
    return lambda settings=None, **teacher: say(tokenizers.vocabulary_rows, pair(**teacher) | (settings or {}))


LOSS = "distillation.distillation_loss.loss_mode"


def test_rows_that_a_teacher_lacks(rows_of):
    [finding] = rows_of(vocab_size=5)
    assert finding.severity == "error"
    assert "The student has 16 vocabulary rows, the teacher 5" in finding.message
    assert "token 5 would fail" in finding.message


def test_rows_that_the_student_lacks(rows_of):
    more = WORDS | {"<far>": 20}
    assert rows_of(tokens=more, vocab_size=21) == []  # asked about sampled tokens only
    [finding] = rows_of({LOSS: "forward_kl_topk"}, tokens=more, vocab_size=21)
    assert finding.severity == "error"
    assert "token 20 among its top 32" in finding.message


@pytest.mark.parametrize("mode", ["k1", "forward_kl_topk"])
def test_padding_rows_may_differ(rows_of, mode):
    assert rows_of({LOSS: mode}, vocab_size=32) == []


def test_rows_without_tokenizers(say, pair, make):
    settings = pair(vocab_size=248320) | {STUDENT: make("student", vocab_size=151936)}
    Path(settings[TEACHER], "tokenizer.json").unlink()
    [finding] = say(tokenizers.vocabulary_rows, settings)
    assert finding.severity == "warning"
    assert "151936 vocabulary rows, the teacher 248320: hardly" in finding.message
    settings[TEACHER] = make("close", vocab_size=152064)
    Path(settings[TEACHER], "tokenizer.json").unlink()
    assert say(tokenizers.vocabulary_rows, settings) == []


# All together

RULES = {"chat_template_there", "teachers_share_tokens", "start_token_alike", "vocabulary_rows"}


def test_all_rules_of_the_module_are_tested():
    rule = {"run": View, "return": Iterator[Finding]}
    assert {name for name, made in vars(tokenizers).items() if getattr(made, "__annotations__", {}) == rule} == RULES


def test_a_good_pair_gives_nothing_and_takes_no_time(say, pair, view_of, make):
    settings = pair()
    for rule in RULES:
        assert say(getattr(tokenizers, rule), settings) == []
    run, spent = view_of(settings, GROUPS), time.process_time()
    assert [finding for rule in RULES for finding in getattr(tokenizers, rule)(run)] == []
    assert time.process_time() - spent < 0.05

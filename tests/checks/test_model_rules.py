"""Rules about models' files: small folders as Hugging Face writes them, with real tokenizer.json files."""

import functools
import json
import pickle
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from opd_conf import model_files
from opd_conf.checks import Finding, models
from opd_conf.compose import compose
from opd_conf.view import View, view

GROUPS = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "data=gsm8k")
STUDENT, TEACHER = "actor_rollout_ref.model.path", "distillation.teacher_models.teacher_model.model_path"
ROLLOUT, SERVER = "actor_rollout_ref.rollout", "distillation.teacher_models.teacher_model.inference"
SIZES = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "vocab_size": 16,
}
WORDS = {"<end>": 0, "<user>": 1, "a": 2, "b": 3, "c": 4, "vocab": 5}


@functools.cache
def _composed(groups: tuple[str, ...]) -> bytes:
    return pickle.dumps(compose(groups).config)


def say(rule: Any, settings: dict[str, Any], groups: tuple[str, ...] = GROUPS) -> list[Finding]:
    config = pickle.loads(_composed(groups))
    for key, value in settings.items():
        OmegaConf.update(config, key, value, force_add=True)
    return list(rule(view(config)))


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch, tmp_path):
    for name in model_files.CACHE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


@pytest.fixture
def make(tmp_path):
    """Writes a model's folder: sizes over SIZES, tokens, what its tokenizer_config.json says."""

    def write(name: str, tokens: dict[str, int] = WORDS, tokenizer: dict[str, Any] | None = None, **sizes: Any) -> str:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(SIZES | sizes))
        write_tokenizer(folder, tokens)
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer or {"chat_template": "{{ messages }}"}))
        return str(folder)

    return write


def write_tokenizer(folder: Path, tokens: dict[str, int]) -> None:
    """A tokenizer.json as the package `tokenizers` writes one: words in `model.vocab`, marks in `added_tokens`."""
    marks = [{"id": number, "content": token, "special": True} for token, number in tokens.items() if token[0] == "<"]
    words = {token: number for token, number in tokens.items() if token[0] != "<"}
    model = {"type": "BPE", "vocab": words, "merges": [["a", "b"]]}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": marks, "model": model}, indent=2))


def pair(make, **teacher: Any) -> dict[str, Any]:
    """A student's and a teacher's folders, as settings."""
    return {STUDENT: make("student"), TEACHER: make("teacher", **teacher)}


def in_cache(tmp_path: Path, made: str, name: str) -> Path:
    """The same files in the hub's layout."""
    repository = tmp_path / "hf" / "hub" / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    shutil.copytree(made, repository / "snapshots" / "abc123")
    return repository / "snapshots" / "abc123"


# Folders


@pytest.mark.parametrize(("action", "severity"), [("train", "error"), ("check", "warning"), ("script", "warning")])
def test_a_folder_that_is_not_there(action, severity):
    [finding] = say(models.model_folder, {STUDENT: "/nowhere/model", "action": action})
    assert (finding.severity, finding.keys, finding.fix) == (severity, (STUDENT,), f"{STUDENT}=FOLDER")
    assert finding.message == "No such folder for the student: /nowhere/model."


@pytest.mark.parametrize("path", ["./models/a", "../a", "a/b/c"])
def test_a_relative_folder_that_is_not_there(monkeypatch, tmp_path, path):
    monkeypatch.chdir(tmp_path)
    [finding] = say(models.model_folder, {TEACHER: path})
    assert path in finding.message
    assert (str(tmp_path) in finding.message) == path.startswith(".")


def test_the_home_folder_must_be_written_out(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    [finding] = say(models.model_folder, {STUDENT: "~/model", "action": "check"})
    assert (finding.severity, finding.fix) == ("error", f"{STUDENT}={tmp_path}/model")
    assert say(models.model_folder, {STUDENT: f"{tmp_path}/model"}) == []


def test_the_tiny_models_are_made_by_a_command(tmp_path):
    [student, teacher] = say(models.model_folder, {"assets": str(tmp_path)}, ("experiment=smoke",))
    assert student.fix == teacher.fix == "python -m opd_conf.cpu.sums"


@pytest.mark.parametrize("path", ["Qwen/Qwen3.5-2B", "gpt2", "hdfs://a/b/c/d", "s3://a/b/c"])
def test_names_that_may_be_elsewhere(path):
    assert say(models.model_folder, {STUDENT: path}) == []


def test_a_slash_at_the_end(make):
    folder = make("student")
    [finding] = say(models.model_path_without_slash, {STUDENT: f"{folder}/"})
    assert (finding.severity, finding.fix) == ("error", f"{STUDENT}={folder}")
    assert say(models.model_path_without_slash, {STUDENT: folder}) == []
    assert say(models.model_folder, {STUDENT: f"{folder}/"}) == []


@pytest.mark.parametrize(
    ("variable", "folder"),
    [("HF_HOME", "hub"), ("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("XDG_CACHE_HOME", "huggingface/hub")],
)
def test_where_the_cache_is(variable, folder):
    assert model_files.hub_cache({variable: "/x"}) == Path("/x") / folder


def test_the_cache_of_the_platforms_block_wins(make, tmp_path):
    in_cache(tmp_path, make("made"), "Qwen/Qwen3.5-2B")
    assert [part.model is not None for part in view_parts({})] == [True, False]
    assert [part.model is not None for part in view_parts({"platform.env.HF_HOME": "/nowhere"})] == [False, False]


def view_parts(settings: dict[str, Any]) -> list[models.Part]:
    return say(models.parts, settings)  # type: ignore[return-value]


def test_what_cannot_be_seen_is_one_note(make):
    [finding] = say(models.models_seen, {})
    assert (finding.severity, finding.fix) == ("note", "hf download Qwen/Qwen3.5-2B")
    assert "Qwen/Qwen3.5-2B (not in the Hugging Face cache), Qwen/Qwen3.5-35B-A3B (not in" in finding.message
    [finding] = say(models.models_seen, {STUDENT: make("student"), TEACHER: "hdfs://a/b"})
    assert finding.message.startswith("Not looked into: hdfs://a/b (on another file system).")
    assert say(models.models_seen, pair(make)) == []
    assert say(models.models_seen, pair(make) | {TEACHER: "/nowhere"}) == []  # another rule says so


def test_broken_files_are_not_seen(make):
    settings = pair(make)
    Path(settings[STUDENT], "config.json").write_text("{")
    Path(settings[TEACHER], "tokenizer.json").write_text("[]")
    [finding] = say(models.models_seen, settings)
    assert "student (no readable config.json)" in finding.message
    assert "teacher (no readable tokenizer.json)" in finding.message
    said = [finding for rule in RULES for finding in say(getattr(models, rule), settings)]
    assert [finding.severity for finding in said] == ["note"]


# config.json


@pytest.mark.parametrize(("names", "count"), [(["A", "B"], 2), ([], 0), (None, 0)])
def test_architectures(make, names, count):
    [finding] = say(models.one_architecture, pair(make, architectures=names))
    assert finding.severity == "error"
    assert f"of the teacher names {count} architectures" in finding.message
    assert say(models.one_architecture, pair(make)) == []


@pytest.mark.parametrize(
    ("heads", "shared", "ranks", "message", "fix"),
    [
        (28, 4, 8, "28 attention heads: they do not divide over 8 ranks", 4),
        (24, 6, 4, "6 key-value heads: they do not divide over 4 ranks", 2),
        (14, 2, 4, "14 attention heads", 2),
        (5, 5, 2, "5 attention heads and 5 key-value heads", 1),
    ],
)
def test_heads_that_do_not_divide(make, heads, shared, ranks, message, fix):
    settings = {
        "trainer.n_gpus_per_node": 8,
        STUDENT: make("student", num_attention_heads=heads, num_key_value_heads=shared),
        f"{ROLLOUT}.tensor_model_parallel_size": ranks,
    }
    [finding] = say(models.heads_divide_tensor_parallel, settings)
    assert message in finding.message
    assert finding.severity == "error"
    assert finding.fix == f"{ROLLOUT}.tensor_model_parallel_size={fix}"
    settings[f"{ROLLOUT}.tensor_model_parallel_size"] = fix
    assert say(models.heads_divide_tensor_parallel, settings) == []


@pytest.mark.parametrize(
    ("sizes", "ranks"),
    [
        ({"num_attention_heads": 8, "num_key_value_heads": 2}, 8),  # vLLM copies key-value heads
        ({"num_attention_heads": 40, "num_key_value_heads": 8}, 8),
        ({"num_attention_heads": 16, "num_key_value_heads": 6, "kv_lora_rank": 512}, 4),  # latent attention
        ({"num_attention_heads": 7}, 1),
    ],
)
def test_heads_that_divide(make, sizes, ranks):
    settings = {STUDENT: make("student", **sizes), f"{ROLLOUT}.tensor_model_parallel_size": ranks}
    assert say(models.heads_divide_tensor_parallel, settings) == []


def test_a_teachers_heads_and_its_experts(make):
    text = {"num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_key_heads": 6, "linear_num_value_heads": 8}
    settings = pair(make, text_config=text) | {"distillation.n_gpus_per_node": 4}
    [finding] = say(models.heads_divide_tensor_parallel, settings)
    assert "6 key heads of linear attention: they do not divide over 4 ranks (tensor parallel) of the teacher" in (
        finding.message
    )
    assert finding.fix == f"{SERVER}.tensor_model_parallel_size=2 {SERVER}.expert_parallel_size=2"


@pytest.mark.parametrize(("ranks", "fix"), [(8, 4), (3, 2), (4, None), (2, None), (1, None)])
def test_ranks_that_share_a_sequence(make, ranks, fix):
    key = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"
    settings = {STUDENT: make("student", num_attention_heads=12, num_key_value_heads=2), key: ranks}
    found = say(models.heads_divide_sequence_parallel, settings | {"trainer.n_gpus_per_node": 8})
    assert [finding.fix for finding in found] == ([f"{key}={fix}"] if fix else [])
    if fix:
        assert f"12 attention heads and 2 key-value heads: {ranks} ranks cannot share" in found[0].message


@pytest.mark.parametrize(
    ("positions", "fix"),
    [
        (1536, "data.max_response_length=1023"),
        (1024, "data.max_response_length=511"),
        (512, "data.max_prompt_length=255 data.max_response_length=256"),
    ],
)
def test_positions_of_a_teacher(make, positions, fix):
    [finding] = say(models.positions_hold_sequence, pair(make, max_position_embeddings=positions))
    assert f"teacher has {positions} positions, and the teacher's server is to hold 1537 tokens" in finding.message
    assert "(512 of the prompt, 1024 of the response)" in finding.message
    assert finding.fix == fix


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({f"{ROLLOUT}.max_model_len": 8192}, 8192),
        ({f"{ROLLOUT}.max_model_len": None, "data.max_response_length": 4000}, 4512),
    ],
)
def test_positions_of_the_student(make, settings, needed):
    found = say(models.positions_hold_sequence, {STUDENT: make("student")} | settings)
    assert [finding.severity for finding in found] == ["error"]
    assert f"student has 4096 positions, and the student's server is to hold {needed} tokens" in found[0].message
    typed = dict(pair.split("=") for pair in found[0].fix.split())
    changed = settings | {key: int(value) for key, value in typed.items()}
    assert say(models.positions_hold_sequence, {STUDENT: make("student")} | changed) == []


@pytest.mark.parametrize(
    "settings",
    [{}, {f"{ROLLOUT}.max_model_len": None}, {f"{ROLLOUT}.max_model_len": 4096}],
)
def test_enough_positions(make, settings):
    assert say(models.positions_hold_sequence, pair(make) | settings) == []


def test_positions_that_a_setting_gives(make):
    settings = {STUDENT: make("student", max_position_embeddings=512)}
    assert len(say(models.positions_hold_sequence, settings)) == 1
    settings["actor_rollout_ref.model.override_config"] = {"max_position_embeddings": 8192}
    assert say(models.positions_hold_sequence, settings) == []


def test_positions_of_models_with_vision(make):
    text = {"max_position_embeddings": 1000}
    folder = make("student", text_config=text)
    config = json.loads(Path(folder, "config.json").read_text())
    del config["max_position_embeddings"]
    Path(folder, "config.json").write_text(json.dumps(config))
    [finding] = say(models.positions_hold_sequence, {STUDENT: folder})
    assert "has 1000 positions" in finding.message


# Templates


def test_a_student_without_a_chat_template(make):
    folder = make("student", tokenizer={"eos_token": "<end>"})
    [finding] = say(models.chat_template_there, {STUDENT: folder})
    assert finding.severity == "error"
    assert "verl would drop every sample" in finding.message
    assert finding.fix.startswith(f"cp TEMPLATE.jinja {folder}/chat_template.jinja")
    # model.custom_chat_template reaches the agent loop, not the length filter
    key = "actor_rollout_ref.model.custom_chat_template"
    assert len(say(models.chat_template_there, {STUDENT: folder, key: "{{ x }}"})) == 1
    assert (
        say(models.chat_template_there, {STUDENT: folder, key: "{{ x }}", "data.filter_overlong_prompts": False}) == []
    )
    assert say(models.chat_template_there, {STUDENT: folder, "actor_rollout_ref.model.tokenizer_path": make("b")}) == []
    Path(folder, "chat_template.jinja").write_text("{{ messages }}")
    assert say(models.chat_template_there, {STUDENT: folder}) == []


def test_templates_elsewhere(make, tmp_path):
    assert say(models.chat_template_there, pair(make, tokenizer={"a": 1})) == []  # the teacher's is not used
    several = {"chat_template": [{"name": "default", "template": "{{ messages }}"}]}
    assert say(models.chat_template_there, {STUDENT: make("several", tokenizer=several)}) == []
    in_cache(tmp_path, make("none", tokenizer={"a": 1}), "a/b")
    assert [finding.severity for finding in say(models.chat_template_there, {STUDENT: "a/b"})] == ["warning"]


# Tokens


def tokens_of(make, settings: dict[str, Any] | None = None, **teacher: Any) -> list[Finding]:
    return say(models.teachers_share_tokens, pair(make, **teacher) | (settings or {}))


def test_one_tokenizer_for_both(make):
    assert tokens_of(make) == []
    assert tokens_of(make, tokens=dict(reversed(WORDS.items()))) == []  # another file, the same ids


def test_two_tokens_swapped(make):
    [finding] = tokens_of(make, tokens=WORDS | {"b": 4, "c": 3})
    assert finding.severity == "error"
    assert finding.keys == (TEACHER, STUDENT)
    assert "differ in 2 tokens: 'b' is 3 for the student, and the teacher" in finding.message
    assert "has it as 4. What" in finding.message
    assert finding.fix.startswith(f"{TEACHER}=MODEL")


def test_another_token_under_the_same_id(make):
    other = {token: number for token, number in WORDS.items() if token != "<user>"} | {"<human>": 1}
    [finding] = tokens_of(make, tokens=other)
    assert finding.severity == "error"
    assert "differ in 1 token: '<user>' is 1 for the student" in finding.message
    assert "has '<human>' there" in finding.message


def test_a_teacher_with_more_tokens(make):
    [finding] = tokens_of(make, tokens=WORDS | {"<think>": 6, "<tool>": 7})
    assert finding.severity == "note"
    assert "The teacher has 2 tokens that the student lacks, first '<think>', 6" in finding.message


def test_a_student_with_more_tokens(make):
    [finding] = tokens_of(make, tokens={token: number for token, number in WORDS.items() if number < 5})
    assert finding.severity == "warning"
    assert "The student has 1 tokens that the teacher" in finding.message
    assert "'vocab', 5" in finding.message


def test_every_named_teacher_is_compared(make):
    teachers = "distillation.teacher_models"
    settings: dict[str, Any] = {STUDENT: make("student")}
    for name, tokens in {"math": WORDS, "geo": WORDS | {"a": 3, "b": 2}}.items():
        settings[f"{teachers}.{name}"] = {"key": name, "model_path": make(name, tokens), "inference": {"name": "vllm"}}
    [finding] = say(models.teachers_share_tokens, settings)
    assert finding.keys[0] == f"{teachers}.geo.model_path"
    assert "teacher geo" in finding.message


def test_tokenizers_in_the_cache(make, tmp_path):
    in_cache(tmp_path, make("one"), "a/one")
    in_cache(tmp_path, make("two", WORDS | {"b": 4, "c": 3}), "a/two")
    assert len(say(models.teachers_share_tokens, {STUDENT: "a/one", TEACHER: "a/two"})) == 1
    assert say(models.teachers_share_tokens, {STUDENT: "a/one", TEACHER: "a/one"}) == []
    assert say(models.teachers_share_tokens, {STUDENT: "a/one", TEACHER: "a/three"}) == []


def test_a_start_token_of_one(make):
    settings = pair(make, tokenizer={"add_bos_token": True, "chat_template": "x"})
    [finding] = say(models.start_token_alike, settings)
    assert finding.severity == "note"
    assert "The tokenizer of the teacher begins a text with a start token, that of the student does not" in (
        finding.message
    )
    assert say(models.start_token_alike, pair(make)) == []
    assert say(models.start_token_alike, pair(make, tokenizer={"add_bos_token": False})) == []


def test_vocabularies_of_lists(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps({"added_tokens": [], "model": {"type": "Unigram", "vocab": [["<pad>", 0.0], ["a", -1]]}})
    )
    assert model_files.read_tokens(path) == {"<pad>": 0, "a": 1}
    path.write_text(json.dumps({"added_tokens": None, "model": {}}))
    assert model_files.read_tokens(path) is None
    assert model_files.read_tokens(tmp_path / "none") is None


def test_a_file_that_changes_is_read_again(tmp_path):
    write_tokenizer(tmp_path, WORDS)
    first = model_files.read_tokens(tmp_path / "tokenizer.json")
    assert model_files.read_tokens(tmp_path / "tokenizer.json") is first
    write_tokenizer(tmp_path, WORDS | {"d": 6})
    assert (model_files.read_tokens(tmp_path / "tokenizer.json") or {})["d"] == 6


# Rows


def rows_of(make, settings: dict[str, Any] | None = None, **teacher: Any) -> list[Finding]:
    return say(models.vocabulary_rows, pair(make, **teacher) | (settings or {}))


LOSS = "distillation.distillation_loss.loss_mode"


def test_rows_that_a_teacher_lacks(make):
    [finding] = rows_of(make, vocab_size=5)
    assert finding.severity == "error"
    assert "The student has 16 vocabulary rows, the teacher 5" in finding.message
    assert "token 5 would fail" in finding.message


def test_rows_that_the_student_lacks(make):
    more = WORDS | {"<far>": 20}
    assert rows_of(make, tokens=more, vocab_size=21) == []  # asked about sampled tokens only
    [finding] = rows_of(make, {LOSS: "forward_kl_topk"}, tokens=more, vocab_size=21)
    assert finding.severity == "error"
    assert "token 20 among its top 32" in finding.message


@pytest.mark.parametrize("mode", ["k1", "forward_kl_topk"])
def test_padding_rows_may_differ(make, mode):
    assert rows_of(make, {LOSS: mode}, vocab_size=32) == []


def test_rows_without_tokenizers(make):
    settings = pair(make, vocab_size=248320) | {STUDENT: make("student", vocab_size=151936)}
    Path(settings[TEACHER], "tokenizer.json").unlink()
    [finding] = say(models.vocabulary_rows, settings)
    assert finding.severity == "warning"
    assert "151936 vocabulary rows, the teacher 248320: hardly" in finding.message
    settings[TEACHER] = make("close", vocab_size=152064)
    Path(settings[TEACHER], "tokenizer.json").unlink()
    assert say(models.vocabulary_rows, settings) == []


# All together

RULES = {
    "model_folder",
    "model_path_without_slash",
    "one_architecture",
    "heads_divide_tensor_parallel",
    "heads_divide_sequence_parallel",
    "positions_hold_sequence",
    "chat_template_there",
    "teachers_share_tokens",
    "start_token_alike",
    "vocabulary_rows",
    "models_seen",
}


def test_all_rules_of_the_module_are_tested():
    rule = {"run": View, "return": Iterator[Finding]}
    assert {name for name, made in vars(models).items() if getattr(made, "__annotations__", {}) == rule} == RULES


def test_a_good_pair_gives_nothing_and_takes_no_time(make):
    settings = pair(make)
    for rule in RULES:
        assert say(getattr(models, rule), settings) == []
    config = pickle.loads(_composed(GROUPS))
    for key, value in settings.items():
        OmegaConf.update(config, key, value)
    run, spent = view(config), time.process_time()
    assert [finding for rule in RULES for finding in getattr(models, rule)(run)] == []
    assert time.process_time() - spent < 0.05

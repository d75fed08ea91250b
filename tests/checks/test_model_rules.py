"""Rules about models' files: small folders as Hugging Face writes them."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opd_conf.checks import Finding, models
from opd_conf.view import View

pytestmark = pytest.mark.usefixtures("no_cache")

GROUPS = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "data=gsm8k")
STUDENT, TEACHER = "actor_rollout_ref.model.path", "distillation.teacher_models.teacher_model.model_path"
ROLLOUT, SERVER = "actor_rollout_ref.rollout", "distillation.teacher_models.teacher_model.inference"


@pytest.fixture
def say(say):
    """What a rule says about a run on text."""
    return lambda rule, settings, groups=GROUPS: say(rule, settings, groups)


# Folders


@pytest.mark.parametrize(("action", "severity"), [("train", "error"), ("check", "warning"), ("script", "warning")])
def test_a_folder_that_is_not_there(say, action, severity):
    [finding] = say(models.model_folder, {STUDENT: "/nowhere/model", "action": action})
    assert (finding.severity, finding.keys, finding.fix) == (severity, (STUDENT,), f"{STUDENT}=FOLDER")
    assert finding.message == "No such folder for the student: /nowhere/model."


@pytest.mark.parametrize("path", ["./models/a", "../a", "a/b/c"])
def test_a_relative_folder_that_is_not_there(say, monkeypatch, tmp_path, path):
    monkeypatch.chdir(tmp_path)
    [finding] = say(models.model_folder, {TEACHER: path})
    assert path in finding.message
    assert (str(tmp_path) in finding.message) == path.startswith(".")


def test_the_home_folder_must_be_written_out(say, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    [finding] = say(models.model_folder, {STUDENT: "~/model", "action": "check"})
    assert (finding.severity, finding.fix) == ("error", f"{STUDENT}={tmp_path}/model")
    assert say(models.model_folder, {STUDENT: f"{tmp_path}/model"}) == []


def test_the_tiny_models_are_made_by_a_command(say, tmp_path):
    [student, teacher] = say(models.model_folder, {"assets": str(tmp_path)}, ("experiment=smoke",))
    assert student.fix == teacher.fix == "python -m opd_conf.cpu.sums"


@pytest.mark.parametrize("path", ["Qwen/Qwen3.5-2B", "gpt2", "hdfs://a/b/c/d", "s3://a/b/c"])
def test_names_that_may_be_elsewhere(say, path):
    assert say(models.model_folder, {STUDENT: path}) == []


def test_a_slash_at_the_end(say, make):
    folder = make("student")
    [finding] = say(models.model_path_without_slash, {STUDENT: f"{folder}/"})
    assert (finding.severity, finding.fix) == ("error", f"{STUDENT}={folder}")
    assert say(models.model_path_without_slash, {STUDENT: folder}) == []
    assert say(models.model_folder, {STUDENT: f"{folder}/"}) == []


def test_the_cache_of_the_platforms_block_wins(in_cache, make, say):
    def seen(settings):
        return [part.model is not None for part in say(models.parts, settings)]

    in_cache(make("made"), "Qwen/Qwen3.5-2B")
    assert seen({}) == [True, False]
    assert seen({"platform.env.HF_HOME": "/nowhere"}) == [False, False]


def test_what_cannot_be_seen_is_one_note(say, pair, make):
    [finding] = say(models.models_seen, {})
    assert (finding.severity, finding.fix) == ("note", "hf download Qwen/Qwen3.5-2B")
    assert "Qwen/Qwen3.5-2B (not in the Hugging Face cache), Qwen/Qwen3.5-35B-A3B (not in" in finding.message
    [finding] = say(models.models_seen, {STUDENT: make("student"), TEACHER: "hdfs://a/b"})
    assert finding.message.startswith("Not looked into: hdfs://a/b (on another file system).")
    assert say(models.models_seen, pair()) == []
    assert say(models.models_seen, pair() | {TEACHER: "/nowhere"}) == []  # another rule says so


def test_broken_files_are_not_seen(say, pair, make):
    settings = pair()
    Path(settings[STUDENT], "config.json").write_text("{")
    Path(settings[TEACHER], "tokenizer.json").write_text("[]")
    [finding] = say(models.models_seen, settings)
    assert "student (no readable config.json)" in finding.message
    assert "teacher (no readable tokenizer.json)" in finding.message
    said = [finding for rule in RULES for finding in say(getattr(models, rule), settings)]
    assert [finding.severity for finding in said] == ["note"]


# config.json


@pytest.mark.parametrize(("names", "count"), [(["A", "B"], 2), ([], 0), (None, 0)])
def test_architectures(say, pair, make, names, count):
    [finding] = say(models.one_architecture, pair(architectures=names))
    assert finding.severity == "error"
    assert f"of the teacher names {count} architectures" in finding.message
    assert say(models.one_architecture, pair()) == []


@pytest.mark.parametrize(
    ("heads", "shared", "ranks", "message", "fix"),
    [
        (28, 4, 8, "28 attention heads: they do not divide over 8 ranks", 4),
        (24, 6, 4, "6 key-value heads: they do not divide over 4 ranks", 2),
        (14, 2, 4, "14 attention heads", 2),
        (5, 5, 2, "5 attention heads and 5 key-value heads", 1),
    ],
)
def test_heads_that_do_not_divide(say, make, heads, shared, ranks, message, fix):
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
def test_heads_that_divide(say, make, sizes, ranks):
    settings = {STUDENT: make("student", **sizes), f"{ROLLOUT}.tensor_model_parallel_size": ranks}
    assert say(models.heads_divide_tensor_parallel, settings) == []


def test_a_teachers_heads_and_its_experts(say, pair, make):
    text = {"num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_key_heads": 6, "linear_num_value_heads": 8}
    settings = pair(text_config=text) | {"distillation.n_gpus_per_node": 4}
    [finding] = say(models.heads_divide_tensor_parallel, settings)
    assert "6 key heads of linear attention: they do not divide over 4 ranks (tensor parallel) of the teacher" in (
        finding.message
    )
    assert finding.fix == f"{SERVER}.tensor_model_parallel_size=2 {SERVER}.expert_parallel_size=2"


@pytest.mark.parametrize(("ranks", "fix"), [(8, 4), (3, 2), (4, None), (2, None), (1, None)])
def test_ranks_that_share_a_sequence(say, make, ranks, fix):
    key = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"
    settings = {STUDENT: make("student", num_attention_heads=12, num_key_value_heads=2), key: ranks}
    found = say(models.heads_divide_sequence_parallel, settings | {"trainer.n_gpus_per_node": 8})
    assert [finding.fix for finding in found] == ([f"{key}={fix}"] if fix else [])
    if fix:
        assert f"12 attention heads and 2 key-value heads: {ranks} ranks cannot share" in found[0].message


FUSED = "actor_rollout_ref.model.use_fused_kernels"


def test_fused_kernels_and_a_last_layer_in_shards(say, make):
    settings = {STUDENT: make("student", tie_word_embeddings=False), FUSED: True}
    [finding] = say(models.fused_kernels_reach_last_layer, settings)
    assert finding.severity == "error"
    assert "student has a last layer of its own" in finding.message
    assert finding.fix == f"{FUSED}=false"
    assert say(models.fused_kernels_reach_last_layer, settings | {FUSED: False}) == []


@pytest.mark.parametrize(
    ("tied", "settings"),
    [
        (True, {}),
        (None, {}),
        (False, {"actor_rollout_ref.actor.strategy": "fsdp"}),
        (False, {"actor_rollout_ref.model.fused_kernel_options.impl_backend": "triton"}),
    ],
)
def test_fused_kernels_where_they_are_not_known_to_fail(say, make, tied, settings):
    student = {STUDENT: make("student", tie_word_embeddings=tied), FUSED: True}
    assert say(models.fused_kernels_reach_last_layer, student | settings) == []


@pytest.mark.parametrize(
    ("positions", "fix"),
    [
        (1536, "data.max_response_length=1023"),
        (1024, "data.max_response_length=511"),
        (512, "data.max_prompt_length=255 data.max_response_length=256"),
    ],
)
def test_positions_of_a_teacher(say, pair, make, positions, fix):
    [finding] = say(models.positions_hold_sequence, pair(max_position_embeddings=positions))
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
def test_positions_of_the_student(say, make, settings, needed):
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
def test_enough_positions(say, pair, make, settings):
    assert say(models.positions_hold_sequence, pair() | settings) == []


def test_positions_that_a_setting_gives(say, make):
    settings = {STUDENT: make("student", max_position_embeddings=512)}
    assert len(say(models.positions_hold_sequence, settings)) == 1
    settings["actor_rollout_ref.model.override_config"] = {"max_position_embeddings": 8192}
    assert say(models.positions_hold_sequence, settings) == []


def test_positions_of_models_with_vision(say, make):
    text = {"max_position_embeddings": 1000}
    folder = make("student", text_config=text)
    config = json.loads(Path(folder, "config.json").read_text())
    del config["max_position_embeddings"]
    Path(folder, "config.json").write_text(json.dumps(config))
    [finding] = say(models.positions_hold_sequence, {STUDENT: folder})
    assert "has 1000 positions" in finding.message


# All together

RULES = {
    "model_folder",
    "model_path_without_slash",
    "one_architecture",
    "heads_divide_tensor_parallel",
    "heads_divide_sequence_parallel",
    "fused_kernels_reach_last_layer",
    "positions_hold_sequence",
    "models_seen",
}


def test_all_rules_of_the_module_are_tested():
    rule = {"run": View, "return": Iterator[Finding]}
    assert {name for name, made in vars(models).items() if getattr(made, "__annotations__", {}) == rule} == RULES


def test_a_good_pair_gives_nothing_and_takes_no_time(say, pair, view_of, make):
    settings = pair()
    for rule in RULES:
        assert say(getattr(models, rule), settings) == []
    run, spent = view_of(settings, GROUPS), time.process_time()
    assert [finding for rule in RULES for finding in getattr(models, rule)(run)] == []
    assert time.process_time() - spent < 0.05

"""Rules about what stands in the data: real parquet files, small."""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from opd_conf.checks import Finding, data
from opd_conf.view import View

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

GROUPS = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "data=gsm8k")
TRAIN, VAL = "data.train_files", "data.val_files"
STUDENT, TEACHERS = "actor_rollout_ref.model.path", "distillation.teacher_models"


@pytest.fixture
def say(say):
    """What a rule says about a run on text."""
    return lambda rule, settings, groups=GROUPS: say(rule, settings, groups)


def row(text: str = "1+1=", source: str = "openai/gsm8k", **more: Any) -> dict[str, Any]:
    """A row as verl's examples/data_preprocess/gsm8k.py writes it; a column that is `...` is left out."""
    made = {
        "data_source": source,
        "prompt": [{"role": "user", "content": text}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "train", "index": 0},
    } | more
    return {key: value for key, value in made.items() if value is not ...}


@pytest.fixture
def write(tmp_path):
    """Writes rows to a parquet file; the settings that make it both sets, with batches of four."""

    def settings(*rows: dict[str, Any], name: str = "a", **table: Any) -> dict[str, Any]:
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows)), path, **table)
        return {TRAIN: [str(path)], VAL: [str(path)], "data.train_batch_size": 4}

    return settings


def severities(found: list[Finding]) -> list[tuple[str, ...]]:
    return [(finding.severity, *finding.keys) for finding in found]


IDS = {
    "data_readable",
    "data_seen",
    "prompts_are_messages",
    "reward_knows_source",
    "ground_truth_there",
    "images_match_prompts",
    "overlong_prompts_left_out",
    "images_reach_vision_models",
    "teachers_cover_data",
    "rows_fill_batch",
    "patches_counted",
    "videos_reach_teacher",
}


def rules() -> list[Any]:
    return [getattr(data, name) for name in sorted(IDS)]


def test_all_rules_of_the_module_are_tested():
    rule = {"run": View, "return": Iterator[Finding]}
    assert {name for name, made in vars(data).items() if getattr(made, "__annotations__", {}) == rule} == IDS


def test_good_rows_give_nothing_and_take_no_time(say, write):
    settings = write(*[row()] * 8)
    for rule in rules():
        assert say(rule, settings) == []


def test_files_that_are_not_here_are_not_looked_into(say):
    for rule in rules():
        assert say(rule, {TRAIN: ["/nowhere/a.parquet", "hdfs://a/b.parquet"], VAL: "s3://a.parquet"}) == []


def test_a_large_file_is_read_in_part(view_of, tmp_path, write):
    settings = write(*[row(images=[{"bytes": bytes(20_000), "path": "x"}]) for _ in range(2000)], row_group_size=500)
    settings[STUDENT] = "a/b"
    run, spent = view_of(settings, GROUPS), time.process_time()
    assert [finding.id for rule in rules() for finding in rule(run) if rule is not data.images_match_prompts] == []
    assert time.process_time() - spent < 0.5
    [sample] = data._samples(run, "train_files")
    assert (sample.rows, len(sample.first)) == (2000, data.ROWS)
    assert "bytes" not in sample.first[0]["images"][0]  # pictures are counted, not read


def test_files_that_cannot_be_read(say, tmp_path):
    (tmp_path / "a.parquet").touch()
    (tmp_path / "b.parquet").write_text("not parquet at all, and longer than twelve bytes")
    found = say(data.data_readable, {TRAIN: [f"{tmp_path}/a.parquet", f"{tmp_path}/b.parquet"], VAL: "c.csv"})
    assert severities(found) == [("error", TRAIN), ("error", TRAIN), ("error", VAL)]
    assert f"{tmp_path}/a.parquet cannot be read: " in found[0].message
    assert found[2].message == "c.csv: verl reads .parquet, .json, .jsonl."


def test_what_is_not_looked_into_is_a_note(say, write, tmp_path, monkeypatch):
    (tmp_path / "b.jsonl").write_text(json.dumps(row()))
    [finding] = say(data.data_seen, write(row()) | {VAL: f"{tmp_path}/b.jsonl"})
    assert finding.severity == "note"
    assert ".jsonl; only parquet files are" in finding.message
    monkeypatch.setattr(data, "_pyarrow", lambda: False)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    [finding] = say(data.data_seen, write(row(), name="new"))
    assert (finding.severity, finding.fix) == ("note", "pip install pyarrow")
    assert "not looked into: pyarrow is not installed" in finding.message
    for rule in rules():
        assert rule is data.data_seen or say(rule, write(row("x", "unknown"), name="new")) == []


# Prompts


def test_another_column_of_prompts(say, write):
    [train, _] = say(data.prompts_are_messages, write(row(prompt=..., prompts=[{"role": "user", "content": "x"}])))
    assert severities([train]) == [("error", "data.prompt_key", TRAIN)]
    assert "has no column prompt for prompts; it has data_source, ability" in train.message
    assert train.fix == "data.prompt_key=prompts"


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("What is 1+1? Tell me.", 'the text "What is 1+1? Tell me…"'),
        (["a"], "a list of something else"),
        (None, "nothing"),
    ],
)
def test_prompts_that_are_no_messages(say, write, prompt, shown):
    found = say(data.prompts_are_messages, write(row(prompt=prompt)))
    assert len(found) == 2
    assert f"prompt holds {shown} instead of a list of messages" in found[0].message


def test_prompts_under_another_name(say, write):
    settings = write(row(prompt=..., question=[{"role": "user", "content": "x"}])) | {"data.prompt_key": "question"}
    assert say(data.prompts_are_messages, settings) == []


def test_a_data_set_of_ones_own_is_left_alone(say, write):
    settings = write(row("x", "unknown", prompt=1)) | {"data.custom_cls.path": "own.py"}
    for rule in rules():
        assert say(rule, settings) == []


# Rewards


def test_the_sources_of_verl():
    exact, starts = data.known_sources()
    assert {"openai/gsm8k", "hiyouga/geometry3k", "math_dapo", "searchR1_nq", "taco"} <= exact
    assert starts == ("aime",)
    assert len(exact) == 25


def test_an_unknown_source(say, write):
    found = say(data.reward_knows_source, write(row(), row(source="openai/gsm9k"), row(source="mine")))
    assert severities(found) == [
        ("error", TRAIN, "reward.custom_reward_function.path"),
        ("warning", VAL, "reward.custom_reward_function.path"),
    ]
    assert "verl has no reward for data_source mine, openai/gsm9k" in found[0].message
    assert found[0].fix == "reward.custom_reward_function.path=FILE.py"


@pytest.mark.parametrize("source", ["openai/gsm8k", "aime24", "hiyouga/geometry3k", "math"])
def test_known_sources(say, write, source):
    assert say(data.reward_knows_source, write(row(source=source))) == []


@pytest.mark.parametrize(
    "key", ["reward.custom_reward_function.path", "custom_reward_function.path", "reward.reward_manager.module.path"]
)
def test_a_reward_of_ones_own(say, write, key):
    assert say(data.reward_knows_source, write(row(source="mine")) | {key: "reward.py"}) == []


def test_no_source_at_all(say, write):
    found = say(data.reward_knows_source, write(row(data_source=...)))
    assert [finding.severity for finding in found] == ["error", "warning"]
    assert "has no column data_source" in found[0].message


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (..., "no column reward_model (2 of the first 2)"),
        ({"style": "rule"}, "rows without reward_model.ground_truth (2 of the first 2)"),
        ("2", "rows without reward_model.ground_truth"),
    ],
)
def test_no_ground_truth(say, write, column, message):
    own = {"reward.custom_reward_function.path": "reward.py"}  # it is read for a function of one's own too
    found = say(data.ground_truth_there, write(row(reward_model=column), row(reward_model=column)) | own)
    assert [finding.severity for finding in found] == ["error", "warning"]
    assert message in found[0].message


# Pictures

PICTURE = {"bytes": b"x", "path": None}


def test_pictures_in_a_column_of_another_name(say, write):
    found = say(data.images_match_prompts, write(row("<image>How long?", image=[PICTURE]), row()))
    assert severities(found)[0] == ("error", "data.image_key", TRAIN)
    assert "1 of the first 2 prompts have <image>, and there is no column images" in found[0].message
    assert found[0].fix == "data.image_key=image"


@pytest.mark.parametrize(("text", "count"), [("<image><image>x", 2), ("x", 0), ("<image>x", 0)])
def test_numbers_of_pictures(say, write, text, count):
    found = say(data.images_match_prompts, write(row(text, images=[PICTURE]), row("<image>", images=[PICTURE])))
    if text == "<image>x":
        assert found == []
    else:
        assert f"a prompt has {count} times <image>, and its row 1 pictures in images (1 of the first 2" in (
            found[0].message
        )


@pytest.mark.parametrize("pictures", [[PICTURE], ["a.png"], [{"image": "file:///a.png"}]])
def test_pictures_in_verls_forms(say, write, pictures):
    assert say(data.images_match_prompts, write(row("<image>x", images=pictures), row(images=[]))) == []
    settings = write(row("<image>x", image=pictures)) | {"data.image_key": "image"}
    assert say(data.images_match_prompts, settings) == []


def test_prompts_in_parts_are_left_alone(say, write):
    parts = [{"role": "user", "content": [{"type": "text", "text": "<image>"}]}]
    assert say(data.images_match_prompts, write(row(prompt=parts))) == []


def test_pictures_for_a_model_of_text(say, make, write):
    text, seeing = make("text"), make("seeing", vision_config={"depth": 24})
    settings = write(row("<image>x", images=[PICTURE]))
    path = f"{TEACHERS}.teacher_model.model_path"
    [finding] = say(data.images_reach_vision_models, settings | {STUDENT: seeing, path: text})
    assert severities([finding]) == [("error", path, TRAIN)]
    assert f"rows with pictures for the teacher, and {text} has no vision part" in finding.message
    [finding] = say(data.images_reach_vision_models, settings | {STUDENT: text, path: seeing})
    assert finding.keys == (STUDENT, TRAIN)
    assert say(data.images_reach_vision_models, settings | {STUDENT: seeing, path: seeing}) == []
    assert say(data.images_reach_vision_models, settings) == []  # cannot be seen
    # text data with a teacher that sees is fine (verl PR 5997)
    assert say(data.images_reach_vision_models, write(row()) | {STUDENT: text, path: seeing}) == []


def teachers(**keys: tuple[str, str]) -> dict[str, Any]:
    """Named teachers, each with its key and its model."""
    return {
        f"{TEACHERS}.{name}": {"key": key, "model_path": path, "inference": {"name": "vllm"}}
        for name, (key, path) in keys.items()
    }


def test_pictures_go_to_the_teacher_that_sees(say, make, write):
    """verl PR 6056: a teacher of text for gsm8k, one with vision for geo3k, one student with vision."""
    text, seeing = make("text"), make("seeing", vision_config={"depth": 24})
    rows = [row("<image>x", "hiyouga/geometry3k", images=[PICTURE]), row()]
    settings = write(*rows) | {STUDENT: seeing}
    right = teachers(math=("openai/gsm8k", text), geo=("hiyouga/geometry3k", seeing))
    assert say(data.images_reach_vision_models, settings | right) == []
    wrong = teachers(math=("hiyouga/geometry3k", text), geo=("openai/gsm8k", seeing))
    [finding] = say(data.images_reach_vision_models, settings | wrong)
    assert finding.keys == (f"{TEACHERS}.math.model_path", TRAIN)


# Routing and sizes


def test_rows_that_no_teacher_takes(say, write):
    settings = write(row(), row(source="hiyouga/geometry3k"))
    [finding] = say(data.teachers_cover_data, settings | teachers(a=("openai/gsm8k", "x"), b=("geometry3k", "y")))
    assert finding.severity == "error"
    assert "no teacher has the key hiyouga/geometry3k (data_source of the rows)" in finding.message
    assert "teachers have geometry3k, openai/gsm8k" in finding.message
    assert finding.fix == f"{TEACHERS}.b.key=hiyouga/geometry3k"
    assert (
        say(data.teachers_cover_data, settings | teachers(a=("openai/gsm8k", "x"), b=("hiyouga/geometry3k", "y"))) == []
    )
    assert say(data.teachers_cover_data, settings | teachers(a=("other", "x"))) == []  # one teacher takes all


def test_a_column_that_teachers_are_chosen_by(say, write):
    named = teachers(a=("math", "x"), b=("code", "y"))
    settings = write(row(ability="math"), row(ability="code")) | named
    assert say(data.teachers_cover_data, settings | {"distillation.teacher_key": "ability"}) == []
    [finding] = say(data.teachers_cover_data, settings | {"distillation.teacher_key": "abilities"})
    assert "has no column abilities" in finding.message
    assert finding.fix == "distillation.teacher_key=ability"


def test_rows_for_a_batch(say, write):
    [finding] = say(data.rows_fill_batch, write(row(), row(), row()))
    assert severities([finding]) == [("error", "data.train_batch_size", TRAIN)]
    assert "data.train_files has 3 rows, fewer than a batch of 4" in finding.message
    assert finding.fix == "data.train_batch_size=3"
    assert say(data.rows_fill_batch, write(*[row()] * 4)) == []
    assert len(say(data.rows_fill_batch, write(*[row()] * 4) | {"data.train_max_samples": 3})) == 1


def test_rows_of_several_files(say, write):
    one, two = write(*[row()] * 2, name="one"), write(*[row()] * 2, name="two")
    assert say(data.rows_fill_batch, one | {TRAIN: [*one[TRAIN], *two[TRAIN]]}) == []
    assert say(data.rows_fill_batch, one | {TRAIN: [*one[TRAIN], "hdfs://a/b.parquet"]}) == []


def test_no_rows_to_validate_with(say, write, tmp_path):
    settings = write(*[row()] * 4)
    pq.write_table(pa.Table.from_pylist([row()]).slice(0, 0), tmp_path / "none.parquet")
    [finding] = say(data.rows_fill_batch, settings | {VAL: str(tmp_path / "none.parquet")})
    assert finding.message == "data.val_files has no rows; verl wants some."


def test_patches_of_pictures(write, say):
    settings = {"data.image_patch_size": 14}
    [finding] = say(data.patches_counted, settings)
    assert (finding.severity, finding.fix) == ("warning", "data.image_patch_size=16")
    assert "Qwen/Qwen3.5-2B sees patches of 16: the length filter counts 1.31 times" in finding.message
    for fine in ({}, {"data.image_patch_size": None}, settings | {"data.filter_overlong_prompts": False}):
        assert say(data.patches_counted, fine) == []
    assert say(data.patches_counted, settings | {STUDENT: "Qwen/Qwen2.5-0.5B"}) == []
    assert say(data.patches_counted, settings | write(row())) == []  # no pictures
    assert len(say(data.patches_counted, settings | write(row(images=[])))) == 1


def test_videos_between_kinds_of_servers(write, say):
    other = {f"{TEACHERS}.teacher_model.inference.name": "sglang"}
    [finding] = say(data.videos_reach_teacher, other | write(row(videos=["film.mp4"])))
    assert (finding.severity, finding.fix) == ("warning", f"{TEACHERS}.teacher_model.inference.name=vllm")
    assert say(data.videos_reach_teacher, write(row(videos=["film.mp4"]))) == []
    assert say(data.videos_reach_teacher, other | write(row())) == []


def test_overlong_prompts_that_stay(say):
    [finding] = say(data.overlong_prompts_left_out, {"data.filter_overlong_prompts": False})
    assert (finding.severity, finding.fix) == ("warning", "data.filter_overlong_prompts=true")
    assert "over 512 tokens" in finding.message
    assert say(data.overlong_prompts_left_out, {}) == []
    own = {"data.filter_overlong_prompts": False, "data.custom_cls.path": "mine.py"}
    assert say(data.overlong_prompts_left_out, own) == []

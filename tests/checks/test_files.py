"""Rules about files of data, and about a folder that Ray packs."""

import shlex
from pathlib import Path

import pytest

from opd_conf import checks
from opd_conf.checks import files
from opd_conf.compose import compose

RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")


def found(*overrides: str) -> list[checks.Finding]:
    return [finding for finding in checks.findings(compose([*RUN, *overrides]).config) if finding.id == "data_files"]


def test_files_that_are_there(tmp_path):
    (tmp_path / "a.parquet").touch()
    assert found(f"data.train_files={tmp_path}/a.parquet", f"data.val_files=[{tmp_path}/a.parquet]") == []


@pytest.mark.parametrize(("action", "severity"), [("train", "error"), ("dry_run", "warning"), ("script", "warning")])
def test_a_plan_made_elsewhere_may_not_see_its_files(action, severity):
    [finding] = found("data.train_files=/nowhere/a.parquet", "data.val_files=/nowhere/a.parquet", f"action={action}")[
        :1
    ]
    assert finding.severity == severity


@pytest.mark.parametrize("name", ["gsm8k", "geo3k"])
def test_data_of_verls_examples_comes_with_the_command_that_makes_it(monkeypatch, tmp_path, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    [finding] = found(f"data={name}")
    assert finding.keys == ("data.train_files", "data.val_files")
    assert f"No such data: {tmp_path}/data/{name}/train.parquet, {tmp_path}/data/{name}/test.parquet" in finding.message
    assert finding.fix.startswith(f"python examples/data_preprocess/{name}.py --local_save_dir {tmp_path}/data/{name}")


def test_the_tiny_task_is_made_by_a_command(monkeypatch, tmp_path):
    monkeypatch.setenv("OPD_ASSETS", str(tmp_path))
    [finding] = found("data=tiny")
    assert finding.fix == "python -m opd_conf.cpu.sums"
    [finding] = found("data=tiny", f"assets={tmp_path}/elsewhere")
    assert finding.fix == f"python -m opd_conf.cpu.sums {tmp_path}/elsewhere/sums"


def test_other_files_are_named_as_they_are_seen(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "there.parquet").touch()
    train, validation = found('data.train_files=["~/there.parquet","$HOME/x.parquet"]', "data.val_files=a/b.parquet")
    assert "No such data: $HOME/x.parquet" in train.message
    assert "In single quotes the shell leaves $ as it is" in train.message
    assert validation.message == f"No such data: a/b.parquet (looked for in {tmp_path})."
    assert shlex.split(validation.fix) == ["data.val_files=FILE"]


@pytest.mark.parametrize("value", ["null", "[]"])
def test_verl_reads_validation_data_in_any_case(tmp_path, value):
    (tmp_path / "a.parquet").touch()
    [finding] = found(f"data.train_files={tmp_path}/a.parquet", f"data.val_files={value}")
    assert finding.message.startswith("data.val_files names no file")


def test_files_that_cannot_be_seen_from_here_are_left_to_verl():
    assert found("data.train_files=hdfs://a/b.parquet", "data.val_files=s3://a/c.parquet") == []


def _weights(file: Path, mebibytes: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as made:
        made.truncate(mebibytes * 2**20)  # a hole: takes no disk


WORKING_FOLDER = "ray_kwargs.ray_init.runtime_env.working_dir"


def test_a_working_folder_with_weights(say, tmp_path):
    _weights(tmp_path / "models" / "a.safetensors", 600)
    _weights(tmp_path / "small.bin", 1)
    [finding] = say(files.working_folder_small, {WORKING_FOLDER: str(tmp_path)})
    assert (finding.severity, finding.keys, finding.fix) == ("warning", (WORKING_FOLDER,), f"~{WORKING_FOLDER}")
    assert "601 MiB (the largest file: models/a.safetensors, 600 MiB); it refuses 512 MiB" in finding.message


@pytest.mark.parametrize("pattern", ["*.safetensors", "models/", "/models", "models/*", "# only\n*.safetensors"])
def test_files_that_ray_leaves_out_of_a_working_folder(pattern, say, tmp_path):
    _weights(tmp_path / "models" / "a.safetensors", 600)
    _weights(tmp_path / ".git" / "pack", 600)
    (tmp_path / ".rayignore").write_text(pattern)
    assert say(files.working_folder_small, {WORKING_FOLDER: str(tmp_path)}) == []


def test_working_folders_that_are_in_order(say, tmp_path):
    _weights(tmp_path / "a.bin", 600)
    excluded = {WORKING_FOLDER: str(tmp_path), "ray_kwargs.ray_init.runtime_env.excludes": ["*.bin"]}
    for settings in ({}, {WORKING_FOLDER: "s3://a/b.zip"}, {WORKING_FOLDER: "/nowhere"}, excluded):
        assert say(files.working_folder_small, settings) == []

"""The run folder: whole, exclusive, and repeatable without opd_conf."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from opd_conf import record, script, status, verl_tree
from opd_conf.compose import compose
from opd_conf.errors import UserError
from opd_conf.handoff import Handoff, handoff

NPU = ["platform=npu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b"]


def _handoff(folder: Path, *overrides: str) -> Handoff:
    return handoff(compose([*NPU, *overrides]).config, folder)


def _recorded(folder: Path, *overrides: str) -> Handoff:
    config = compose([*NPU, f"run_dir={folder}", *overrides]).config
    run = handoff(config, record.make_folder(config, chosen_by_user=True))
    record.record(run, {"overrides": ["x=y"]})
    return run


def test_verl_gets_its_own_keys_only_and_all_resolved(tmp_path):
    verl = _handoff(tmp_path).verl
    assert verl.keys() == verl_tree.root_keys()
    assert "${" not in json.dumps(verl)
    assert verl["trainer"]["default_local_dir"] == f"{tmp_path}/checkpoints"


def test_the_environment_reaches_rays_workers_as_strings(tmp_path):
    run = _handoff(tmp_path, "+ray_kwargs.ray_init.runtime_env.env_vars.MINE=1")
    env_vars = run.verl["ray_kwargs"]["ray_init"]["runtime_env"]["env_vars"]
    assert env_vars["HCCL_BUFFSIZE"] == "610"
    assert env_vars["VERL_FILE_LOGGER_PATH"] == f"{tmp_path}/metrics.jsonl"
    assert env_vars.items() >= run.environment.items()
    assert env_vars["MINE"] == "1"


def test_a_run_folder_holds_all_that_the_docs_say(tmp_path):
    run = _recorded(tmp_path / "run")
    names = {path.name for path in run.folder.iterdir()}
    assert names == {"verl.yaml", "env.json", "run.json", "command.sh", "status.json"}
    assert yaml.safe_load((run.folder / "verl.yaml").read_text()) == run.verl
    assert json.loads((run.folder / "env.json").read_text()) == run.environment
    facts = json.loads((run.folder / "run.json").read_text())
    assert facts["versions"]["verl"] == "0.9.1"
    assert facts["runner"] == "this Python: platform=npu"
    assert status.read(run.folder)["state"] == "created"


def test_a_taken_folder_is_refused_and_left_alone(tmp_path):
    run = _recorded(tmp_path / "run")
    before = {path: path.read_bytes() for path in run.folder.iterdir()}
    with pytest.raises(UserError, match=r"(?s)is taken.*launch.resume=true"):
        _recorded(tmp_path / "run")
    assert {path: path.read_bytes() for path in run.folder.iterdir()} == before


def test_starts_in_the_same_second_do_not_meet(tmp_path):
    config = compose([*NPU, f"run_dir={tmp_path}/run"]).config
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: record.make_folder(config, chosen_by_user=False), range(24)))
    assert len(set(folders)) == 24


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made: Not a directory"):
        _recorded(tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["a'b", "a$b", "a&b", "a;b", 'a"b', "a|b"])
def test_a_name_that_shells_would_read_otherwise_is_refused(tmp_path, name):
    config = compose(NPU).config
    config.run_dir = f"{tmp_path}/{name}"
    with pytest.raises(UserError, match="which shells and YAML read as more than a name"):
        record.make_folder(config, chosen_by_user=True)
    assert list(tmp_path.iterdir()) == []


def test_resuming_puts_the_last_attempt_aside_and_keeps_checkpoints(tmp_path):
    run = _recorded(tmp_path / "run")
    (run.folder / "checkpoints").mkdir()
    (run.folder / "train.log").write_text("first")
    _recorded(tmp_path / "run", "launch.resume=true")
    assert (run.folder / "attempts" / "1" / "train.log").read_text() == "first"
    assert (run.folder / "checkpoints").is_dir()
    _recorded(tmp_path / "run", "launch.resume=true")
    assert {path.name for path in (run.folder / "attempts").iterdir()} == {"1", "2"}


def test_resuming_nothing_or_a_running_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        _recorded(tmp_path / "run", "launch.resume=true")
    run = _recorded(tmp_path / "run")
    status.write(run.folder, "running", pid=os.getpid())
    with pytest.raises(UserError, match=f"running now .process {os.getpid()}"):
        _recorded(tmp_path / "run", "launch.resume=true")


@pytest.mark.parametrize("name", ["run", "run with space", "0_lr=1e-6,topk=16"])
def test_command_sh_repeats_the_command_in_a_new_folder(tmp_path, name):
    """With `echo` in place of verl's Python: the script's own part is run, the trainer's in tests/e2e."""
    run = _handoff(tmp_path / name)
    echo = replace(run, command=("/bin/echo", *run.command[1:]))
    (tmp_path / "command.sh").write_text(script.render(echo, tmp_path))
    again = tmp_path / f"{name} again"
    done = subprocess.run(
        ["bash", str(tmp_path / "command.sh"), str(again)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == " ".join(run.command[1:]).replace(str(run.folder), str(again))
    verl = yaml.safe_load((again / "verl.yaml").read_text())
    assert verl["trainer"]["default_local_dir"] == f"{again}/checkpoints"
    assert str(run.folder) + "/" not in (again / "verl.yaml").read_text()
    assert subprocess.run(["bash", str(tmp_path / "command.sh"), str(again)], capture_output=True).returncode != 0
    subprocess.run(["bash", str(tmp_path / "command.sh")], capture_output=True, check=True)
    assert len(list(tmp_path.glob(f"{name}_again_*/verl.yaml"))) == 1


def test_git_state_is_the_commit_and_what_is_changed(tmp_path):
    assert record.git_state(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    (tmp_path / "new").touch()
    state = record.git_state(tmp_path)
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["changed"] == ["?? new"]

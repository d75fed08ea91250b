"""Rules about what is kept of a run."""

import pytest

from opd_conf.checks import checkpoints

FOLDER = "trainer.default_local_dir"
NODES = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "cluster=2x8")


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({"trainer.total_epochs": 30}, "30 epochs"),
        ({"trainer.total_training_steps": 500}, "500 steps"),
        ({"trainer.save_freq": 0}, "15 epochs"),
    ],
)
def test_a_long_run_without_checkpoints(settings, length, one):
    severity, message, fix = one(checkpoints.checkpoints_saved, {"trainer.save_freq": -1} | settings)
    assert (severity, fix) == ("warning", "trainer.save_freq=200")
    assert f"nothing of {length} is saved" in message


def test_a_short_run_may_do_without_checkpoints(say, monkeypatch):
    never = {"trainer.save_freq": -1}
    for short in ({"trainer.total_training_steps": 16}, {"trainer.total_epochs": 1}):
        assert say(checkpoints.checkpoints_saved, never | short) == []
    monkeypatch.setattr(checkpoints, "train_rows", lambda run: 128 * 20)
    assert say(checkpoints.checkpoints_saved, never | {"trainer.total_epochs": 5}) == []
    [finding] = say(checkpoints.checkpoints_saved, never | {"trainer.total_epochs": 6})
    assert "nothing of 120 steps is saved" in finding.message
    assert say(checkpoints.checkpoints_saved, {"trainer.save_freq": 1000}) == []  # the last step is saved in any case


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({FOLDER: "checkpoints/a"}, f"{FOLDER}=checkpoints/a is relative: each of the 2 nodes"),
        ({FOLDER: "/tmp/a"}, f"{FOLDER}=/tmp/a is below /tmp"),
        ({"run_dir": "/dev/shm/a"}, "run_dir=/dev/shm/a is below /dev/shm"),
    ],
)
def test_folders_that_each_node_has_for_itself(settings, message, say, monkeypatch):
    monkeypatch.chdir("/")
    [finding] = say(checkpoints.checkpoints_shared, settings, NODES)
    assert finding.severity == "warning"
    assert finding.message.startswith(message)
    assert say(checkpoints.checkpoints_shared, settings) == []  # one node


def test_folders_that_nodes_may_share(say, monkeypatch):
    monkeypatch.chdir("/")
    for settings in ({}, {FOLDER: "/shared/a"}, {FOLDER: "/tmpfiles/a"}, {"run_dir": "/home/me/a"}):
        assert say(checkpoints.checkpoints_shared, settings, NODES) == []


def test_a_run_started_in_a_folder_of_the_node(say, monkeypatch):
    monkeypatch.chdir("/tmp")
    [finding] = say(checkpoints.checkpoints_shared, {}, NODES)
    assert finding.keys == ("run_dir",)


def test_a_checkpoint_of_another_run(say, tmp_path):
    (tmp_path / checkpoints.TRACKER).write_text("40\n")
    settings = {FOLDER: str(tmp_path)}
    assert say(checkpoints.checkpoints_own, settings) == []  # verl looks for the checkpoint, too
    (tmp_path / "global_step_40").mkdir()
    [finding] = say(checkpoints.checkpoints_own, settings)
    assert (finding.severity, finding.fix) == ("warning", f"'{FOLDER}=${{run_dir}}/checkpoints'")
    assert f"trainer.resume_mode=resume_path trainer.resume_from_path={tmp_path}/global_step_40" in finding.message
    for meant in ({"trainer.resume_mode": "resume_path"}, {"trainer.resume_mode": "disable"}, {"launch.resume": True}):
        assert say(checkpoints.checkpoints_own, settings | meant) == []
    assert say(checkpoints.checkpoints_own, {FOLDER: "${run_dir}/checkpoints", "run_dir": str(tmp_path)}) == []

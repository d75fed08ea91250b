"""Rules about logging, saving and resuming."""

import pytest

from opd_conf.checks import trainer

LOGGER = "trainer.logger"
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "VERL_RL_INSIGHT_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.mark.parametrize(
    ("loggers", "unknown", "meant"),
    [("[console,wandbb]", "wandbb", "[console,wandb]"), ("tensorbord", "tensorbord", "[tensorboard]")],
)
def test_loggers_that_verl_lacks(check, loggers, unknown, meant):
    [finding] = [finding for finding in check(f"{LOGGER}={loggers}") if finding.id == "loggers_known"]
    assert f"trainer.logger has {unknown}; verl has console, file" in finding.message
    assert finding.fix == f"'trainer.logger={meant}'"


def test_loggers_that_verl_has(quiet):
    quiet("loggers_known", f"{LOGGER}=[console,file,tensorboard,wandb,swanlab]")


@pytest.mark.parametrize(
    ("settings", "severity"),
    [({}, "error"), ({"action": "check"}, "warning"), ({"cluster.nodes": 2}, "warning"), ({LOGGER: "wandb"}, "error")],
)
def test_wandb_without_a_key(say, settings, severity):
    [finding] = say(trainer.wandb_key_there, {LOGGER: ["console", "wandb"]} | settings)
    assert finding.severity == severity
    assert finding.fix == "export WANDB_API_KEY=…   # or: 'trainer.logger=[console]'"


def test_ways_to_log_in_to_wandb(say, monkeypatch, tmp_path):
    wanted = {LOGGER: ["console", "wandb"]}
    assert say(trainer.wandb_key_there, {}) == []
    for name, value in {"WANDB_API_KEY": "x", "WANDB_MODE": "offline"}.items():
        monkeypatch.setenv(name, value)
        assert say(trainer.wandb_key_there, wanted) == []
        monkeypatch.delenv(name)
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n login user\n password x\n")
    assert say(trainer.wandb_key_there, wanted) == []
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert len(say(trainer.wandb_key_there, wanted)) == 1


def test_a_warm_up_of_no_critic(fires, quiet):
    fires("updates_from_the_start", "trainer.critic_warmup=20", "before step 20", "trainer.critic_warmup=0", "warning")
    quiet("updates_from_the_start", "trainer.critic_warmup=1")


def test_saving_beside_the_steps(fires, quiet):
    key = "actor_rollout_ref.actor.checkpoint.async_save"
    fires("saved_to_resume", f"{key}=true", "is never written", f"{key}=false", "warning")
    quiet("saved_to_resume", f"{key}=true trainer.save_freq=-1")
    quiet("saved_to_resume")


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("null", "FOLDER/global_step_N"),
        ("/runs/a", "FOLDER/global_step_N"),
        ("/runs/global_step_20/", "/runs/global_step_20"),
        ("/runs/global_step_20/actor", "/runs/global_step_20"),
    ],
)
def test_paths_to_resume_from(check, path, fix):
    found = check("trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}")
    assert [finding.fix for finding in found if finding.id == "resume_path"] == [f"trainer.resume_from_path={fix}"]


def test_a_path_to_resume_from(quiet):
    quiet("resume_path", "trainer.resume_mode=resume_path trainer.resume_from_path=/runs/global_step_20")
    quiet("resume_path", "trainer.resume_from_path=/unread")


@pytest.mark.parametrize("mode", ["resume_path", "auto"])
def test_a_checkpoint_of_other_ranks(say, tmp_path, mode):
    folder = tmp_path / "global_step_20"
    (folder / "actor").mkdir(parents=True)
    for rank in range(8):
        (folder / "actor" / f"model_world_size_8_rank_{rank}.pt").touch()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    settings = {
        "trainer.resume_mode": mode,
        "trainer.resume_from_path": str(folder),
        "trainer.default_local_dir": str(tmp_path),
    }
    [finding] = say(trainer.resumed_by_as_many, settings)
    assert f"{folder} was written by 8 ranks, and the student has 4" in finding.message
    assert say(trainer.resumed_by_as_many, settings | {"trainer.n_gpus_per_node": 8}) == []
    assert say(trainer.resumed_by_as_many, settings | {"trainer.resume_mode": "disable"}) == []


def test_monitoring_takes_statistics(fires, quiet):
    key = f"{ROLLOUT}.disable_log_stats"
    fires("statistics_for_monitoring", f"{ROLLOUT}.prometheus.enable=true", "asks the servers", f"{key}=false")
    fires("statistics_for_monitoring", "++platform.env.VERL_RL_INSIGHT_ENABLE=1", "VERL_RL_INSIGHT", f"{key}=false")
    quiet("statistics_for_monitoring", f"{ROLLOUT}.prometheus.enable=true {key}=false")
    quiet("statistics_for_monitoring")

"""However a run ends: the right exit code and status, nothing of it left, and it can go on."""

import signal
import subprocess
import time


def _gone_within(run, seconds: float) -> None:
    until = time.monotonic() + seconds
    while run.left():
        assert time.monotonic() < until, run.left()
        time.sleep(0.1)


def test_a_failing_trainer_gives_its_exit_code_and_its_last_words(start, tmp_path):
    run = start("trainer.v1.trainer_mode=no_such_mode", "checks.ignore=[choice_known]")
    assert run.end() == 1
    assert "no_such_mode" in run.output.read_text()
    assert run.status()["state"] == "failed"
    assert run.status()["trainer_exit_code"] == 1
    _gone_within(run, 0.5)

    again = subprocess.run(
        ["bash", str(run.folder / "command.sh"), str(tmp_path / "again")], capture_output=True, text=True
    )
    assert again.returncode == 1
    assert "no_such_mode" in again.stdout + again.stderr
    assert (tmp_path / "again" / "verl.yaml").is_file()


def test_an_interrupt_reaches_the_trainer_and_is_recorded(start):
    run = start()
    run.wait_for(lambda: "  Ray " in run.output.read_text(), 120)
    run.look()
    run.process.send_signal(signal.SIGINT)
    assert run.end(20) == 130, run.text()
    assert (run.status()["state"], run.status()["signal"]) == ("interrupted", "SIGINT")
    _gone_within(run, 0.5)


def test_a_killed_run_leaves_nothing_and_goes_on_from_its_checkpoint(start):
    """With loss_mode=k1, the other way to learn: a policy gradient."""
    overrides = (
        "loss_mode=k1",
        "actor_rollout_ref.actor.optim.lr=2e-4",
        "actor_rollout_ref.actor.ppo_epochs=1",
        "trainer.total_training_steps=4",
        "trainer.save_freq=1",
        "trainer.val_before_train=false",
    )
    run = start(*overrides)
    tracker = run.folder / "checkpoints" / "latest_checkpointed_iteration.txt"
    run.wait_for(lambda: tracker.exists() and int(tracker.read_text()) >= 2, 400)
    run.look()
    run.process.kill()
    run.process.wait()
    _gone_within(run, 10)
    assert (run.status()["state"], run.status()["signal"]) == ("interrupted", "SIGKILL of opd_conf")
    saved = int(tracker.read_text())

    more = start(*overrides, "launch.resume=true")
    assert more.end() == 0, more.text()
    assert [step.number for step in more.steps()] == list(range(saved + 1, 5))
    assert all(step.loss is not None for step in more.steps())
    assert (more.folder / "attempts" / "1" / "metrics.jsonl").stat().st_size > 0
    assert more.status()["state"] == "finished"
    _gone_within(more, 0.5)

"""The main job: the smoke run learns, and every process of it sees the platform's environment."""

import psutil

from opd_conf import metrics
from opd_conf.phases import ENDS

WINDOW = 3  # steps that are averaged at both ends


def _environment(process: psutil.Process) -> dict[str, str] | None:
    try:
        return process.environ() if process.name().startswith("ray::WorkerDict") else None
    except psutil.Error:
        return None


def test_the_smoke_run_learns(start):
    run = start()
    run.wait_for(lambda: (run.folder / "env.json").exists() and run.status().get("state") == "running", 30)

    def student_worker() -> dict[str, str] | None:
        run.look()
        return next((found for process in run.seen if (found := _environment(process))), None)

    worker = run.wait_for(student_worker, 120)
    expected = run.facts("env.json")
    assert {name: worker.get(name) for name in expected} == expected

    assert run.end() == 0, run.text()
    steps = run.steps()
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    losses = [step.loss for step in steps]
    scores = [step.score for step in steps]
    first, last = metrics.mean(losses[:WINDOW]), metrics.mean(losses[-WINDOW:])
    assert first is not None
    assert last is not None
    assert last < 0.5 * first, losses
    assert metrics.mean(scores[-WINDOW:]) > 2 * metrics.mean(scores[:WINDOW]), scores

    text = run.output.read_text()
    for phase, _ in ENDS:
        assert f"  {phase} " in text, text
    assert "loss (distance to the teacher)" in text
    assert str(run.folder) in text
    assert run.status() | {"time": 0} == {"state": "finished", "trainer_exit_code": 0, "exit_code": 0, "time": 0}
    assert (run.folder / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == str(len(steps))
    assert run.left() == []

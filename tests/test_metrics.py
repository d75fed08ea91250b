"""metrics.jsonl and the summary that is made of it."""

import json

from opd_conf import metrics, status
from opd_conf.metrics import Step
from opd_conf.summary import comparison, tail


def _line(step: int, **values: float) -> str:
    return json.dumps({"step": step, "data": values})


def test_training_steps_are_read_and_validation_lines_are_not(tmp_path):
    lines = [
        _line(0, **{"val-core/openai/gsm8k/acc/mean@1": 0.1}),
        _line(1, **{"perf/time_per_step": 2.0, "actor/distillation/loss": 0.4, "critic/score/mean": 0.25}),
        '{"step": 2, "da',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    (step,) = metrics.read(tmp_path / "metrics.jsonl")
    assert (step.number, step.loss, step.score) == (1, 0.4, 0.25)


def test_no_file_is_no_steps(tmp_path):
    assert metrics.read(tmp_path / "metrics.jsonl") == []


def test_an_estimators_absolute_value_is_the_loss_that_is_shown():
    assert Step(1, {"actor/distillation/abs_loss": 2.0, "actor/distillation/loss": -0.5}).loss == 2.0
    assert Step(1, {"actor/distillation/loss": 0.5, "actor/loss": 0.7}).loss == 0.5
    assert Step(1, {}).loss is None
    assert Step(1, {"actor/loss": None}).loss is None  # NaN, as verl's file logger writes it


def test_a_comparison_is_of_means_over_the_first_and_the_last_steps():
    assert comparison("loss", [4.0, 2.0, 1.0, 1.0], "{:.1f}") == [
        "  loss                             3.0 → 1.0   (mean of 2 steps each)"
    ]
    assert comparison("loss", [4.0], "{:.1f}") == ["  loss                             4.0 → 4.0"]
    assert comparison("loss", [None, None], "{:.1f}") == []


def test_the_tail_shows_the_last_lines(tmp_path):
    (tmp_path / "train.log").write_text("\n".join(map(str, range(100))))
    assert tail(tmp_path / "train.log").splitlines()[-1] == "  99"
    assert len(tail(tmp_path / "train.log").splitlines()) == 16


def test_a_status_is_replaced_whole(tmp_path):
    status.write(tmp_path, "created")
    status.write(tmp_path, "finished", exit_code=0)
    assert status.read(tmp_path)["state"] == "finished"
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
    assert status.read(tmp_path / "nowhere") == {}

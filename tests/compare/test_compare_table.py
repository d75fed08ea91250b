"""One row a run: figures, order, what differs."""

import math

import pytest

from opd_conf.compare import table
from opd_conf.compare.runs import find, read
from opd_conf.errors import UserError


def _rows(runs, by="loss"):
    return table.rows(runs, table.varied(runs), by)


def test_figures_are_means_of_the_last_steps(write, step):
    losses = [9.0, 0.5, 0.4, 0.3, 0.2, 0.1]
    folder = write("a", [step(loss=loss, seconds=2.0) for loss in losses])
    [row] = _rows([read(folder)])
    assert row["loss"] == pytest.approx(0.3)
    assert (row["step"], row["time"], row["speed"], row["memory"], row["response"]) == (6, 12.0, 50.0, 1.5, 8.0)


def test_nan_is_left_out_of_a_mean(write, step):
    folder = write("a", [step(loss=0.2), step(loss=None), step(loss=0.4), step(loss=math.nan)])
    [row] = _rows([read(folder)])
    assert row["loss"] == pytest.approx(0.3)


def test_a_run_of_nan_alone_has_no_figure_and_stands_last(write, step, tmp_path):
    write("a", [step(loss=None, reward=0.9)])
    write("b", [step(loss=0.3)])
    assert [row["run"] for row in _rows(table.ordered(find([tmp_path]), "loss"))] == ["b", "a"]


def test_memory_is_found_where_the_actor_alone_tells_it(write, step):
    values = step()
    values["actor/perf/max_memory_reserved_gb"] = values.pop("perf/max_memory_reserved_gb")
    [row] = _rows([read(write("a", [values]))])
    assert row["memory"] == 1.5


def test_the_last_validation_counts_and_is_a_mean_over_data_sets(write, step):
    scores = {"val-core/gsm8k/acc/mean@1": 0.25, "val-core/math/acc/mean@1": 0.75, "val-core/math/acc/best@4/mean": 1.0}
    folder = write("a", [step(), step(others=scores), *[step()] * 6])
    [row] = _rows([read(folder)])
    assert row["validation"] == 0.5


@pytest.mark.parametrize(
    ("by", "order"), [("loss", "bac"), ("reward", "cab"), ("step", "abc"), ("actor/entropy", "cba"), ("time", "bca")]
)
def test_best_stands_first(write, step, tmp_path, by, order):
    write(
        "a",
        [
            step(loss=0.2, reward=0.5, others={"actor/entropy": 0.3}),
            step(loss=0.2, reward=0.5, others={"actor/entropy": 0.3}),
        ],
    )
    write("b", [step(loss=0.1, reward=0.1, seconds=1.0, others={"actor/entropy": 0.2})])
    write("c", [step(loss=0.3, reward=0.9, seconds=3.0, others={"actor/entropy": 0.1})])
    runs = find([tmp_path])
    assert "".join(run.name for run in table.ordered(runs, by)) == order
    assert by in _rows(runs, by)[0]


def test_an_unknown_metric_is_refused_with_near_names(write, step):
    with pytest.raises(UserError, match="--sort actor/entropy"):
        table.ordered([read(write("a", [step()]))], "actor/entropi")


def test_what_was_typed_differently_makes_the_columns(write, tmp_path):
    same = ["experiment=smoke", "action=train"]
    write("a", overrides=[*same, "loss_mode=k1", "+topk=8", "run_dir=a"])
    write("b", overrides=[*same, "loss_mode=k3", "+topk=16", "run_dir=b"])
    assert table.varied(find([tmp_path])) == {"loss_mode": ["k1", "k3"], "topk": ["8", "16"]}


def test_what_was_not_typed_is_filled_in_from_the_record(write, tmp_path):
    settings = "data: {train_batch_size: 32, shuffle: true}"
    write("a", overrides=[], settings=settings, facts={"own": {"topk": 16}})
    typed = ["data.train_batch_size=64", "data.shuffle=true", "topk=8", "loss_mode=k3"]
    write("b", overrides=typed, settings=settings)
    assert table.varied(find([tmp_path])) == {
        "data.train_batch_size": ["32", "64"],
        "topk": ["16", "8"],
        "loss_mode": ["k1", "k3"],
    }


def test_runs_that_were_typed_alike_differ_by_their_configuration(write, tmp_path):
    write("a", settings="actor: {lr: 1.0, x: 1}")
    write("b", settings="actor: {lr: 2.0, x: 1}")
    assert table.varied(find([tmp_path])) == {"actor.lr": ["1.0", "2.0"]}


def test_labels_name_what_differs(write, tmp_path):
    write("a", overrides=["loss_mode=k1", "actor.optim.lr=1"])
    write("b", overrides=["loss_mode=k3", "actor.optim.lr=1"])
    write("c", overrides=["loss_mode=k3", "actor.optim.lr=2"])
    runs = find([tmp_path])
    assert table.labels(runs, table.varied(runs)) == ["loss_mode=k1, lr=1", "loss_mode=k3, lr=1", "loss_mode=k3, lr=2"]


def test_repeated_runs_are_told_apart_by_name(write, tmp_path):
    for name in ("a", "b"):
        write(name, overrides=["loss_mode=k1"])
    runs = find([tmp_path])
    assert table.labels(runs, table.varied(runs)) == ["a", "b"]


def test_losses_of_different_loss_modes_are_not_what_is_sorted_by(write, step, tmp_path):
    write("a", [step()], overrides=["loss_mode=k1"])
    assert table.usual_sort(find([tmp_path])) == "loss"
    write("b", [step()], overrides=["loss_mode=k3"])
    runs = find([tmp_path])
    assert table.usual_sort(runs) == "reward"
    assert any("different distances" in note for note in table.notes(runs, "reward"))

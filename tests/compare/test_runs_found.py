"""Which runs there are, what is read of them, and how each stands."""

import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from opd_conf.compare.runs import find, read, standing
from opd_conf.errors import UserError


@contextmanager
def _process(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has begun, with these arguments."""
    words = [sys.executable, "-c", "print(1, flush=True); input()", *arguments]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.communicate(b"\n")


HERE = {"host": platform.node()}


@pytest.mark.parametrize("torn", ['{"step": 3, "data": {"actor/distil', "{", "\n", '{"step": 3, "da'])
def test_a_torn_last_line_is_no_step(write, step, torn):
    folder = write("a", [step(), step()], torn=torn)
    assert [found.number for found in read(folder).steps] == [1, 2]


def test_missing_files_are_empty(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.json").touch()  # a folder that was only just claimed
    [run] = find([tmp_path])
    assert (run.name, run.steps, run.settings, run.environment, run.overrides) == ("a", (), {}, {}, [])
    assert standing(run) == "no status"


def test_half_written_files_are_empty(write):
    folder = write("a", settings="trainer: {a: [1,")
    (folder / "status.json").write_text('{"state": "fini')
    (folder / "env.json").write_text("[]")
    run = read(folder)
    assert (run.state, run.settings, run.environment) == ({}, {}, {})


def test_a_step_that_an_attempt_repeats_counts_once(write, step):
    before = [step(loss=0.9), step(loss=0.8), step(loss=0.7)]
    folder = write("a", [step(loss=0.1)], first=3, attempt=(1, before))
    steps = read(folder).steps
    assert [(found.number, found.loss) for found in steps] == [(1, 0.9), (2, 0.8), (3, 0.1)]


def test_steps_after_the_checkpoint_that_an_attempt_goes_on_from_are_not_its(write, step):
    before = [step(loss=0.9), step(loss=0.8), step(loss=0.7)]
    folder = write("a", [step(loss=0.1)], first=2, attempt=(1, before))
    assert [found.number for found in read(folder).steps] == [1, 2]


def test_attempts_and_checkpoints_are_no_runs(write, step, tmp_path):
    write("a", [step()], attempt=(1, [step()]))
    write("checkpoints/b")
    assert [run.name for run in find([tmp_path])] == ["a"]


def test_a_run_is_found_once_and_named_by_what_tells_it_apart(write, tmp_path):
    one, other = write("one/x"), write("other/x")
    runs = find([tmp_path, one, other])
    assert [run.name for run in runs] == ["one/x", "other/x"]


def test_no_folder_and_no_run_are_said(tmp_path):
    with pytest.raises(UserError, match="nowhere is no folder"):
        find([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="No run in"):
        find([tmp_path])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"state": "created"}, "created"),
        ({"state": "finished", "trainer_exit_code": 0}, "finished"),
        ({"state": "failed", "trainer_exit_code": 1}, "failed (exit code 1)"),
        ({"state": "failed", "trainer_exit_code": -9}, "failed (SIGKILL)"),
        ({"state": "failed", "trainer_exit_code": 1, "cause": {"id": "out_of_memory"}}, "failed (out_of_memory)"),
        ({"state": "interrupted", "signal": "SIGTERM", "trainer_exit_code": -15}, "interrupted (SIGTERM)"),
        ({"state": "running", "pid": 2**22 + 1}, "starting"),  # on another host: who knows
        (None, "no status"),
    ],
)
def test_states_are_said_with_their_reason(write, state, said):
    assert standing(read(write("a", state=state))) == said


def test_a_run_with_a_step_runs(write, step):
    assert standing(read(write("a", [step()], state={"state": "running", "pid": 1}))) == "running"


def test_a_run_whose_process_is_gone_is_lost(write, step):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    folder = write("a", [step()], state={"state": "running", "pid": gone.pid}, facts=HERE)
    assert standing(read(folder)) == "lost"


def test_a_run_whose_pid_is_another_process_now_is_lost(write):
    with _process() as other:
        state = {"state": "running", "pid": other.pid}
        assert standing(read(write("a", state=state, facts=HERE))) == "lost"


def test_a_run_whose_guard_lives_is_running(write, step):
    with _process("opd_conf.guard") as guard:
        state = {"state": "running", "pid": guard.pid}
        assert standing(read(write("a", [step()], state=state, facts=HERE))) == "running"


def test_every_cell_of_a_sweep_is_accounted_for(write, step, plan):
    write("loss_mode=k1", [step()])
    errors = [{"id": "loss_k", "severity": "error"}, {"id": "seen", "severity": "warning"}]
    folder = plan(
        {"name": "loss_mode=k1"},
        {"name": "again", "plan": "same", "same_as": 0, "why": "topk has no effect here"},
        {"name": "wrong", "plan": "refused", "findings": errors},
        {"name": "odd", "plan": "refused", "problem": "There is no key x."},
        {"name": "later", "overrides": ["loss_mode=k3"]},
    )
    found = [(run.cell, run.name, standing(run)) for run in find([folder])]
    assert found == [
        (0, "loss_mode=k1", "finished"),
        (1, "again", "as cell 0: topk has no effect here"),
        (2, "wrong", "refused: loss_k"),
        (3, "odd", "refused: does not compose"),
        (4, "later", "waiting"),
    ]


def test_cells_stand_in_the_order_of_their_plan(write, plan):
    for name in ("topk=16", "topk=8"):
        write(name)
    folder = plan({"name": "topk=8"}, {"name": "topk=16"})
    assert [run.name for run in find([folder])] == ["topk=8", "topk=16"]

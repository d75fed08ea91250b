"""Recorded cells on this machine. The trainer is a line of Python; recording, start, guard and queue are real."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opd_conf import status
from opd_conf.compose import compose
from opd_conf.handoff import handoff
from opd_conf.record import make_folder, record
from opd_conf.sweep.queue import Job, Queue, job, run_all, visible_devices

GPU = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")


@pytest.fixture
def cell(tmp_path: Path) -> Callable[..., Job]:
    """A recorded cell whose trainer is this program."""

    def cell(name: str, program: str, *overrides: str) -> Job:
        config = compose([*GPU, f"run_dir={tmp_path / name}", *overrides]).config
        run = handoff(config, make_folder(config, chosen_by_user=True))
        record(run, {"overrides": [], "choices": {}})
        facts = json.loads((run.folder / "run.json").read_text())
        facts["command"] = [sys.executable, "-c", program]
        (run.folder / "run.json").write_text(json.dumps(facts))
        return job(name, run, "gpu")

    return cell


@pytest.fixture(autouse=True)
def _signals_as_before():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_cell_that_fails_stops_no_other_and_the_exit_code_tells(cell, capsys):
    jobs = [cell("bad", "raise SystemExit(3)"), cell("good", "pass")]
    assert run_all(jobs, stop_on_failure=False) == 3
    assert [status.read(job.folder)["state"] for job in jobs] == ["failed", "finished"]
    printed = capsys.readouterr().out
    assert "bad: failed, exit code 3 (1 of 2)" in printed
    assert "good: finished (2 of 2)" in printed


def test_a_failure_ends_the_sweep_when_asked(cell):
    jobs = [cell("bad", "raise SystemExit(3)"), cell("good", "pass")]
    assert run_all(jobs, stop_on_failure=True) == 3
    assert [status.read(job.folder)["state"] for job in jobs] == ["failed", "created"]


def test_a_killed_trainer_is_told(cell):
    killed = cell("killed", "import os; os.kill(os.getpid(), 9)")
    assert run_all([killed], stop_on_failure=False) == 137
    assert status.read(killed.folder)["trainer_exit_code"] == -9


def test_ctrl_c_ends_what_runs_and_starts_nothing_more(cell):
    jobs = [cell("first", "import time; time.sleep(60)"), cell("second", "pass")]
    threading.Thread(target=_interrupt_once_it_runs, args=(jobs[0],)).start()
    begun = time.monotonic()
    assert run_all(jobs, stop_on_failure=False) == 130
    assert time.monotonic() - begun < 30
    assert [status.read(job.folder)["state"] for job in jobs] == ["interrupted", "created"]


def _interrupt_once_it_runs(job: Job) -> None:
    deadline = time.monotonic() + 20
    while status.read(job.folder).get("state") != "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)


def test_cells_run_side_by_side_where_accelerators_are_left(cell, monkeypatch, tmp_path):
    """Eight accelerators, three cells of four: two at once, each with its own four, the third after one of them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    program = (
        "import os, time; t = time.time(); time.sleep(2);"
        "open('{}', 'w').write(f\"{{os.environ['CUDA_VISIBLE_DEVICES']}} {{t}} {{time.time()}}\")"
    )
    half = ("trainer.n_gpus_per_node=2", "distillation.n_gpus_per_node=2")
    jobs = [cell(name, program.format(tmp_path / f"{name}.txt"), *half) for name in "abc"]
    assert [job.accelerators for job in jobs] == [4, 4, 4]
    assert run_all(jobs, stop_on_failure=False) == 0
    seen = {name: (tmp_path / f"{name}.txt").read_text().split() for name in "abc"}
    assert {seen["a"][0], seen["b"][0]} == {"0,1,2,3", "4,5,6,7"}
    begun, ended = ({name: float(seen[name][index]) for name in seen} for index in (1, 2))
    assert max(begun["a"], begun["b"]) < min(ended["a"], ended["b"])
    assert begun["c"] > min(ended["a"], ended["b"])


@pytest.mark.parametrize(
    ("platform", "overrides"),
    [
        ("gpu", ("cluster=2x8",)),  # joins a cluster, and verl takes one run in each
        ("gpu", ("++platform.env.CUDA_VISIBLE_DEVICES=0",)),  # has chosen its devices itself
        ("cpu", ("platform=cpu",)),
    ],
)
def test_cells_that_want_the_machine_for_themselves(tmp_path, platform, overrides):
    config = compose([*GPU, *overrides]).config
    assert job("x", handoff(config, tmp_path / "x"), platform).accelerators is None


def test_a_cell_that_is_larger_than_the_machine_waits_for_it_and_fails_by_itself():
    queue = Queue([Job("x", Path("/x"), "gpu", 16)], ["0", "1"])
    assert queue._room(queue.waiting[0]) == ()


def test_devices_are_those_that_the_shell_shows(monkeypatch):
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4, 5")
    assert visible_devices("npu") == ["4", "5"]
    assert visible_devices("cpu") == []

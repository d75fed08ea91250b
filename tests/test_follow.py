"""What is shown of a run, with a process that writes the lines of a real one, quickly."""

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opd_conf import status

TRAINER = """
import json, pathlib, sys, time
folder = pathlib.Path({folder!r})
lines = pathlib.Path({lines!r}).read_text().splitlines()
with open(folder / "train.log", "a") as log, open(folder / "metrics.jsonl", "a") as metrics:
    for line in lines:
        log.write(line + "\\n"); log.flush(); time.sleep(0.02)
    for n in (1, 2, 3):
        data = {{"perf/time_per_step": 2.0, "perf/total_num_tokens": 500, "critic/score/mean": n / 4}}
        metrics.write(json.dumps({{"step": n, "data": data | {{"actor/distillation/loss": 1 / n}}}}) + "\\n")
        metrics.flush(); time.sleep(0.4)
    log.write("Traceback: the last words\\n")
sys.exit({code})
"""
FOLLOW = """
import subprocess, sys
from pathlib import Path
from opd_conf import compose, follow, handoff
run = handoff.handoff(compose.compose(["experiment=smoke", "run_dir=x"]).config, Path({folder!r}))
sys.exit(follow.follow(subprocess.Popen([sys.executable, "-c", {trainer!r}]), run))
"""


def _program(folder: Path, code: int) -> list[str]:
    lines = str(Path(__file__).parent / "data" / "start_up.log")
    trainer = TRAINER.format(folder=str(folder), lines=lines, code=code)
    return [sys.executable, "-c", FOLLOW.format(folder=str(folder), trainer=trainer)]


def test_plain_lines_tell_phases_steps_and_what_was_learnt(tmp_path):
    done = subprocess.run(_program(tmp_path, 0), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "  teacher " in done.stdout
    assert "step 1/3  loss 1  score 0.25  250 tokens/s" in done.stdout
    assert "step 3/3  loss 0.3333  score 0.75  250 tokens/s" in done.stdout
    assert "about 4 s left" in done.stdout
    assert "25% → 75%" in done.stdout
    assert "try next:" in done.stdout


def test_a_failure_shows_the_last_words_and_returns_the_code(tmp_path):
    done = subprocess.run(_program(tmp_path, 3), capture_output=True, text=True)
    assert done.returncode == 3
    assert "Traceback: the last words" in done.stdout
    assert "try next:" not in done.stdout


def test_a_known_cause_of_a_failure_is_shown_and_kept(tmp_path):
    status.write(tmp_path, "failed", exit_code=1)
    full = TRAINER.replace("Traceback: the last words", "OSError: [Errno 28] No space left on device")
    trainer = full.format(folder=str(tmp_path), lines=os.devnull, code=1)
    program = [sys.executable, "-c", FOLLOW.format(folder=str(tmp_path), trainer=trainer)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert "cause: " in done.stdout
    assert status.read(tmp_path)["cause"]["id"] in done.stdout + "disk_full"
    assert status.read(tmp_path)["state"] == "failed"


def test_a_terminal_gets_a_bar(tmp_path):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        _program(tmp_path, 0), stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
    assert process.wait() == 0
    assert re.search(r"(1/3  loss 1|2/3  loss 0.5) ", shown.decode())  # a busy machine may skip one
    assert "━" in shown.decode()
    assert "first step" in shown.decode()


@pytest.mark.parametrize(("nodes", "per_node", "tp", "servers"), [(1, 4, 4, 1), (1, 4, 1, 4), (2, 8, 8, 2)])
def test_teacher_servers_are_counted_from_the_pool(nodes, per_node, tp, servers):
    from opd_conf.follow import teacher_servers

    inference = {"tensor_model_parallel_size": tp, "data_parallel_size": 1}
    pool = {"nnodes": nodes, "n_gpus_per_node": per_node}
    assert teacher_servers({**pool, "teacher_models": {"teacher_model": {"inference": inference}}}) == servers
    named = {"teacher_model": {}, "a": {"num_replicas": 1}, "b": {"num_replicas": 2}}
    assert teacher_servers({**pool, "teacher_models": named}) == 3


WARNED = """
import json, pathlib, sys, time
folder = pathlib.Path({folder!r})
with open(folder / "metrics.jsonl", "a") as metrics:
    for n in (1, 2, 3):
        data = {{"perf/time_per_step": 2.0, "actor/loss": None if n == 2 else 0.5}}
        metrics.write(json.dumps({{"step": n, "data": data}}) + "\\n")
        metrics.flush(); time.sleep({pause})
sys.exit({code})
"""
FOLLOW_GUARDED = """
import subprocess, sys
from pathlib import Path
from opd_conf import compose, follow, handoff
folder = Path({folder!r})
run = handoff.handoff(compose.compose(["experiment=smoke", "run_dir=x"]).config, folder)
guard = [sys.executable, "-m", "opd_conf.guard", str(folder), str(folder / "tmp"), sys.executable, "-c", {trainer!r}]
sys.exit(follow.follow(subprocess.Popen(guard), run))
"""


@pytest.mark.parametrize(("pause", "code", "state"), [(0.0, 0, "finished"), (2.5, 0, "finished"), (0.3, 3, "failed")])
def test_a_warning_is_said_once_and_kept_beside_the_last_state(tmp_path, pause, code, state):
    status.write(tmp_path, "created")
    trainer = WARNED.format(folder=str(tmp_path), pause=pause, code=code)
    program = [sys.executable, "-c", FOLLOW_GUARDED.format(folder=str(tmp_path), trainer=trainer)]
    running = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    seen = []  # what a reader finds while the run goes on: always whole
    while running.poll() is None:
        seen.append(status.read(tmp_path))
        time.sleep(0.05)
    assert running.stdout is not None
    shown = running.stdout.read()
    assert running.returncode == code
    assert shown.count("warning  step 2: actor/loss not finite") == 1
    assert "  warnings, see above              not_finite (step 2)" in shown
    last = status.read(tmp_path)
    assert (last["state"], last["exit_code"]) == (state, code)
    assert [(warning["id"], warning["step"]) for warning in last["warnings"]] == [("not_finite", 2)]
    assert last["warnings"][0]["try"] in shown
    if pause > 2:
        assert ("running", 1) in {(found["state"], len(found.get("warnings", []))) for found in seen}

"""`python -m opd_conf -m …`, as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opd_conf import status

RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "checks.ignore=[data_files]")
LOSSES = ("loss_mode=k1,forward_kl_topk", "topk=16,64")


@pytest.fixture
def sweep(tmp_path: Path):
    def sweep(*arguments: str) -> "subprocess.CompletedProcess[str]":
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OPD_")}
        command = [sys.executable, "-m", "opd_conf", "-m", *RUN, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120)

    return sweep


def test_a_plan_is_shown_and_leaves_nothing_behind(sweep, tmp_path):
    for how in ("action=check", "sweep.dry_run=true"):
        done = sweep(*LOSSES, how)
        assert done.returncode == 0, done.stderr
        assert "4 cells: 3 run, 1 joined" in done.stderr
        assert "as cell 0: topk has no effect here" in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_cells_are_recorded_in_folders_of_their_own(sweep, tmp_path):
    done = sweep(*LOSSES, "action=dry_run", "hydra.sweep.dir=study")
    assert done.returncode == 0, done.stderr
    cells = {folder.name for folder in (tmp_path / "study").iterdir() if folder.is_dir()}
    assert cells == {"loss_mode=k1,topk=16", "loss_mode=forward_kl_topk,topk=16", "loss_mode=forward_kl_topk,topk=64"}
    locals_ = set()
    for cell in cells:
        text = (tmp_path / "study" / cell / "verl.yaml").read_text()
        locals_ |= {line for line in text.splitlines() if "default_local_dir" in line}
    assert len(locals_) == 3  # checkpoints never meet
    plan = json.loads((tmp_path / "study" / "sweep.json").read_text())
    assert [cell["plan"] for cell in plan["cells"]] == ["run", "same", "run", "run"]
    again = sweep(*LOSSES, "action=dry_run", "hydra.sweep.dir=study")
    assert again.returncode == 2
    assert "a sweep never writes over another" in again.stderr
    assert "type: sweep.resume=true" in again.stderr


def test_a_second_start_goes_on_with_what_has_not_finished(sweep, tmp_path):
    assert sweep(*LOSSES, "action=dry_run", "hydra.sweep.dir=study").returncode == 0
    status.write(tmp_path / "study" / "loss_mode=k1,topk=16", "finished", exit_code=0)
    status.write(tmp_path / "study" / "loss_mode=forward_kl_topk,topk=64", "failed", exit_code=1)
    done = sweep(*LOSSES, "action=dry_run", "hydra.sweep.dir=study", "sweep.resume=true")
    assert done.returncode == 0, done.stderr
    assert "4 cells: 2 run, 1 finished already, 1 joined" in done.stderr
    states = {folder.name: status.read(folder)["state"] for folder in (tmp_path / "study").iterdir() if folder.is_dir()}
    assert states["loss_mode=k1,topk=16"] == "finished"
    assert states["loss_mode=forward_kl_topk,topk=64"] == "created"
    assert (tmp_path / "study" / "loss_mode=forward_kl_topk,topk=64" / "attempts" / "1" / "status.json").exists()
    assert (tmp_path / "study" / "sweep.1.json").exists()


def test_nothing_that_can_run_is_exit_code_2(sweep, tmp_path):
    done = sweep("actor_rollout_ref.actor.strategy=fsdp,fspd2", "action=dry_run")
    assert done.returncode == 2
    assert "2 cells: 0 run, 2 refused" in done.stderr
    assert "type: actor_rollout_ref.actor.strategy=fsdp2" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("on_invalid", "code"), [("drop", 0), ("stop", 2)])
def test_a_refused_cell_is_dropped_or_stops_the_sweep(sweep, tmp_path, on_invalid, code):
    done = sweep(
        "engine=fsdp2,veomni",
        "actor_rollout_ref.actor.veomni.param_offload=true",
        "action=dry_run",
        f"sweep.on_invalid={on_invalid}",
        "hydra.sweep.dir=s",
    )
    assert done.returncode == code, done.stderr
    assert "refused  engine=fsdp2" in done.stderr
    assert (tmp_path / "s" / "engine=veomni").exists() == (code == 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topk=interval(1,2)",), "has no end of values"),
        (("topk=1,2", "action=script"), "A sweep cannot have action=script"),
        (("topk=1,2", "sweep.on_invalid=no"), "sweep.on_invalid is no; it can be drop or stop"),
        (("topk=1,2", "sweep.resume=true", "hydra.sweep.dir=none"), "holds no sweep"),
    ],
)
def test_mistakes(sweep, arguments, said):
    done = sweep(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_hydras_own_sweeper_can_be_chosen(sweep):
    done = sweep("hydra/sweeper=basic", "hydra/launcher=basic", "topk=1,2", "action=check")
    assert done.returncode == 0, done.stderr
    assert "cells:" not in done.stderr


def test_swept_keys_of_a_file(sweep, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study.yaml").write_text(
        "defaults: [opd, _self_]\nhydra: {sweeper: {params: {loss_mode: 'k1,k3'}}}\n"
    )
    done = sweep("--config-dir", "mine", "--config-name", "study", "action=check")
    assert done.returncode == 0, done.stderr
    assert "2 cells: 2 run" in done.stderr

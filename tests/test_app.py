"""The command line, as a user types it; each command in a process and a folder of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NPU = ["platform=npu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b"]


@pytest.fixture
def opd(tmp_path: Path):
    def opd(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OPD_")}
        return subprocess.run(
            [sys.executable, "-m", "opd_conf", *arguments],
            cwd=tmp_path,
            env={**clean, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return opd


def _all_text(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def test_a_dry_run_writes_the_whole_run_folder_and_prints_the_command(opd, tmp_path):
    done = opd(*NPU, "action=dry_run")
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("outputs/*/*")
    assert {path.name for path in folder.iterdir()} == {
        "verl.yaml",
        "env.json",
        "run.json",
        "command.sh",
        "status.json",
    }
    assert f"bash {folder}/command.sh" in done.stdout
    facts = json.loads((folder / "run.json").read_text())
    assert facts["choices"]["student"] == "qwen3_5_2b"
    assert facts["platform_reason"] == "chosen"


def test_a_check_leaves_nothing_behind(opd, tmp_path):
    done = opd(*NPU, "action=check")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_check_with_an_error_ends_with_2_and_says_what_to_type(opd):
    done = opd(*NPU, "action=check", "distillation.teacher_models.teacher_model.inference.tensor_model_parallel_size=3")
    assert done.returncode == 2
    assert "teacher_pool" in done.stdout + done.stderr or "tensor_model_parallel_size" in done.stdout + done.stderr


def test_findings_as_json_are_one_document(opd):
    done = opd(*NPU, "action=check", "checks.report=json", "trainer.n_gpus_per_node=7")
    assert done.returncode == 2
    assert json.loads(done.stdout)["errors"] > 0


def test_an_ignored_rule_is_recorded(opd, tmp_path):
    done = opd(*NPU, "action=dry_run", "checks.ignore=[data_files]")
    assert done.returncode == 0, done.stderr
    (facts,) = tmp_path.glob("outputs/*/*/run.json")
    assert json.loads(facts.read_text())["checks_ignored"] == ["data_files"]


def test_a_script_is_one_that_bash_accepts_and_leaves_no_folder(opd, tmp_path):
    done = opd(*NPU, "action=script")
    assert done.returncode == 0, done.stderr
    assert "export HCCL_BUFFSIZE=610" in done.stdout
    subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)
    assert list(tmp_path.iterdir()) == []


def test_training_on_a_platform_that_is_not_here_is_refused_without_a_folder(opd, tmp_path):
    done = opd(*NPU, "checks.ignore=[data_files]")
    assert done.returncode == 2
    assert "platform=npu cannot train here" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_platform_found_or_given_says_what_to_type(opd):
    done = opd(*NPU[1:], "action=check")
    assert done.returncode == 2
    assert "platform=gpu, platform=npu, or platform=cpu" in done.stderr


def test_opd_platform_is_recorded_as_an_override_with_its_reason(opd, tmp_path):
    assert opd(*NPU[1:], "action=dry_run", OPD_PLATFORM="npu").returncode == 0
    (path,) = tmp_path.glob("outputs/*/*/run.json")
    facts = json.loads(path.read_text())
    assert "platform=npu" in facts["overrides"]
    assert facts["platform_reason"] == "OPD_PLATFORM is set"


def test_an_experiment_may_choose_the_platform(opd, tmp_path):
    done = opd("experiment=smoke", "action=check", "checks.ignore=[data_files]")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments", [[*NPU, "distillation.topk=3"], ["platform=tpu"], ["student=nobody", "platform=gpu"]]
)
def test_a_mistake_is_a_message_and_no_traceback(opd, arguments):
    done = opd(*arguments)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_a_secret_is_in_no_file_and_on_no_screen(opd, tmp_path):
    secret = "s3cr3t-value"
    done = opd(*NPU, "action=dry_run", f"+platform.env.WANDB_API_KEY={secret}", HF_TOKEN=secret)
    assert done.returncode == 0, done.stderr
    assert secret not in done.stdout + done.stderr + _all_text(tmp_path)
    assert "+platform.env.WANDB_API_KEY=***" in _all_text(tmp_path)


def test_a_proxys_password_is_not_recorded(opd, tmp_path):
    assert (
        opd(*NPU, "action=dry_run", https_proxy="http://me:s3cr3t@proxy:1", http_proxy="http://open:1").returncode == 0
    )
    assert "s3cr3t" not in _all_text(tmp_path)
    assert "http://open:1" in _all_text(tmp_path)


def test_a_secret_is_not_recorded_by_a_sweep_either(opd, tmp_path):
    secret = "s3cr3t-value"
    done = opd("-m", *NPU, "action=check", "topk=16,64", f"+platform.env.WANDB_API_KEY={secret}")
    assert done.returncode == 0, done.stderr
    assert secret not in done.stdout + done.stderr + _all_text(tmp_path)


def test_a_sweep_with_a_refused_cell_is_no_good_check(opd):
    assert opd("-m", *NPU, "action=check", "loss_mode=k1,forward_kl_topk", "topk=16,64").returncode == 0
    assert opd("-m", *NPU, "action=check", "trainer.n_gpus_per_node=4,7").returncode == 2


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--foo", "Unrecognized arguments: --foo."),
        ("--cfg", "Argument --cfg/-c: expected one argument."),
        ("--config-dir=/nowhere", "/nowhere"),
    ],
)
def test_a_flag_that_cannot_be_used(opd, flag, message):
    done = opd(*NPU, "action=check", flag)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_hydras_own_flags_work(opd):
    assert "teacher_models" in opd(*NPU, "--cfg", "job").stdout
    assert opd("--help").returncode == 0


def test_the_help_names_the_groups_and_a_command(opd):
    text = opd("--help").stdout
    assert "python -m opd_conf platform=npu student=qwen3_5_2b teacher=qwen3_5_35b_a3b" in text
    assert "loss_mode" in text

"""The wheel made from the source distribution works by itself: a new environment, an empty folder, no torch."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DRY_RUN = ["platform=npu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "action=dry_run"]


def _uv(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "uv", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, as an index would."""
    folder = tmp_path_factory.mktemp("dist")
    _uv("build", "--quiet", "--out-dir", str(folder), str(ROOT))
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment with the base install and verl's files, as docs say for a laptop."""
    environment = tmp_path_factory.mktemp("base") / "venv"
    _uv("venv", "--quiet", "--python", sys.executable, str(environment))
    python = str(environment / "bin" / "python")
    _uv("pip", "install", "--quiet", "--compile-bytecode", "--python", python, str(wheel))
    _uv("pip", "install", "--quiet", "--compile-bytecode", "--python", python, "--no-deps", "verl==0.9.1")
    return environment / "bin"


def test_the_wheel_holds_every_configuration_file(wheel):
    there = {
        name.removeprefix("opd_conf/conf/") for name in zipfile.ZipFile(wheel).namelist() if "opd_conf/conf/" in name
    }
    tracked = {
        str(path.relative_to(ROOT / "conf")) for path in (ROOT / "conf").rglob("*.yaml") if "local" not in path.parts
    }
    assert there == tracked


def test_the_base_install_has_no_torch(installed):
    done = subprocess.run([installed / "python", "-c", "import torch"], capture_output=True, text=True)
    assert "No module named 'torch'" in done.stderr


def test_an_installed_wheel_plans_a_run_from_an_empty_folder(installed, tmp_path):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OPD_", "PYTHON"))}
    done = subprocess.run([installed / "opd-conf", *DRY_RUN], cwd=tmp_path, capture_output=True, text=True, env=clean)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("outputs/*/*")
    assert json.loads((folder / "run.json").read_text())["versions"].keys() & {"verl", "torch"} == {"verl"}
    assert len(list(folder.iterdir())) == 5


def test_without_verl_the_message_says_how_to_get_it(wheel, tmp_path):
    environment = tmp_path / "venv"
    _uv("venv", "--quiet", "--python", sys.executable, str(environment))
    _uv("pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), str(wheel))
    done = subprocess.run([environment / "bin" / "opd-conf", *DRY_RUN], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "verl is not installed" in done.stderr
    assert "pip install --no-deps verl==0.9.1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("extra", ["gpu", "sglang"])
def test_an_extra_resolves_for_a_machine_with_gpus(extra):
    platform = ["--python-platform", "x86_64-manylinux_2_39", "--python-version", "3.12"]
    _uv("pip", "compile", "--quiet", "--no-sources", *platform, "--extra", extra, str(ROOT / "pyproject.toml"))

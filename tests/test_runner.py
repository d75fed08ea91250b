"""Which Python runs the trainer; with a real uv project that has the extras."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opd_conf import runner
from opd_conf.compose import compose
from opd_conf.errors import UserError

PROJECT = """
[project]
name = "verl"
version = "0.9.1"
requires-python = ">=3.10"
[project.optional-dependencies]
{extras}
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a project named verl with these extras, locked by uv, each with a package of its own."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.delenv("VERL_USE_UV", raising=False)

    def make(*extras: str) -> Path:
        for extra in extras:
            package = tmp_path / "packages" / extra
            package.mkdir(parents=True)
            (package / "pyproject.toml").write_text(f'[project]\nname = "only-{extra}"\nversion = "1"\n')
        lines = [f'{extra} = ["only-{extra}"]' for extra in extras]
        sources = ["[tool.uv.sources]", *(f'only-{extra} = {{path = "packages/{extra}"}}' for extra in extras)]
        text = PROJECT.format(extras="\n".join(lines)) + "\n".join(sources)
        (tmp_path / "pyproject.toml").write_text(text)
        subprocess.run(["uv", "lock", "--quiet", "--offline", "--python", sys.executable], cwd=tmp_path, check=True)
        return tmp_path

    return make


def _choose(*overrides: str, platform: str = "gpu") -> runner.Runner:
    return runner.choose(
        compose([f"platform={platform}", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", *overrides]).config
    )


def test_without_a_checkout_this_python_runs_it():
    chosen = _choose()
    assert chosen.python == (sys.executable,)
    assert chosen.py_executable is None
    assert chosen.reason == "this Python: no verl checkout (launch.verl_root)"


def test_a_locked_checkout_with_both_extras_runs_through_uv(checkout):
    root = checkout("vllm", "fsdp")
    chosen = _choose(f"launch.verl_root={root}")
    expected = f"uv run --frozen --all-packages --project {root} --extra vllm --extra fsdp"
    assert " ".join(chosen.python) == f"{expected} python"
    assert chosen.py_executable == expected
    assert chosen.environment == {"UV_COMPILE_BYTECODE": "1"}
    assert "has the extras vllm and fsdp" in chosen.reason


def test_the_rollout_decides_the_extra(checkout):
    root = checkout("vllm", "fsdp")
    assert "lacks the extra sglang" in _choose(f"launch.verl_root={root}", "rollout=sglang").reason


def test_an_npu_never_runs_through_uv(checkout):
    root = checkout("vllm", "fsdp")
    chosen = _choose(f"launch.verl_root={root}", platform="npu")
    assert (chosen.python, chosen.py_executable) == ((sys.executable,), None)


def test_verl_use_uv_0_declines(checkout, monkeypatch):
    monkeypatch.setenv("VERL_USE_UV", "0")
    assert _choose(f"launch.verl_root={checkout('vllm', 'fsdp')}").reason == "this Python: VERL_USE_UV=0"


def test_no_uv_no_lock_and_runner_python_are_reasons(checkout, monkeypatch, tmp_path):
    root = checkout("vllm", "fsdp")
    assert _choose(f"launch.verl_root={root}", "launch.runner=python").reason == "this Python: launch.runner=python"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert shutil.which("uv") is None
    assert "no uv on PATH" in _choose(f"launch.verl_root={root}").reason


def test_asking_for_uv_in_vain_is_an_error():
    with pytest.raises(UserError, match="no verl checkout"):
        _choose("launch.runner=uv")

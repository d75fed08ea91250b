"""Rules about installed packages: versions, combinations, bytecode."""

import shlex
import sys

import pytest

from opd_conf.checks import packages

GPU = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
NPU = ("platform=npu", *GPU[1:])
TEXT = ("platform=gpu", "student=qwen2_5_0_5b", "teacher=qwen2_5_3b_instruct", "data=gsm8k")
RULES = [packages.packages_for_verl, packages.packages_together, packages.transformers_knows_model]
GOOD = {
    "torch": "2.11.0",
    "TransferQueue": "0.1.11",
    "tensordict": "0.10.0",
    "transformers": "5.9.0",
    "numpy": "2.3.5",
    "veomni": "0.1.12",
    "vllm": "0.24.0",
}


@pytest.fixture
def install(monkeypatch):
    """Makes these the installed packages; None takes one away."""

    def made(**changed: str | None) -> None:
        names = GOOD | {name.replace("_", "-"): version for name, version in changed.items()}
        monkeypatch.setattr(packages, "installed", names.get)

    made()
    return made


@pytest.mark.parametrize(
    ("package", "version", "severity", "message", "fix"),
    [
        ("TransferQueue", None, "error", "TransferQueue is not installed: verl's wheel forgets it", "0.1.11"),
        ("TransferQueue", "0.1.8", "error", "TransferQueue 0.1.8", "0.1.11"),
        ("tensordict", "0.11.0", "error", "tensordict 0.11.0: others fail an assertion", "0.10.0"),
        ("transformers", "5.6.0", "warning", "transformers 5.6.0", "5.9.0"),
        ("transformers", "5.11.0", "warning", "transformers 5.11.0", "5.9.0"),
        ("numpy", "1.26.4", "warning", "numpy 1.26.4", "2.3.5"),
    ],
)
def test_versions_that_verl_refuses(install, package, version, severity, message, fix, say):
    install(**{package: version})
    [finding] = say(packages.packages_for_verl, {})
    assert (finding.severity, finding.fix) == (severity, f"pip install {package}=={fix}")
    assert message in finding.message
    [finding] = say(packages.packages_for_verl, {"action": "check"})
    assert finding.severity == "warning"


@pytest.mark.parametrize("version", ["5.5.3", "5.5.4", "5.10.4"])
def test_versions_that_verl_takes(install, version, say):
    install(transformers=version)
    assert say(packages.packages_for_verl, {}) == []


def test_a_python_that_only_plans(install, say):
    install(torch=None, TransferQueue=None, tensordict="0.1")
    assert say(packages.packages_for_verl, {}) == []


def test_the_packages_of_uv_are_not_here(install, monkeypatch, say):
    install(TransferQueue=None, transformers="5.1.0")
    monkeypatch.setattr(packages, "_runs_here", lambda run: False)
    assert [finding for rule in RULES for finding in say(rule, {}) if finding.severity != "note"] == []


VEOMNI = (*TEXT, "engine=veomni")


def test_veomni_with_transformers(install, one, say):
    install(veomni="0.1.11")
    severity, message, fix = one(packages.packages_together, {}, VEOMNI)
    assert (severity, fix) == ("error", "pip install --no-deps veomni==0.1.12")
    assert "veomni 0.1.11 with transformers 5.9.0 fails at the first forward" in message
    assert say(packages.packages_together, {}, TEXT) == []
    install(veomni="0.1.11", transformers="5.8.1")
    assert say(packages.packages_together, {}, VEOMNI) == []
    install(veomni="0.1.12")
    assert say(packages.packages_together, {}, VEOMNI) == []


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({"torch_npu": "2.9.0.post1"}, "torch-npu 2.9.0.post1 is made for torch 2.9.0, and 2.11.0 is installed"),
        ({"torch_npu": "2.11.0", "vllm_ascend": "0.23.0"}, "vllm-ascend 0.23.0 is made for vllm 0.23.0, and 0.24.0"),
    ],
)
def test_packages_of_npus(install, versions, message, one, say):
    install(**versions)
    severity, said, _ = one(packages.packages_together, {}, NPU)
    assert severity == "warning"
    assert message in said
    assert say(packages.packages_together, {}, GPU) == []


def test_packages_of_npus_that_fit(install, say):
    install(torch="2.10.0+cpu", torch_npu="2.10.0.post4", vllm="0.23.0+empty", vllm_ascend="0.23.0")
    assert say(packages.packages_together, {}, NPU) == []


def test_transformers_without_qwen3_5(install, say):
    install(transformers="5.1.0", torch=None)
    [finding] = say(packages.transformers_knows_model, {})
    assert finding.severity == "warning"
    assert "transformers 5.1.0 is installed, and Qwen/Qwen3.5-2B is of type qwen3_5" in finding.message
    assert say(packages.transformers_knows_model, {}, TEXT) == []
    install(transformers=None)
    assert say(packages.transformers_knows_model, {}) == []


def test_packages_without_bytecode(install, monkeypatch, tmp_path, say):
    for package, module in packages.BYTECODE.items():
        (tmp_path / package / module).parent.mkdir(parents=True)
        (tmp_path / package / module).touch()
    monkeypatch.setattr(packages, "package_folder", lambda package: tmp_path / package)
    [finding] = say(packages.bytecode_there, {})
    assert finding.severity == "warning"
    assert "Without compiled bytecode: verl, vllm." in finding.message
    assert shlex.split(finding.fix) == [
        sys.executable,
        "-m",
        "compileall",
        "-q",
        f"{tmp_path}/verl",
        f"{tmp_path}/vllm",
    ]
    import compileall

    assert compileall.compile_dir(tmp_path / "verl", quiet=2)
    [finding] = say(packages.bytecode_there, {})
    assert "Without compiled bytecode: vllm." in finding.message
    assert compileall.compile_dir(tmp_path / "vllm", quiet=2)
    assert say(packages.bytecode_there, {}) == []


def test_a_platform_that_verl_would_guess(install, say):
    left_out = {"platform.env.VERL_PLATFORM": None}
    assert say(packages.platform_named, left_out) == []
    install(torch_npu="2.10.0")
    [finding] = say(packages.platform_named, left_out)
    assert (finding.severity, finding.fix) == ("warning", "platform.env.VERL_PLATFORM=nvidia")
    assert "torch_npu 2.10.0 is installed" in finding.message
    assert say(packages.platform_named, {}) == []
    assert say(packages.platform_named, left_out, NPU) == []

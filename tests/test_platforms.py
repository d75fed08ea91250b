"""Detection from device nodes (a folder that stands for /dev), and the environment block."""

from pathlib import Path

import pytest

from opd_conf import platforms
from opd_conf.compose import compose
from opd_conf.errors import UserError

RUN = ["student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b"]


def _dev(tmp_path: Path, *nodes: str) -> Path:
    for node in nodes:
        (tmp_path / node).touch()
    return tmp_path


def test_one_kind_of_device_is_the_platform(tmp_path, monkeypatch):
    monkeypatch.delenv("OPD_PLATFORM", raising=False)
    dev = _dev(tmp_path, "davinci0", "davinci1", "davinci_manager", "hisi_hdc")
    assert platforms.detect(dev) == ("npu", f"found {dev}/davinci0 and 1 more")


def test_control_nodes_are_no_devices(tmp_path):
    assert platforms.device_nodes(_dev(tmp_path, "nvidia0", "nvidiactl", "nvidia-uvm")) == {
        "gpu": [f"{tmp_path}/nvidia0"]
    }


def test_no_device_says_what_was_looked_for_and_what_to_type(tmp_path, monkeypatch):
    monkeypatch.delenv("OPD_PLATFORM", raising=False)
    with pytest.raises(UserError, match=r"(?s)no .*/davinci\*, no .*/nvidia\*.*platform=cpu"):
        platforms.detect(_dev(tmp_path, "nvidiactl", "davinci_manager"))


def test_two_kinds_are_ambiguous_and_both_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("OPD_PLATFORM", raising=False)
    with pytest.raises(UserError, match=r"(?s)davinci0 \(npu\).*nvidia0 \(gpu\).*platform=gpu, platform=npu"):
        platforms.detect(_dev(tmp_path, "davinci0", "nvidia0"))


def test_opd_platform_wins_over_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("OPD_PLATFORM", "cpu")
    assert platforms.detect(_dev(tmp_path, "nvidia0")) == ("cpu", "OPD_PLATFORM is set")


def test_training_needs_the_device_and_cpu_needs_none(tmp_path):
    with pytest.raises(UserError, match="action=check, dry_run and script work"):
        platforms.require_device("npu", tmp_path)
    platforms.require_device("cpu", tmp_path)
    platforms.require_device("npu", _dev(tmp_path, "davinci0"))


def _block(*overrides: str) -> dict[str, str]:
    return platforms.environment(compose(["platform=npu", *RUN, *overrides]).config)


def test_the_shells_value_wins_over_the_file_and_an_override_over_both(monkeypatch):
    monkeypatch.delenv("HCCL_BUFFSIZE", raising=False)
    assert _block()["HCCL_BUFFSIZE"] == "610"
    monkeypatch.setenv("HCCL_BUFFSIZE", "300")
    assert _block()["HCCL_BUFFSIZE"] == "300"
    assert _block("platform.env.HCCL_BUFFSIZE=400")["HCCL_BUFFSIZE"] == "400"


def test_null_removes_a_name_and_a_name_without_a_value_is_left_out(monkeypatch):
    monkeypatch.setenv("HCCL_BUFFSIZE", "300")
    monkeypatch.delenv("HCCL_SOCKET_IFNAME", raising=False)
    block = _block("platform.env.HCCL_BUFFSIZE=null")
    assert "HCCL_BUFFSIZE" not in block
    assert "HCCL_SOCKET_IFNAME" not in block


def test_names_of_the_shell_that_no_file_lists_stay_out(monkeypatch):
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert "SOMETHING_ELSE" not in _block()
    assert _block("+platform.env.SOMETHING_ELSE=2")["SOMETHING_ELSE"] == "2"


def test_values_are_strings_whatever_was_typed():
    block = _block("+platform.env.A=1", "+platform.env.B=true", "+platform.env.C=1e-6")
    assert (block["A"], block["B"]) == ("1", "true")
    assert all(isinstance(value, str) for value in block.values())

"""The program that asks a cluster, and where a cluster is looked for."""

import functools
import platform

import pytest
from ray._private.utils import check_version_info

from opd_conf import live, nodes
from opd_conf.checks import environment

NPU = ("platform=npu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")


def test_versions_in_ray_s_own_words():
    with pytest.raises(RuntimeError) as raised:
        check_version_info({"ray_version": "2.9.3", "python_version": "3.10.12"}, "10.0.0.7:6379")
    found = nodes._version_mismatch(str(raised.value))
    assert found["cluster"] == ["2.9.3", "3.10.12"]
    assert found["here"][1] == platform.python_version()
    assert nodes._version_mismatch("Could not connect") is None


@pytest.fixture
def npu_machine(tmp_path):
    """A machine with NPUs: /dev, an npu-smi that knows board 1, CANN; and the environment that shows them."""
    (tmp_path / "davinci0").touch()
    smi = tmp_path / "npu-smi"
    smi.write_text('#!/bin/sh\n[ "$5" = 1 ] && echo "Software Version : 25.5.0"\n')
    smi.chmod(0o755)
    cann = tmp_path / "cann" / f"{platform.machine()}-linux" / "ascend_toolkit_install.info"
    cann.parent.mkdir(parents=True)
    cann.write_text("package=x\nversion=9.0.0\n")
    return tmp_path, {"PATH": f"{tmp_path}:/usr/bin:/bin", "ASCEND_HOME_PATH": str(tmp_path / "cann")}, smi, cann


def test_what_verl_reads_of_an_npu(npu_machine):
    dev, environment, smi, cann = npu_machine

    def told(**changed: str) -> str | None:
        return nodes.probe([], {}, environment | changed, str(dev))["npu"]

    assert told() == ""
    assert "ascend_toolkit_install.info cannot be read" in told(ASCEND_HOME_PATH="/nowhere")
    cann.write_text("package=x\n")
    assert "names no version" in told()
    cann.write_text("version=9.0.0\n")
    smi.write_text('#!/bin/sh\n[ "$5" = 6 ] && echo "Software Version : 25.5.0"\n')
    assert told() == "`npu-smi info -t board -i 1` fails (ASCEND_VISIBLE_DEVICES unset)"
    assert told(ASCEND_VISIBLE_DEVICES="6,7") == ""
    assert told(ASCEND_VISIBLE_DEVICES="12,13") == ""  # a die; its card is half of that
    assert nodes.probe([], {}, environment, "/nowhere")["npu"] is None


def test_npus_of_this_machine(npu_machine, say, monkeypatch):
    dev, variables, smi, _ = npu_machine
    monkeypatch.setattr(nodes, "probe", functools.partial(nodes.probe, dev=str(dev)))
    block = {f"platform.env.{name}": value for name, value in variables.items()}
    assert say(environment.npu_versions_readable, block, NPU) == []
    smi.unlink()
    [finding] = say(environment.npu_versions_readable, block, NPU)
    assert "`npu-smi info -t board -i 1` fails" in finding.message
    assert say(environment.npu_versions_readable, block | {"action": "script"}, NPU) == []


def test_packages_and_bytecode(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fresh").mkdir()
    for name in ("__init__.py", "module.py"):
        (tmp_path / "fresh" / name).touch()
    found = nodes.probe(["pytest", "no-such"], {"fresh": "module.py", "absent": "x.py"}, {})
    assert found["versions"] == {"pytest": pytest.__version__, "no-such": None}
    assert found["uncompiled"] == [str(tmp_path / "fresh")]


@pytest.mark.parametrize(
    ("address", "variables", "recorded", "running", "found"),
    [
        ("local", {"RAY_ADDRESS": "h:1"}, "r:2", ("n:3",), None),
        ("h:1", {"RAY_ADDRESS": "x:9"}, "r:2", ("n:3",), "h:1"),
        ("auto", {"RAY_ADDRESS": "h:1"}, "r:2", ("n:3",), "h:1"),
        ("auto", {}, "r:2", ("n:3",), "n:3"),
        ("auto", {}, "r:2", ("n:3", "n:4"), "r:2"),
        ("auto", {}, "r:2", (), "r:2"),
        ("auto", {}, "", (), ""),
        (None, {}, "", ("n:3",), None),
        (None, {}, "r:2", (), "r:2"),
        (None, {"RAY_ADDRESS": "local"}, "r:2", (), None),
    ],
)
def test_where_ray_looks_for_a_cluster(tmp_path, address, variables, recorded, running, found):
    (tmp_path / "ray").mkdir()
    if recorded:
        (tmp_path / "ray" / "ray_current_cluster").write_text(recorded)
    for number, gcs in enumerate(running):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_text(f"/x/raylet\0--a=b\0--gcs-address={gcs}\0")
    known = {"RAY_TMPDIR": str(tmp_path), **variables}
    assert live.locate(address, known.get, tmp_path) == found

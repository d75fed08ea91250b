"""`opd-compare` as it is typed: what it prints and writes, and its exit code."""

import csv
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from opd_conf.compare.__main__ import main

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"
COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.S)
    for line in block.splitlines()
    if line.startswith("opd-compare")
]


@pytest.fixture
def type_(capsys):
    """Types a command's arguments; its exit code, what it printed, and what it said on the side."""

    def run(*words):
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def sweep(write, step, plan):
    write("loss_mode=k1", [step(loss=0.5, reward=0.25)], overrides=["loss_mode=k1"])
    write("loss_mode=k3", [step(loss=0.25, reward=0.75)], overrides=["loss_mode=k3"])
    return plan(
        {"name": "loss_mode=k1", "overrides": ["loss_mode=k1"]},
        {"name": "loss_mode=k3", "overrides": ["loss_mode=k3"]},
        {"name": "loss_mode=k4", "overrides": ["loss_mode=k4"], "plan": "refused", "problem": "no"},
    )


def test_the_table_has_every_cell_best_first(type_, sweep):
    code, out, _ = type_(sweep)
    rows = [line.split() for line in out.splitlines() if re.match(r"\s+\d", line)]
    assert code == 0
    assert [row[0] for row in rows] == ["1", "0", "2"]
    assert rows[0][:3] == ["1", "finished", "k3"]
    assert "refused: does not compose" in out


def test_json_and_csv_hold_the_same_rows(type_, sweep):
    _, as_json, _ = type_(sweep, "--json", "-")
    _, as_csv, _ = type_(sweep, "--csv", "-")
    found, plain = json.loads(as_json), list(csv.DictReader(io.StringIO(as_csv)))
    assert [row["loss"] for row in found] == [0.25, 0.5, None]
    assert [{key: "" if value is None else str(value) for key, value in row.items()} for row in found] == plain


def test_files_are_not_written_over(type_, sweep, tmp_path):
    (tmp_path / "there.csv").write_text("mine")
    code, _, said = type_(sweep, "--csv", tmp_path / "there.csv")
    assert (code, (tmp_path / "there.csv").read_text()) == (2, "mine")
    assert "is there already" in said


def test_align_tells_by_its_exit_code(type_, sweep):
    one, other = sweep / "loss_mode=k1", sweep / "loss_mode=k3"
    assert type_("--align", one, one)[0] == 0
    code, out, _ = type_("--align", one, other)
    assert code == 1
    assert "2 beyond 0.01 of the larger value" in out
    assert type_("--align", one, other, "--tolerance", "0.7")[0] == 0
    assert type_("--align", one, sweep)[0] == 2


def test_diff_says_why_runs_differ(type_, write):
    one = write("a", settings="actor: {lr: 1}")
    other = write("b", settings="actor: {lr: 2}")
    code, out, _ = type_("--diff", one, other)
    assert code == 0
    assert re.search(r"configuration\s+actor\.lr\s+1\s+2", out)
    assert "1 difference\n" in out


@pytest.mark.parametrize("words", [[], ["nowhere"], ["--sort", "no/such"]])
def test_a_mistake_ends_with_2_and_a_message(type_, sweep, words):
    code, _, said = type_(*([*words, sweep] if words[:1] == ["--sort"] else words))
    assert code == 2
    assert said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_works(type_, write, step, tmp_path, monkeypatch, command):
    settings = "actor: {{lr: {lr}}}"
    for name, lr in (("sweep/topk=8", 1), ("sweep/topk=16", 2), ("gpu", 1), ("npu", 1)):
        write(name, [step()], overrides=[f"topk={lr}"], settings=settings.format(lr=lr))
    monkeypatch.chdir(tmp_path)
    assert type_(*shlex.split(command)[1:])[0] == 0


def test_the_page_has_commands():
    assert len(COMMANDS) > 5

"""What the documents say: commands run, links lead somewhere, tables name what is there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from opd_conf import platforms
from opd_conf.compose import compose, conf_folder
from opd_conf.record import ATTEMPT_FILES
from opd_conf.usage import USAGE

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def _commands() -> list[str]:
    blocks = [block for page in PAGES for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.S)]
    lines = [line for block in [*blocks, USAGE] for line in block.splitlines()]
    found = [re.split(r"\s{2,}|\s+#", line)[0] for line in lines if line.startswith("python -m opd_conf ")]
    return sorted({command for command in found if "…" not in command})


@pytest.mark.parametrize("command", _commands())
def test_a_documented_command_passes_the_checks(command, tmp_path):
    words = [sys.executable, *shlex.split(command)[1:]]
    if not any(word.startswith("--") for word in words):
        words += ["action=check"] + (
            [] if "platform=" in command or "experiment=smoke" in command else ["platform=gpu"]
        )
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)}
    )
    missing_data_only = "data_files" in done.stdout and "error" not in done.stdout
    assert done.returncode == 0 or missing_data_only, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_readmes_table_names_every_option():
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", (ROOT / "README.md").read_text(), re.M)
    said = {
        group: set(re.findall(r"`(\w+)`", cell))
        for group, cell in rows
        if group in {p.name for p in conf_folder().iterdir()}
    }
    there = {
        folder.name: {path.stem for path in folder.glob("[!_]*.yaml")}
        for folder in conf_folder().iterdir()
        if folder.is_dir() and folder.name != "local"
    }
    assert said == there


def test_the_page_of_the_run_folder_names_every_file():
    text = (ROOT / "docs" / "runs.md").read_text()
    assert [name for name in ATTEMPT_FILES if f"`{name}`" not in text] == []


def test_the_npu_page_gives_the_values_that_are_set():
    text = (ROOT / "docs" / "npu.md").read_text()
    config = compose(["platform=npu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b"]).config
    said = dict(re.findall(r"^\| `(\w+)` \| ([^|,]+?)(?:, \*script\*)? \|", text, re.M))
    assert said == {name: value for name, value in platforms.environment(config).items() if name in said}
    assert len(said) == 10


def test_the_page_of_rules_is_made_from_the_rules():
    done = subprocess.run([sys.executable, "-m", "opd_conf.checks"], capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "rules.md").read_text() == done.stdout

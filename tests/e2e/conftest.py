"""Real runs on this machine's CPU: verl, Ray, FSDP2 or VeOmni, and vLLM. One at a time; each starts for two minutes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from opd_conf import metrics, status
from opd_conf.metrics import Step


@dataclass
class Started:
    """A command under way. `process` is opd_conf itself, what it prints goes to `output`."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    output: Path
    seen: set[psutil.Process]

    def wait_for(self, condition: Callable[[], Any], seconds: float) -> Any:
        """Waits until the condition is true, noting the run's processes meanwhile; fails when the run ends before."""
        until = time.monotonic() + seconds
        while not (value := condition()):
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < until, f"not within {seconds} s:\n{self.text()}"
            self.look()
            time.sleep(0.5)
        return value

    def end(self, seconds: float = 600) -> int:
        """Waits for the end, noting the run's processes meanwhile; the exit code."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < until, f"not within {seconds} s:\n{self.text()}"
            self.look()
            time.sleep(0.5)
        return self.process.returncode

    def look(self) -> None:
        if self.process.poll() is None:
            self.seen |= set(psutil.Process(self.process.pid).children(recursive=True))

    def left(self) -> list[psutil.Process]:
        """Processes of the run that are still there."""
        return [p for p in self.seen if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def text(self) -> str:
        log = self.folder / "train.log"
        return self.output.read_text() + (log.read_text(errors="replace")[-4000:] if log.exists() else "")

    def status(self) -> dict[str, Any]:
        return status.read(self.folder)

    def steps(self) -> list[Step]:
        return metrics.read(self.folder / "metrics.jsonl")

    def facts(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())


@pytest.fixture(scope="session")
def sums() -> None:
    """The tiny task and models, made once and kept in the cache folder."""
    subprocess.run([sys.executable, "-m", "opd_conf.cpu.sums"], check=True)


@pytest.fixture
def start(sums: None, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts `python -m opd_conf experiment=smoke …` in a folder of its own, with a temporary folder of its own."""
    started: list[Started] = []
    temporary = Path(f"/tmp/e2e_{os.getpid()}")
    temporary.mkdir(exist_ok=True)

    def start(*overrides: str, name: str = "run") -> Started:
        output = tmp_path / f"output_{len(started)}"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "opd_conf", "experiment=smoke", f"run_dir={tmp_path / name}", *overrides],
                cwd=tmp_path,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(temporary)},
            )
        started.append(Started(process, tmp_path / name, output, set()))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
            run.process.wait(30)
    left = sorted(path.name for path in temporary.iterdir())
    assert left == [], "temporary files are left behind"
    temporary.rmdir()

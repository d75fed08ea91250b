"""Run folders as a run leaves them, with figures that can be worked out by hand."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Steps = Sequence[dict[str, Any]]
Write = Callable[..., Path]

FINISHED = {"state": "finished", "trainer_exit_code": 0, "exit_code": 0}


@pytest.fixture
def step() -> Callable[..., dict[str, Any]]:
    """`step(loss=…, reward=…, seconds=…, others={…})`: the metrics of a step, of 100 tokens."""

    def make(
        loss: float | None = 0.5, reward: float = 0.5, seconds: float = 2.0, others: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        usual = {
            "actor/distillation/loss": loss,
            "critic/score/mean": reward,
            "response_length/mean": 8.0,
            "perf/total_num_tokens": 100,
            "perf/time_per_step": seconds,
            "perf/max_memory_reserved_gb": 1.5,
            "actor/entropy": 0.25,
        }
        return {**usual, **(others or {})}

    return make


def lines(steps: Steps, first: int = 1) -> str:
    return "".join(json.dumps({"step": number, "data": data}) + "\n" for number, data in enumerate(steps, first))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write("name", steps, overrides=[…], state={…}, settings="yaml", facts={…})` makes a run folder.

    `torn` is what stands after the last whole line, `first` the first step's number, `attempt` an earlier attempt's
    number and steps.
    """

    def make(
        name: str,
        steps: Steps = (),
        overrides: Sequence[str] = (),
        state: dict[str, Any] | None = FINISHED,
        settings: str | None = None,
        facts: dict[str, Any] | None = None,
        torn: str = "",
        first: int = 1,
        attempt: tuple[int, Steps] | None = None,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        record = {"overrides": list(overrides), "choices": {"loss_mode": "k1"}, "host": "elsewhere", **(facts or {})}
        (folder / "run.json").write_text(json.dumps(record))
        if state is not None:
            (folder / "status.json").write_text(json.dumps(state))
        if steps or torn:
            (folder / "metrics.jsonl").write_text(lines(steps, first) + torn)
        if attempt is not None:
            number, earlier = attempt
            (folder / "attempts" / str(number)).mkdir(parents=True)
            (folder / "attempts" / str(number) / "run.json").write_text("{}")
            (folder / "attempts" / str(number) / "metrics.jsonl").write_text(lines(earlier))
        if settings is not None:
            (folder / "verl.yaml").write_text(settings)
        return folder

    return make


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Path]:
    """`plan(cell, cell)` writes sweep.json beside the cells' folders; cells are numbered in their order."""

    def make(*cells: dict[str, Any]) -> Path:
        usual = {"varied": {}, "overrides": [], "plan": "run", "findings": []}
        content = [{"number": number, **usual, **cell} for number, cell in enumerate(cells)]
        (tmp_path / "sweep.json").write_text(json.dumps({"cells": content}))
        return tmp_path

    return make

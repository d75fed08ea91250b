"""Both engines train the same: a student on two ranks, without Ray and vLLM, in seconds."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from opd_conf.cpu import sums

RANK_PROGRAM = Path(__file__).with_name("engine_alone.py")
RANKS = 2
Trace = list[dict[str, float]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student with random weights and its tokenizer."""
    import torch

    folder = tmp_path_factory.mktemp("student")
    tokenizer = sums.make_tokenizer()
    torch.manual_seed(0)
    sums.make_model(sums.STUDENT, len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def train(engine: str, model: Path, ranks: int) -> list[Trace]:
    """What each rank of this engine printed: one line an update."""
    environment = os.environ | {
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(RANK_PROGRAM), engine, str(model)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    traces: list[Trace] = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
            traces.append([json.loads(line) for line in output.splitlines() if line.startswith("{")])
    finally:
        for process in processes:
            process.kill()
    return traces


def test_fsdp2_and_veomni_train_alike(model: Path) -> None:
    fsdp2, veomni = train("fsdp2", model, RANKS), train("veomni", model, RANKS)

    assert fsdp2 == veomni
    assert [len(trace) for trace in fsdp2] == [3, 3]
    losses = [line["loss"] for line in fsdp2[0]]
    assert losses[0] == pytest.approx(4.6, abs=0.2)  # ln(100): nothing is learned yet
    assert len({line["checksum"] for line in fsdp2[0]}) == 3  # each update changed the weights


def test_veomni_trains_on_one_rank(model: Path) -> None:
    (alone,) = train("veomni", model, 1)

    assert [line["loss"] > 0 for line in alone] == [True] * 3

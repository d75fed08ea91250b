"""The Ray cluster that a run will join: where it is, whether it answers, and what nodes.py was told there.

Nothing here imports Ray: a child of the trainer's own Python asks, with a time limit.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd_conf import nodes

LOCAL = "local"
"""The address that starts a Ray of our own."""

QUIET = 2.0
"""Seconds without an answer after which the screen says what is waited for."""
PATIENCE = 20.0
"""Seconds that the child may take."""


@dataclass(frozen=True)
class Facts:
    """What `nodes.probe` found on a machine; sizes in GiB."""

    python: str
    versions: Mapping[str, str | None]
    uncompiled: tuple[str, ...]
    memory_gib: float
    devices_gib: tuple[float, ...]
    npu: str | None


@dataclass(frozen=True)
class LiveNode:
    """A node that is alive: Ray's resources, all and free; `facts` None: it did not answer in time."""

    name: str
    total: Mapping[str, float]
    free: Mapping[str, float]
    facts: Facts | None


@dataclass(frozen=True)
class Cluster:
    """A cluster that answered; nodes in the order of their ids. `queue`: another run has its TransferQueue there."""

    address: str
    nodes: tuple[LiveNode, ...]
    queue: bool
    here: Facts


@dataclass(frozen=True)
class Silence:
    """A cluster that told nothing, and why.

    `problem`: `unknown` (auto, and none is found), `unreachable`, `client` (ray://), `no_ray` (not installed here),
    `version` (`versions`: Ray and Python there, then here), `refused` (Ray's own words), `late`.
    """

    address: str
    problem: str
    message: str = ""
    versions: tuple[tuple[str, str], tuple[str, str]] | None = None


def locate(address: object, variable: Callable[[str], str | None], proc: Path = Path("/proc")) -> str | None:
    """`host:port` of the cluster that Ray joins for an address; None: it starts its own; "": it finds none and stops.

    ray: _private/services.py:get_ray_address_from_environment; a raylet on this host counts before Ray's record.
    """
    if address in (None, "auto"):
        address = variable("RAY_ADDRESS") or address
    if address not in (None, "auto"):
        return None if address == LOCAL else str(address)
    folder = variable("RAY_TMPDIR") or variable("TMPDIR") or "/tmp"
    try:
        recorded = (Path(folder) / "ray" / "ray_current_cluster").read_text().strip()
    except OSError:
        recorded = ""
    if address is None:
        return recorded or None
    running = _running(proc)
    return recorded if not running or (recorded and len(running) > 1) else running[0]


def _running(proc: Path) -> list[str]:
    """Addresses of the clusters that this host is a node of."""
    found = set()
    for file in proc.glob("[0-9]*/cmdline"):
        try:
            words = file.read_text(errors="replace").split("\0")
        except OSError:
            continue
        if os.path.basename(words[0]) == "raylet":
            found |= {word.partition("=")[2] for word in words if word.startswith("--gcs-address=")}
    return sorted(found)


def reachable(address: str, patience: float = 1.0) -> bool:
    """Whether somebody listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=patience):
            return True
    except (OSError, ValueError):
        return False


def ask(
    address: str, python: Sequence[str], request: Mapping[str, Any], patience: float = PATIENCE
) -> Cluster | Silence:
    """What the cluster says, asked by a child of the trainer's Python; `request`: the arguments of nodes.probe."""
    given = json.dumps({"address": address, "request": request, "patience": patience / 2})
    # As a text, not as a file: the names of the modules beside it would hide others.
    command = [*python, "-c", Path(nodes.__file__).read_text(), given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            printed = _wait(child, address, patience)
        except subprocess.TimeoutExpired:
            child.kill()
            return Silence(address, "late", f"no answer within {patience:g} s")
    try:
        return read(json.loads(printed.splitlines()[-1]), address)
    except (IndexError, ValueError):
        return Silence(address, "refused", f"{python[0]} ended with exit code {child.returncode}")


def _wait(child: "subprocess.Popen[str]", address: str, patience: float) -> str:
    try:
        return child.communicate(timeout=min(QUIET, patience))[0]
    except subprocess.TimeoutExpired:
        print(f"asking the nodes of the Ray cluster at {address} …", file=sys.stderr, flush=True)
    return child.communicate(timeout=patience - min(QUIET, patience))[0]


def read(document: Mapping[str, Any], address: str) -> Cluster | Silence:
    """The document of nodes.py."""
    if "problem" in document:
        versions = document.get("versions")
        pair = (tuple(versions["cluster"]), tuple(versions["here"])) if versions else None
        return Silence(address, document["problem"], document["message"], pair)
    told = tuple(
        LiveNode(node["name"], node["total"], node["free"], _facts(node["facts"]) if node["facts"] else None)
        for node in document["nodes"]
    )
    return Cluster(address, told, document["queue"], _facts(document["here"]))


def _facts(found: Mapping[str, Any]) -> Facts:
    return Facts(**{**found, "uncompiled": tuple(found["uncompiled"]), "devices_gib": tuple(found["devices_gib"])})


def several(names: Sequence[str], most: int = 4) -> str:
    """Some names, and how many more."""
    more = len(names) - most
    return "; ".join(names[:most]) + (f"; and {more} more" if more > 0 else "")

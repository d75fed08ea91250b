"""Asks a running Ray cluster about its nodes, from inside each: `python nodes.py REQUEST` prints one JSON document.

Needs the standard library and Ray only: the trainer's Python runs this file, and opd_conf need not be installed there.
Nothing is claimed: the tasks ask for no CPU and no accelerator, and are gone when the document is printed.
"""

import importlib
import json
import os
import re
import sys
import time
from typing import Any

QUEUE = ("transfer_queue", "TransferQueueController")
"""Namespace and name of an actor that the first run in a cluster starts (transfer_queue/interface.py:init)."""


def probe(
    packages: list[str], modules: dict[str, str], environment: dict[str, str], dev: str = "/dev"
) -> dict[str, Any]:
    """What the machine is that this runs on. Self-contained: Ray carries the function to nodes as it stands.

    `packages`: whose versions to tell. `modules`: one file of each package, to see whether it was compiled.
    `environment`: what the run sets there. `dev`: where device nodes are.
    Returns `python`, `versions`, `uncompiled` (folders), `memory_gib`, `devices_gib`, and `npu`: why verl could not
    read the NPUs' versions, "" when it can, None without NPUs (verl: utils/device.py:get_npu_versions, which every
    worker of the student calls).
    """
    import glob
    import importlib.metadata
    import importlib.util
    import os
    import platform
    import subprocess

    environment = {**os.environ, **environment}

    def run(*command: str) -> str | None:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=5, env=environment)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout if done.returncode == 0 else None

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def uncompiled(package: str, module: str) -> str | None:
        spec = importlib.util.find_spec(package)
        folder = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else ""
        file = os.path.join(folder, module)
        if not folder or not os.path.isfile(file) or os.path.isfile(importlib.util.cache_from_source(file)):
            return None
        return folder

    def npu() -> str | None:
        if not glob.glob(f"{dev}/davinci[0-9]*"):
            return None
        visible = (environment.get("ASCEND_VISIBLE_DEVICES") or "").split(",")[0]
        ids = ["1", *([visible, str(int(visible) // 2)] if visible.isdigit() else [])]
        boards = (run("npu-smi", "info", "-t", "board", "-i", number) for number in ids)
        board = next((board for board in boards if board is not None), None)
        if board is None:
            return f"`npu-smi info -t board -i {ids[0]}` fails" + ("" if visible else " (ASCEND_VISIBLE_DEVICES unset)")
        if "Software Version" not in board:
            return "npu-smi names no Software Version"
        home = environment.get("ASCEND_HOME_PATH") or "/usr/local/Ascend/ascend-toolkit/latest"
        info = os.path.join(home, f"{platform.machine()}-linux", "ascend_toolkit_install.info")
        try:
            with open(info) as lines:
                told = any(line.startswith("version=") for line in lines)
        except OSError:
            return f"CANN's {info} cannot be read"
        return "" if told else f"CANN's {info} names no version"

    def devices() -> list[float]:
        if not glob.glob(f"{dev}/nvidia[0-9]*"):
            return []
        told = run("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits") or ""
        return [round(int(line) / 1024, 1) for line in told.split("\n") if line.strip().isdigit()]

    return {
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
        "uncompiled": [folder for name, module in modules.items() if (folder := uncompiled(name, module))],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "devices_gib": devices(),
        "npu": npu(),
    }


def _version_mismatch(message: str) -> dict[str, list[str]] | None:
    """Versions of Ray and Python, the cluster's and ours, from what Ray says when they differ; None when it does not.

    ray: _private/utils.py:check_version_info.
    """
    rays, pythons = (re.findall(rf"^\s*{name}: (\S+)", message, re.MULTILINE) for name in ("Ray", "Python"))
    if "Version mismatch" not in message or len(rays) < 2 or len(pythons) < 2:
        return None
    return {"cluster": [rays[0], pythons[0]], "here": [rays[1], pythons[1]]}


def ask(address: str, request: dict[str, Any], patience: float) -> dict[str, Any]:
    """The document: `nodes`, each with totals, what is free and what `probe` found, and `queue`; or a `problem`.

    `patience`: seconds for the probes; a node that has not answered by then has no `facts`.
    """
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    try:
        ray: Any = importlib.import_module("ray")
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        return {"problem": "no_ray", "message": str(error)}
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except Exception as error:  # Ray raises many kinds, and each is worth its text only
        versions = _version_mismatch(str(error))
        problem = "version" if versions else "refused"
        return {"problem": problem, "message": str(error).strip(), "versions": versions}
    alive = [node for node in ray.nodes() if node["Alive"]]
    alive.sort(key=lambda node: str(node["NodeID"]))  # the order in which TransferQueue deals out its storage
    free = ray._private.state.available_resources_per_node()  # what verl adds up itself
    remote = ray.remote(num_cpus=0, max_retries=0)(probe)
    asked = {}
    for node in alive:
        there = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[remote.options(scheduling_strategy=there).remote(**request)] = node["NodeID"]
    here = probe(**request)
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=patience)
    facts: dict[str, Any] = {}
    for answer in done:
        try:
            facts[asked[answer]] = ray.get(answer)
        except Exception:  # the node died, or cannot start a worker: it has no facts
            continue
    named = {(actor["namespace"], actor["name"]) for actor in ray.util.list_named_actors(all_namespaces=True)}
    return {
        "queue": QUEUE in named,
        "here": here,
        "nodes": [
            {
                "name": node.get("NodeName") or node["NodeManagerAddress"],
                "total": node["Resources"],
                "free": free.get(node["NodeID"], {}),
                "facts": facts.get(node["NodeID"]),
            }
            for node in alive
        ],
    }


def main() -> None:
    """Reads `{"address", "request", "patience"}` from the first argument; the document is the last line printed."""
    started = time.monotonic()
    document = ask(**json.loads(sys.argv[1]))
    print(json.dumps({**document, "seconds": round(time.monotonic() - started, 2)}), flush=True)
    os._exit(0)  # Ray's own end of a driver takes a second, and there is nothing to tidy up


if __name__ == "__main__":
    main()

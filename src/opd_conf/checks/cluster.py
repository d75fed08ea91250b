"""The Ray cluster that a run will join, as it is now: asked once, for `action=train` and `check`; see nodes.py.

A Ray of the run's own (ray_init.address=local) has no such cluster, and these rules are quiet.
"""

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import TypeVar

from opd_conf import live, platforms, runner
from opd_conf.checks import packages
from opd_conf.checks.finding import Finding, error, note, warning
from opd_conf.checks.placement import KEYS, RAY, UNITS, Node, halves, misfit, pools
from opd_conf.errors import UserError
from opd_conf.live import Cluster, Facts, LiveNode, Silence
from opd_conf.memory import hardware
from opd_conf.view import View

ADDRESS = f"{RAY}.address"
RESOURCES = {"gpu": "GPU", "npu": "NPU", "cpu": "GPU"}
"""Ray's name for a platform's accelerators (verl: plugin/platform; opd_conf's own `cpu` passes for GPUs)."""

COMPARED = ("ray", "verl", "torch", "transformers", "vllm", "sglang", "veomni", "TransferQueue", "tensordict", "numpy")
"""Packages whose versions are compared from node to node."""

Said = TypeVar("Said")

_latest: list[tuple[View, Cluster | Silence | None]] = []
"""The answer for the run that was asked about last, for the next rule."""


def _answer(run: View) -> Cluster | Silence | None:
    """The cluster, why it is silent, or None: nobody has to ask."""
    if not (_latest and _latest[0][0] is run):
        _latest[:] = [(run, _asked(run))]
    return _latest[0][1]


def _asked(run: View) -> Cluster | Silence | None:
    if run.action == "script":
        return None
    address = live.locate(run.setting(ADDRESS), run.variable)
    if address is None:
        return None
    if not address:
        return Silence("", "unknown")
    if address.startswith("ray://"):
        return Silence(address, "client")
    if not live.reachable(address):
        return Silence(address, "unreachable")
    if run.action == "dry_run":
        return None
    try:
        python = runner.choose(run.values.config).python
    except UserError:
        return None  # told before the start
    request = {
        "packages": list(COMPARED),
        "modules": {
            name: packages.BYTECODE[name] for name in ("verl", run.rollout.backend) if name in packages.BYTECODE
        },
        "environment": platforms.environment(run.values.config),
    }
    return live.ask(address, python, request)


def _cluster(run: View) -> Cluster | None:
    answer = _answer(run)
    return answer if isinstance(answer, Cluster) else None


def _workers_here_alike(run: View) -> bool:
    """Whether workers have the Python that `ray start` had, so that what a node told is what they will find."""
    other = ("py_executable", "pip", "uv", "conda", "container", "image_uri")
    try:
        chosen = runner.choose(run.values.config).py_executable
    except UserError:
        return False
    return chosen is None and not any(run.setting(f"{RAY}.runtime_env.{key}") for key in other)


def _told(run: View) -> Mapping[str, Facts]:
    """What nodes found in the Python of the run's workers, by name; nothing when those have another one."""
    found = _cluster(run)
    if found is None or not _workers_here_alike(run):
        return {}
    return {node.name: node.facts for node in found.nodes if node.facts}


def cluster_answers(run: View) -> Iterator[Finding]:
    """The Ray cluster that the run is to join answers, with the Ray and the Python of this machine.

    Elsewhere than on the cluster a plan cannot see it, and that is a note.

    verl: trainer/main_ppo.py:run_ppo, ray.init. ray: _private/utils.py:check_version_info compares both to the last
    digit; without a cluster at the address ray.init waits and tries again.
    """
    found = _answer(run)
    if not isinstance(found, Silence):
        return
    say = error if run.action == "train" else note
    told = f"ray_init.address={run.setting(ADDRESS)}"
    if found.problem == "version" and found.versions:
        (ray, python), (our_ray, our_python) = found.versions
        yield error(
            ADDRESS,
            message=f"The cluster at {found.address} runs Ray {ray} and Python {python}, here are Ray {our_ray} and "
            f"Python {our_python}: Ray refuses to connect.",
            fix=f"pip install ray=={ray}"
            if python == our_python
            else f"uv venv --python {python}   # as on the cluster",
        )
    elif found.problem in ("unknown", "unreachable"):
        where = f" at {found.address}" if found.address else ""
        yield say(
            ADDRESS,
            message=f"No Ray cluster answers{where} ({told}).",
            fix=f"{ADDRESS}=local"
            if run.cluster_nodes == 1
            else "ray start --head   # here, and on the other nodes what it prints",
        )
    elif found.problem == "refused":
        yield say(
            ADDRESS,
            message=f"The Ray cluster at {found.address} lets nobody in from here: {_last_line(found.message)}",
            fix="ray status   # from one of its nodes, where runs are started too",
        )
    else:
        why = {"client": "through ray:// nodes are not asked", "no_ray": "Ray is not installed here"}
        yield note(
            ADDRESS,
            message=f"The nodes of {found.address} are not looked into: {why.get(found.problem, found.message)}.",
            fix=f"ray status --address {shlex.quote(found.address)}",
        )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines() or ["no reason given"]
    return lines[-1][:200]


def cluster_keeps_its_sizes(run: View) -> Iterator[Finding]:
    """A run that joins a cluster does not say how large it is: Ray refuses num_cpus, num_gpus and resources then.

    verl: trainer/main_ppo.py:run_ppo. ray: _private/worker.py:init, a ValueError.
    """
    address = run.setting(ADDRESS)
    joins = address not in (None, live.LOCAL) and live.locate(address, run.variable) is not None
    if not joins and not (address is None and run.action in ("train", "check") and live.locate(None, run.variable)):
        return
    names = ("num_cpus", "num_gpus", "resources", "object_store_memory")
    given = [f"{RAY}.{name}" for name in names if run.setting(f"{RAY}.{name}") is not None]
    if given:
        yield error(
            *given,
            ADDRESS,
            message=f"The run joins a Ray cluster ({ADDRESS}={address}), and Ray then refuses "
            f"{', '.join(key.rpartition('.')[2] for key in given)}.",
            fix=" ".join(run.set(key, None) for key in given),
        )


def cluster_has_platform(run: View) -> Iterator[Finding]:
    """Nodes offer the accelerators of the platform.

    verl: single_controller/ray/base.py:get_placement_groups asks for `GPU` or `NPU` by the platform's name for them.
    """
    found, wanted = _cluster(run), RESOURCES.get(run.platform, "GPU")
    if found is None or any(node.total.get(wanted) for node in found.nodes):
        return
    for platform, resource in (("npu", "NPU"), ("gpu", "GPU")):
        if any(node.total.get(resource) for node in found.nodes):
            yield error(
                "platform",
                ADDRESS,
                message=f"The nodes of {found.address} offer {resource} and no {wanted}: the run would wait for ever.",
                fix=f"platform={platform}",
            )


def pools_fit_live_nodes(run: View) -> Iterator[Finding]:
    """Student and teacher fit what is free on the nodes of the running cluster, accelerators and CPUs.

    verl: single_controller/ray/base.py:get_placement_groups; only the sum of free accelerators is compared before.
    """
    found = _cluster(run)
    if found is None or next(cluster_has_platform(run), None):
        return
    resource = RESOURCES.get(run.platform, "GPU")
    free = [_node(node, node.free, resource) for node in found.nodes]
    whole = [_node(node, node.total, resource) for node in found.nodes]
    lacking = misfit(run, free)
    if lacking is None:
        return
    held = misfit(run, whole) is None
    # What another run holds now may be free when this one is started.
    say = warning if not lacking.certain or (held and run.action == "check") else error
    rest = [
        f"{have.name}: {have.accelerators:g} of {all_there.accelerators:g} {resource} and {have.cpus:g} of "
        f"{all_there.cpus:g} CPUs"
        for have, all_there in zip(free, whole, strict=True)
        if have != all_there
    ]
    message = f"{pools(run)} do not fit the cluster at {found.address}: {lacking}."
    yield say(
        *KEYS,
        ADDRESS,
        message=f"{message} Others hold a part; free are, on {live.several(rest)}." if held else message,
        fix=_smaller(run, free, whole),
    )


def _node(node: LiveNode, offers: Mapping[str, float], resource: str) -> Node:
    return Node(f"node {node.name}", offers.get(resource, 0), offers.get("CPU", 0))


def _smaller(run: View, free: list[Node], whole: list[Node]) -> str:
    """CPUs for the nodes where accelerators are enough; else halves of the cluster, if those fit."""
    if misfit(run, [Node(node.name, node.accelerators) for node in whole]) is None:
        if misfit(run, whole) is None:
            return "ray status   # who holds what; or wait"
        most = max(node.accelerators for node in whole)
        units = run.setting(UNITS, 0)
        return f"ray start --num-cpus={3 * int(most) + math.ceil(units / len(whole)) + 1} …   # again, on each node"
    return halves(run, free)


def one_run_per_cluster(run: View) -> Iterator[Finding]:
    """No other run is in the cluster: its TransferQueue would be shared, and the first to end closes it.

    verl: trainer/main_ppo.py:TaskRunnerV1.run, tq.init and tq.close. transfer_queue: interface.py.
    """
    found = _cluster(run)
    if found and found.queue:
        say = error if run.action == "train" else warning
        yield say(
            ADDRESS,
            message=f"Another run is in the Ray cluster at {found.address}: both would share its TransferQueue, mix "
            "their samples, and stop when one of them ends.",
            fix=f"{ADDRESS}=local   # a Ray of its own, on other accelerators; or wait",
        )


def nodes_answer(run: View) -> Iterator[Finding]:
    """Every node of the cluster runs a task within seconds.

    verl: single_controller/ray/base.py, whose workers start like the task that looks at a node.
    """
    found = _cluster(run)
    silent = [node.name for node in found.nodes if node.facts is None] if found else []
    if silent:
        yield warning(
            ADDRESS,
            message=f"No task came back within {live.PATIENCE / 2:g} s from {live.several(silent)}: the run's workers "
            "may not start there either.",
            fix="ray status   # or the logs of that node's raylet",
        )


def nodes_alike(run: View) -> Iterator[Finding]:
    """Every node has this machine's Python and the same versions of verl's packages.

    verl: single_controller/ray/base.py, whose workers import all of it on whatever node they are put.
    """
    found, told = _cluster(run), _told(run)
    if found is None:
        return
    for package in ("Python", *COMPARED):
        ours = _version(found.here, package)
        others: dict[str | None, list[str]] = {}
        for name, facts in told.items():
            if (version := _version(facts, package)) != ours:
                others.setdefault(version, []).append(name)
        for version, names in others.items():
            absent = version is None and package in ("verl", "torch", "transformers", "TransferQueue", "tensordict")
            say = error if absent and run.action == "train" else warning
            yield say(
                "launch.runner",
                message=f"{package} is {version or 'not installed'} on {live.several(names)}, here {ours or 'none'}.",
                fix=f"pip install {package}=={ours}   # on {names[0]}"
                if ours and package != "Python"
                else "# the same environment on every node",
            )


def _version(facts: Facts, package: str) -> str | None:
    return facts.python if package == "Python" else facts.versions.get(package)


def bytecode_on_nodes(run: View) -> Iterator[Finding]:
    """Packages were compiled on every node, as `bytecode_there` wants here.

    verl: trainer/main_ppo.py and whatever it imports, in every process of every node.
    """
    found, told = _cluster(run), _told(run)
    for folders, names in _grouped({name: facts.uncompiled for name, facts in told.items()}).items():
        if folders and found and folders != found.here.uncompiled:
            yield warning(
                "launch.runner",
                message=f"Without compiled bytecode on {live.several(names)}: {', '.join(folders)}. Each of Ray's "
                "processes compiles anew, and imports take three times as long.",
                fix=shlex.join(["python", "-m", "compileall", "-q", *folders]) + f"   # on {names[0]}",
            )


def npus_readable_on_nodes(run: View) -> Iterator[Finding]:
    """npu-smi and CANN's version can be read on every node with NPUs.

    verl: utils/device.py:get_npu_versions, a RuntimeError in each of the student's workers.
    """
    found = _cluster(run)
    reasons = {node.name: node.facts.npu for node in found.nodes if node.facts} if found else {}
    for reason, names in _grouped(reasons).items():
        if reason and run.platform == "npu":
            yield error(
                "platform",
                message=f"verl stops on {live.several(names)}: {reason}.",
                fix="source /usr/local/Ascend/ascend-toolkit/set_env.sh   # there, before ray start",
            )


def _grouped(told: Mapping[str, Said]) -> dict[Said, list[str]]:
    """Names of the nodes that say the same."""
    groups: dict[Said, list[str]] = {}
    for name, said in told.items():
        groups.setdefault(said, []).append(name)
    return groups


def nodes_have_memory(run: View) -> Iterator[Finding]:
    """Devices and nodes of the cluster have the memory that the estimate counts with.

    opd_conf: memory/hardware.py, from this machine or from the cluster's file.
    """
    found = _cluster(run)
    told = [node.facts for node in found.nodes if node.facts] if found else []
    device, host = hardware.device_room(run), hardware.host_room(run)
    host = host if host and host.source == hardware.CLUSTER_HOST else None
    for room, key, thing, sizes in (
        (device, hardware.DEVICE, "device", [size for facts in told for size in facts.devices_gib]),
        (host, hardware.CLUSTER_HOST, "node", [facts.memory_gib for facts in told]),
    ):
        if room and sizes and min(sizes) < ROUNDING * room.size / hardware.GIB:
            yield warning(
                key,
                ADDRESS,
                message=f"The estimate counts with {room.size / hardware.GIB:g} GiB of a {thing} ({room.source}), and "
                f"the smallest {thing} of the cluster has {min(sizes):g}.",
                fix=run.set(key, f"{min(sizes):g}"),
            )


ROUNDING = 0.95
"""A card sold with 80 GB tells 79.6 GiB or 80, and a host keeps a few per cent of its RAM for itself."""

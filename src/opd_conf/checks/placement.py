"""Where the pools are: two disjoint ones, each a number of equal entries, and an entry lies whole within one node.

An entry of n accelerators is a STRICT_PACK placement group of n bundles, one accelerator and three CPUs each; the
student's are made first. Entries of both pools may share a node. verl compares totals of accelerators only
(single_controller/ray/base.py:_check_resource_available), and then waits for ever for a group that finds no place.
The same is computed for the cluster that was declared, here, and for one that runs, in cluster.py.
"""

import heapq
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opd_conf import live, platforms
from opd_conf.checks.finding import Finding, error, warning
from opd_conf.view import ROLLOUT, View, largest_divisor

KEYS = ("trainer.nnodes", "trainer.n_gpus_per_node", "distillation.nnodes", "distillation.n_gpus_per_node")
RAY = "ray_kwargs.ray_init"
STORAGE = "transfer_queue.backend.SimpleStorage"
UNITS = f"{STORAGE}.num_data_storage_units"

BUNDLE_CPUS = 3
"""CPUs beside each accelerator: max_colocate_count (verl: single_controller/ray/base.py:ResourcePoolManager)."""


@dataclass(frozen=True)
class Node:
    """What is free on a node. `cpus` None: nobody knows, and they are not counted."""

    name: str
    accelerators: float
    cpus: float | None = None

    def emptiness(self, entry: int) -> float:
        """Ray's score for an entry, the largest is taken; below 0 where it finds no room.

        ray: src/ray/raylet/scheduling/policy/scorer.cc:LeastResourceScorer.
        """
        offers = [(self.accelerators, entry)] + ([] if self.cpus is None else [(self.cpus, BUNDLE_CPUS * entry)])
        return sum((free - wanted) / free for free, wanted in offers) if all(f >= w for f, w in offers) else -1

    def without(self, accelerators: int, cpus: float) -> "Node":
        """What is left."""
        left = None if self.cpus is None else self.cpus - cpus
        return replace(self, accelerators=self.accelerators - accelerators, cpus=left)


@dataclass(frozen=True)
class Misfit:
    """An entry of a pool (or a storage unit of TransferQueue) that finds no place, and what nodes have left by then.

    `certain` is false where it depends on the node that Ray chooses for one helper.
    """

    pool: str
    entry: int
    left: tuple[Node, ...]
    certain: bool = True

    def __str__(self) -> str:
        if self.pool == "TransferQueue":
            names = [node.name for node in self.left if (node.cpus or 0) < 0] or ["any node"]
            return f"no CPU is left on {live.several(names)} for TransferQueue, one for each of its actors"
        wanted = f"{self.entry} accelerators of one node"
        if self.left[0].cpus is not None:
            wanted += f" and {BUNDLE_CPUS} CPUs for each"
        return f"the {self.pool} needs {wanted}, and there remain {live.several([*map(self._shown, self.left)])}"

    def _shown(self, node: Node) -> str:
        """A node's rest, and how much is missing: `node b: 8 accelerators, 16 of 24 CPUs`."""
        offers = [(node.accelerators, self.entry, "accelerators"), (node.cpus, BUNDLE_CPUS * self.entry, "CPUs")]
        return f"{node.name}: " + ", ".join(
            f"{free:g} {what}" if free >= wanted else f"{free:g} of {wanted} {what}"
            for free, wanted, what in offers
            if free is not None
        )


def misfit(run: View, nodes: Sequence[Node]) -> Misfit | None:
    """What finds no place on these nodes, given in the order of their ids; None when all of the run does.

    Beside the pools, TransferQueue's storage units take a CPU each, dealt out to the nodes in turn, and its controller
    one somewhere. All other actors take none (Ray's default: they start on a full node too).

    verl: trainer/ppo/v1/trainer_base.py:_init_resource_pool_mgr. transfer_queue: utils/common.py.
    """
    units = _storage_units(run)
    shares = [units // len(nodes) + (place < units % len(nodes)) for place in range(len(nodes))]
    rest = [node.without(0, share) for node, share in zip(nodes, shares, strict=True)]
    # Where the controller goes only matters by the kind of node.
    kinds = {(node.accelerators, node.cpus): place for place, node in enumerate(rest)}
    hosts = [place for (_, cpus), place in kinds.items() if cpus is None or cpus >= 1]
    if not hosts or any(node.cpus is not None and node.cpus < 0 for node in rest):
        return Misfit("TransferQueue", 1, tuple(rest))
    outcomes = [_unplaced(run, [node.without(0, place == host) for place, node in enumerate(rest)]) for host in hosts]
    found = next(filter(None, outcomes), None)
    return replace(found, certain=all(outcomes)) if found else None


def _unplaced(run: View, nodes: Sequence[Node]) -> Misfit | None:
    """The first entry that finds no node: each takes the emptiest one, the student's come first."""
    left = list(nodes)
    student, teacher = (run.student_nodes, run.student_per_node), (run.teacher_nodes, run.teacher_per_node)
    for pool, (entries, entry) in (("student", student), ("teacher", teacher)):
        fullest_last = [(-node.emptiness(entry), place) for place, node in enumerate(left)]
        heapq.heapify(fullest_last)
        for _ in range(entries):
            fullness, place = fullest_last[0]
            if fullness > 0:
                return Misfit(pool, entry, tuple(left))
            left[place] = left[place].without(entry, BUNDLE_CPUS * entry)
            heapq.heapreplace(fullest_last, (-left[place].emptiness(entry), place))
    return None


def _storage_units(run: View) -> int:
    """Storage units that are dealt out to all nodes; none where they go to some nodes only: not followed here."""
    dealt = run.setting("transfer_queue.backend.storage_backend") == "SimpleStorage"
    units = run.setting(UNITS)
    return units if dealt and isinstance(units, int) and not run.setting(f"{STORAGE}.required_node_resource") else 0


# The cluster that was declared


def declared(run: View, cpus: float | None = None) -> list[Node]:
    """The nodes that `cluster` says there are."""
    return [Node(f"node {place + 1}", run.cluster_per_node, cpus) for place in range(run.cluster_nodes)]


def pools_fit(run: View) -> Iterator[Finding]:
    """Student and teacher fit the declared cluster together, node by node, where Ray puts them: on the emptiest nodes.

    verl: single_controller/ray/base.py:get_placement_groups.
    """
    found = misfit(run, declared(run))
    if found:
        keys = (*KEYS, "cluster.nodes", "cluster.accelerators_per_node")
        yield error(*keys, message=_too_many(run, found), fix=halves(run, declared(run)))


def _too_many(run: View, found: Misfit) -> str:
    """Which pool does not fit, and why."""
    total, there = run.student_world + run.teacher_pool, run.cluster_nodes * run.cluster_per_node
    if found.entry > run.cluster_per_node:
        return f"The {found.pool} asks for {found.entry} accelerators of one node, and the cluster is {_cluster(run)}."
    if total > there:
        return f"{pools(run)} need {total} accelerators, and {_cluster(run)} have {there}."
    return (
        f"{pools(run)} are {total} of the {there} accelerators of {_cluster(run)}, but Ray gives each entry the "
        f"emptiest node, and then no node has {found.entry} left for the {found.pool}: the run would wait for ever."
    )


def cpus_suffice(run: View) -> Iterator[Finding]:
    """Nodes have CPUs for the pools: three an accelerator, and one for each storage unit of TransferQueue.

    Known from ray_init.num_cpus for a Ray of our own (else that counts this machine's), from cluster.cpus_per_node.

    verl: single_controller/ray/base.py:get_placement_groups.
    """
    cpus, key = _cpus(run)
    found = misfit(run, declared(run, cpus)) if cpus is not None and not misfit(run, declared(run)) else None
    if found is None:
        return
    enough = next(
        number
        for number in range(1, BUNDLE_CPUS * run.cluster_per_node + _storage_units(run) + 2)
        if not misfit(run, declared(run, number))
    )
    shown = f"{pools(run)} and TransferQueue ({_storage_units(run)} + 1) need {enough} CPUs of a node"
    say = error if found.certain else warning
    yield say(
        key,
        UNITS,
        message=f"{shown}, and {key} is {cpus}: {found}. The run {'would' if found.certain else 'may'} wait for ever."
        if key != f"{RAY}.num_cpus" or run.setting(key) is not None
        else f"{shown}, and Ray would count {cpus} on this machine: {found}. The run would wait for ever.",
        fix=run.set(key, enough),
    )


def _cpus(run: View) -> tuple[int | None, str]:
    """The CPUs of a node, if they are known, and the key that says so."""
    own, declared_key = f"{RAY}.num_cpus", "cluster.cpus_per_node"
    address, given = run.setting(f"{RAY}.address"), run.setting(own)
    if address in (None, live.LOCAL) and isinstance(given, int):
        return given, own
    if run.cluster_cpus is not None:
        return run.cluster_cpus, declared_key
    here = run.platform == "cpu" or run.platform in platforms.device_nodes()
    if run.action == "train" and here and live.locate(address, run.variable) is None:
        return machine_cpus(), own
    return None, declared_key


def machine_cpus() -> int:
    """CPUs that Ray counts on this machine when nobody says (ray: _private/utils.py:get_num_cpus)."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        quota, period = "max", "1"
    if quota.isdigit() and not os.environ.get("RAY_USE_MULTIPROCESSING_CPU_COUNT"):
        return max(1, int(quota) // int(period))
    return os.cpu_count() or 1


def pools(run: View) -> str:
    """Both pools in words."""
    student, teacher = (run.student_nodes, run.student_per_node), (run.teacher_nodes, run.teacher_per_node)
    return f"Student ({student[0]} x {student[1]}) and teacher ({teacher[0]} x {teacher[1]})"


def _cluster(run: View) -> str:
    return f"{run.cluster_nodes} node{'s' * (run.cluster_nodes > 1)} x {run.cluster_per_node}"


def halves(run: View, nodes: Sequence[Node]) -> str:
    """Half of the nodes for each pool, or half of the only one; a preset for a single accelerator."""
    sizes = [int(node.accelerators) for node in nodes if node.accelerators >= 1]
    size, count = min(sizes, default=0), len(sizes)
    if size * count < 2:
        return "cluster=1x2"
    shares = (count // 2, size, count - count // 2, size) if count > 1 else (1, size // 2, 1, size - size // 2)
    return " ".join(run.set(key, share) for key, share in zip(KEYS, shares, strict=True))


# Replicas within the pools


def rollout_replicas_within_nodes(run: View) -> Iterator[Finding]:
    """A replica of the student lies within one entry of its pool, or fills several.

    verl: workers/rollout/replica.py:RolloutReplica.__init__; launch_servers starts one server a node by these numbers.
    """
    size, entry = run.rollout.accelerators, run.student_per_node
    if run.student_world % size or (run.student_nodes == 1 and size <= entry) or not _straddles(size, entry):
        return
    yield error(
        f"{ROLLOUT}.tensor_model_parallel_size",
        "trainer.n_gpus_per_node",
        message=f"A replica of the student takes {run.rollout.sizes} accelerators, and the student has {entry} of each "
        "node: a replica would lie on parts of two nodes.",
        fix=_tensor(run, ROLLOUT, largest_divisor(entry, run.rollout.tensor_parallel)),
    )


def teacher_replicas_within_nodes(run: View) -> Iterator[Finding]:
    """A replica of a teacher lies within one entry of the teacher pool, or fills several; teachers take it in turn.

    verl: experimental/teacher_loop/teacher_model.py:_validate_replica_node_alignment, workers/rollout/replica.py.
    """
    start, entry = 0, run.teacher_per_node
    if run.teacher_nodes == 1:
        return
    for teacher in run.teachers:
        size = teacher.accelerators
        replicas = teacher.num_replicas if run.named_teachers else run.teacher_pool // size
        starts = range(start, start + replicas * size, size)
        spans = [(first + size - 1) // entry - first // entry + 1 for first in starts]
        if spans and (max(spans) > math.ceil(size / entry) or size % min(size, entry)):
            yield error(
                f"{teacher.at}.tensor_model_parallel_size",
                "distillation.n_gpus_per_node",
                message=f"Teacher {teacher.entry}: a replica takes {teacher.sizes} accelerators from accelerator "
                f"{start} of the pool on, and an entry has {entry}: a replica would lie on parts of two nodes.",
                fix=_tensor(run, teacher.at, largest_divisor(entry, teacher.tensor_parallel)),
            )
        start += replicas * size


def _straddles(size: int, entry: int) -> bool:
    return bool(entry % size and size % entry)


def _tensor(run: View, at: str, tensor: int) -> str:
    """A tensor-parallel size that divides an entry, without the other sizes."""
    sizes = {"tensor_model_parallel_size": tensor, "data_parallel_size": 1, "pipeline_model_parallel_size": 1}
    return " ".join(
        run.set(f"{at}.{name}", size)
        for name, size in sizes.items()
        if name.startswith("tensor") or run.setting(f"{at}.{name}", 1) != 1
    )

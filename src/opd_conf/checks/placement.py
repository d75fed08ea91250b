"""Where the accelerators are: two disjoint pools, each a number of equal node entries that Ray places whole.

An entry of n accelerators is a placement group that must lie within one node. Entries of both pools may share a node.
verl compares totals only (single_controller/ray/base.py:_check_resource_available) and then waits for ever.
"""

from collections.abc import Iterator

from opd_conf.checks.finding import Finding, error, warning
from opd_conf.view import View

KEYS = ("trainer.nnodes", "trainer.n_gpus_per_node", "distillation.nnodes", "distillation.n_gpus_per_node")


def pools_fit(run: View) -> Iterator[Finding]:
    """Student and teacher fit the declared cluster together, node by node.

    verl: single_controller/ray/base.py:_check_resource_available and :RayResourcePool.get_placement_groups.
    """
    if not _unplaced(run, spread=False):
        return
    yield error(*KEYS, "cluster.nodes", "cluster.accelerators_per_node", message=_misfit(run), fix=_fix(run))


def pools_fit_however_placed(run: View) -> Iterator[Finding]:
    """They fit whichever nodes Ray chooses: a student spread over nodes may leave none whole for the teacher.

    verl: single_controller/ray/base.py:RayResourcePool.get_placement_groups.
    """
    if _unplaced(run, spread=False) or not _unplaced(run, spread=True):
        return
    yield warning(
        *KEYS,
        message=f"{_pools(run)} fit {_cluster(run)}, but Ray chooses the nodes, the student's first: when it spreads "
        f"them, no node has {run.teacher_per_node} free for the teacher, and the run waits for ever.",
        fix=_fix(run),
    )


def _unplaced(run: View, spread: bool) -> str:
    """The pool whose entry finds no node, student first, or nothing.

    With `spread`, each entry takes the emptiest node, else the first that has room.
    """
    free = [run.cluster_per_node] * run.cluster_nodes
    student = [("student", run.student_per_node)] * run.student_nodes
    for pool, wanted in student + [("teacher", run.teacher_per_node)] * run.teacher_nodes:
        nodes = [node for node, room in enumerate(free) if room >= wanted]
        if not nodes:
            return pool
        free[max(nodes, key=lambda node: free[node]) if spread else nodes[0]] -= wanted
    return ""


def _misfit(run: View) -> str:
    """Which pool does not fit, and why."""
    total, there = run.student_world + run.teacher_pool, run.cluster_nodes * run.cluster_per_node
    sizes = {"student": run.student_per_node, "teacher": run.teacher_per_node}
    for pool, size in sizes.items():
        if size > run.cluster_per_node:
            return f"The {pool} asks for {size} accelerators of one node, and the cluster is {_cluster(run)}."
    if total > there:
        return f"{_pools(run)} need {total} accelerators, and {_cluster(run)} have {there}."
    pool = _unplaced(run, spread=False)
    return (
        f"{_pools(run)} are {total} of the {there} accelerators of {_cluster(run)}, but after the others no node has "
        f"{sizes[pool]} left for the {pool}: the run would wait for ever."
    )


def _pools(run: View) -> str:
    student, teacher = (run.student_nodes, run.student_per_node), (run.teacher_nodes, run.teacher_per_node)
    return f"Student ({student[0]} x {student[1]}) and teacher ({teacher[0]} x {teacher[1]})"


def _cluster(run: View) -> str:
    return f"{run.cluster_nodes} node{'s' * (run.cluster_nodes > 1)} x {run.cluster_per_node}"


def _fix(run: View) -> str:
    """Half of the cluster for each: half of the nodes, or half of the only node; a preset for a single accelerator."""
    nodes, size = run.cluster_nodes, run.cluster_per_node
    if nodes * size == 1:
        return "cluster=1x2"
    halves = (nodes // 2, size, nodes - nodes // 2, size) if nodes > 1 else (1, size // 2, 1, size - size // 2)
    return " ".join(run.set(key, half) for key, half in zip(KEYS, halves, strict=True))

"""What fits on a device and in a node: opd_conf/memory has the formulas, and says what is uncertain."""

from collections.abc import Callable, Iterator

from opd_conf import memory
from opd_conf.checks.finding import Finding, error, note, warning
from opd_conf.memory import GIB, HOST, Estimate, Phase, Room, Served, gib
from opd_conf.memory.hardware import DEVICE, devices
from opd_conf.memory.inputs import utilization
from opd_conf.view import ROLLOUT, View


def memory_fits(run: View) -> Iterator[Finding]:
    """Every phase of the run fits on a device, and what is offloaded fits in a node's RAM.

    opd_conf: memory/formulas.py, which names what they were measured on.
    """
    if run.platform == "cpu":  # nothing is claimed, and models are tiny
        return
    found = memory.estimate(run)
    if found is None or found.given.device is None:
        yield _no_verdict(run, found)
    for sure, upper in found.peaks() if found else ():
        room = found.room(sure.name) if found else None
        if found is None or room is None or _starves(found, sure.name):
            continue
        if sure.size > room.size:
            yield _does_not_fit(run, found, room, sure, certain=True)
        elif upper.upper > room.size and sure.name != HOST:
            yield _does_not_fit(run, found, room, upper, certain=False)


def server_memory(run: View) -> Iterator[Finding]:
    """A server's part of the device holds its weights and the keys and values of one sequence, and is free.

    vLLM: v1/worker/gpu_worker.py:determine_available_memory, v1/worker/utils.py:request_memory.
    """
    given = memory.settings(run) if run.platform != "cpu" else None
    if given is not None and given.device is not None:
        for served in (given.server, *given.teachers):
            if _short(served, given.device):
                yield _too_small(run, served, given.device)
    yield from _taken(run)


def _taken(run: View) -> Iterator[Finding]:
    """Other processes' memory: vLLM does not start where less is free than its part."""
    pools = [([run.rollout], run.student_per_node), (run.teachers, run.teacher_per_node)]
    parts = [
        (min(utilization(run, server) for server in servers), ranks)
        for servers, ranks in pools
        if servers and all(server.backend == "vllm" for server in servers)
    ]
    wanted = sorted((part for part, ranks in parts for _ in range(ranks)), reverse=True)
    found = sorted(devices(run), key=lambda device: device.free, reverse=True)
    # With several nodes it is not known which of the servers will be here.
    for device, part in zip(found, wanted if run.cluster_nodes == 1 else (), strict=False):
        if device.free < part * device.total:
            yield warning(
                f"{ROLLOUT}.gpu_memory_utilization",
                message=f"A server is to take {gib(part * device.total)} GiB (gpu_memory_utilization={part:g}) of a "
                f"device that has {gib(device.free)} of {gib(device.total)} free: other processes are on it.",
                fix=f"{'npu-smi info' if run.platform == 'npu' else 'nvidia-smi'}   # says which",
            )
            return


def _no_verdict(run: View, found: Estimate | None) -> Finding:
    """Why nothing can be said."""
    if found is not None:
        return note(
            DEVICE,
            message="Whether the run fits on the devices is not judged: nobody said how much memory one has.",
            fix=run.set(DEVICE, "GIB"),
        )
    if run.engine not in memory.BLOCKS:
        return note(
            "actor_rollout_ref.actor.strategy",
            message=f"Memory is not estimated: there are no formulas for the engine of {run.tree}.",
            fix="nothing to do where the run is known to fit",
        )
    models = memory.unknown(run)
    return note(
        *(key for key, path in run.model_paths.items() if path in models),
        message=f"Memory is not estimated: nothing is known of {', '.join(models)}.",
        fix=f"hf download {models[0]} config.json   # into this machine's cache, where its class is a known one",
    )


def _does_not_fit(run: View, now: Estimate, room: Room, phase: Phase, certain: bool) -> Finding:
    def fits(then: Estimate) -> bool:
        size, upper = then.peak(phase.name)
        return (size if certain else upper) <= room.size

    found = memory.relief(run, now, phase.name, fits)
    parts = sorted(map(phase.part, memory.PARTS), key=lambda part: -part.size - (0 if certain else part.uncertain))
    largest = ", ".join(
        f"{part.name} {gib(part.size)}" + (f" (+{gib(part.uncertain)})" if part.uncertain >= 0.05 * GIB else "")
        for part in parts[:3]
        if part.size or not certain
    )
    moment = f", {phase.moment}" if phase.moment else ""
    what = "What is offloaded" if phase.name == HOST else f"The phase {phase.name}{moment}"
    size = f"takes {gib(phase.size)} GiB" if certain else f"may take {gib(phase.upper)} GiB"
    if not certain:
        size += f" ({gib(phase.size)} for sure)"
    helps = "; ".join(f"{lever.change} frees {gib(freed)} GiB" for lever, freed in found[:1])
    keys = [key for lever, _ in found for key in lever.overrides] or ["trainer.n_gpus_per_node"]
    whose, others = ("node", "nodes") if phase.name == HOST else ("device", "devices")
    say: Callable[..., Finding] = error if certain and phase.name != HOST else warning
    return say(
        *dict.fromkeys(keys),
        message=f"{what} {size} of a {whose}'s {gib(room.size)} ({room.source}): {largest}. "
        f"{f'Largest lever: {helps}.' if helps else f'No setting helps: more or larger {others} would.'}",
        fix=memory.typed(run, found) or f"{_pool(phase)}=NUMBER",
    )


def _pool(phase: Phase) -> str:
    """The number of accelerators, or of nodes, that a phase's model is spread over."""
    if phase.name == HOST:
        return "trainer.nnodes"
    return "distillation.n_gpus_per_node" if phase.name.startswith("teacher") else "trainer.n_gpus_per_node"


def _short(served: Served, device: Room) -> bool:
    return served.utilization * device.size < served.weights + served.sequence_cache


def _starves(found: Estimate, phase: str) -> bool:
    """Whether server_memory tells of a phase: a server that cannot start has one finding, not two."""
    device, servers = found.given.device, (found.given.server, *found.given.teachers)
    return device is not None and any(served.name == phase and _short(served, device) for served in servers)


def _too_small(run: View, served: Served, device: Room) -> Finding:
    who = "student's server" if served.at == ROLLOUT else served.name
    key = f"{served.at}.gpu_memory_utilization"
    needed, part = served.weights + served.sequence_cache, served.utilization * device.size
    fraction = next((step / 20 for step in range(1, 19) if step / 20 * device.size >= 1.1 * needed), None)
    split = f"{served.at}.tensor_model_parallel_size"
    return error(
        key,
        split,
        message=f"gpu_memory_utilization={served.utilization:g} gives the {who} {gib(part)} GiB of a device "
        f"({device.source}); its weights take {gib(served.weights)} and one sequence of {served.length} tokens "
        f"{served.sequence_cache / GIB:.2f}.",
        fix=run.set(split, 2 * served.tensor) if fraction is None else run.set(key, f"{fraction:g}"),
    )

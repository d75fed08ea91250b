"""What fits on a device: opd_conf/memory.py has the formulas, and says what is uncertain."""

from collections.abc import Callable, Iterator

from opd_conf import memory
from opd_conf.checks.finding import Finding, error, note, warning
from opd_conf.memory import GIB, Estimate, Phase, Served, gib
from opd_conf.view import ROLLOUT, View

DEVICE = "platform.device_memory_gib"


def memory_fits(run: View) -> Iterator[Finding]:
    """Every phase of the run fits on a device.

    opd_conf: memory.py, whose formulas name what they were measured on.
    """
    if not _on_accelerator(run):
        return
    found = memory.estimate(run)
    if found is None or found.device is None:
        yield _no_verdict(run, found)
        return
    for sure, upper in found.peaks():
        if not sure.of_device or _starves(found, sure.name):
            continue
        if sure.size > found.device:
            yield _does_not_fit(run, found, found.device, sure, certain=True)
        elif upper.upper > found.device:
            yield _does_not_fit(run, found, found.device, upper, certain=False)


def server_memory(run: View) -> Iterator[Finding]:
    """A server's part of the device holds its weights and the keys and values of one sequence.

    vLLM: v1/worker/gpu_worker.py:determine_available_memory.
    """
    given = memory.settings(run) if _on_accelerator(run) else None
    if given is None or given.device is None:
        return
    for served in (given.server, *given.teachers):
        if _short(served, given.device):
            yield _too_small(run, served, given.device)


def _on_accelerator(run: View) -> bool:
    """On a CPU nothing is claimed, and models are tiny."""
    return str(run.values.config.platform.get("name")) != "cpu"


def _no_verdict(run: View, found: Estimate | None) -> Finding:
    """Why nothing can be said."""
    if found is None:
        return note(
            "actor_rollout_ref.model.path",
            message=f"Memory is not estimated: nothing is known of {', '.join(memory.unknown(run))}.",
            fix="download the model's config.json into the Hugging Face cache of this machine",
        )
    return note(
        DEVICE,
        message="Whether the run fits on the devices is not judged: nobody said how much memory one has.",
        fix=run.set(DEVICE, "GIB"),
    )


def _does_not_fit(run: View, now: Estimate, device: float, phase: Phase, certain: bool) -> Finding:
    def fits(then: Estimate) -> bool:
        size, upper = then.peak(phase.name)
        return (size if certain else upper) <= device

    found = memory.levers(run, now, phase.name, fits)
    largest = ", ".join(
        f"{part.name} {gib(part.size)}" + (f" (+{gib(part.uncertain)})" if part.uncertain >= 0.05 * GIB else "")
        for part in sorted(map(phase.part, memory.PARTS), key=lambda part: -part.size - part.uncertain)[:3]
    )
    moment = f", {phase.moment}" if phase.moment else ""
    size = f"takes {gib(phase.size)} GiB" if certain else f"may take {gib(phase.upper)} GiB"
    if not certain:
        size += f" ({gib(phase.size)} for sure)"
    helps = "; ".join(f"{lever.change} frees {gib(freed)} GiB" for lever, freed in found[:1])
    keys = [key for lever, _ in found for key in lever.overrides] or ["trainer.n_gpus_per_node"]
    say: Callable[..., Finding] = error if certain else warning
    return say(
        *dict.fromkeys(keys),
        message=f"The phase {phase.name}{moment} {size} of a device's {gib(device)}: {largest}. "
        f"{f'Largest lever: {helps}.' if helps else 'No setting makes it smaller: more or larger devices would.'}",
        fix=memory.typed(run, found) or f"{_pool(phase)}=NUMBER",
    )


def _pool(phase: Phase) -> str:
    """The number of accelerators that a phase's model is spread over."""
    return "distillation.n_gpus_per_node" if phase.name.startswith("teacher") else "trainer.n_gpus_per_node"


def _short(served: Served, device: float) -> bool:
    return served.utilization * device < served.weights + served.sequence_cache


def _starves(found: Estimate, phase: str) -> bool:
    """Whether server_memory tells of a phase: a server that cannot start has one finding, not two."""
    servers = (found.given.server, *found.given.teachers)
    return any(served.name == phase and _short(served, found.device or 0) for served in servers)


def _too_small(run: View, served: Served, device: float) -> Finding:
    who = "student's server" if served.at == ROLLOUT else served.name
    key = f"{served.at}.gpu_memory_utilization"
    needed = served.weights + served.sequence_cache
    fraction = next((step / 20 for step in range(1, 19) if step / 20 * device >= 1.1 * needed), None)
    split = f"{served.at}.tensor_model_parallel_size"
    return error(
        key,
        split,
        message=f"gpu_memory_utilization={served.utilization:g} gives the {who} {gib(served.utilization * device)} GiB "
        f"of a device; its weights take {gib(served.weights)} and one sequence of {served.length} tokens "
        f"{served.sequence_cache / GIB:.2f}.",
        fix=run.set(split, 2 * served.tensor) if fraction is None else run.set(key, f"{fraction:g}"),
    )

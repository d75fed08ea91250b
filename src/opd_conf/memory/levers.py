"""What would take less: settings to change, found by making the estimate again with each."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any

from opd_conf.memory.formulas import HOST, Estimate, estimated
from opd_conf.memory.hardware import GIB
from opd_conf.memory.inputs import BLOCKS, MODEL, Served, Settings
from opd_conf.view import ACTOR, ROLLOUT, View


@dataclass(frozen=True)
class Lever:
    """One setting that would take less: what to type for it, and what it changes, in words."""

    overrides: Mapping[str, str]
    change: str
    settings: Settings
    last_resort: bool = False


def relief(run: View, now: Estimate, phase: str, wanted: Callable[[Estimate], bool]) -> list[tuple[Lever, float]]:
    """Settings to change until an estimate is as wanted, and the bytes that each frees of a phase, the largest first.

    Each is the largest lever that is left, found by making the estimate again. What slows an update down a lot is taken
    only when nothing else is left, and nothing that another phase has no room for. Empty when nothing frees anything.
    """
    chosen: list[tuple[Lever, float]] = []
    while not (chosen and wanted(now)) and len(chosen) < 8:
        tried = [(lever, estimated(lever.settings)) for lever in _candidates(run, now.given, phase)]
        useful = [
            (lever, freed, then)
            for lever, then in tried
            if (freed := now.peak(phase)[1] - then.peak(phase)[1]) > 0.05 * GIB and then.strained <= now.strained
        ]
        if not useful:
            break
        lever, freed, now = max(useful, key=lambda found: (not found[0].last_resort, found[1]))
        chosen.append((lever, freed))
    return chosen


def typed(run: View, found: list[tuple[Lever, float]]) -> str:
    """What to type for levers; of two changes of one key the later counts."""
    values = {key: value for lever, _ in found for key, value in lever.overrides.items()}
    return " ".join(run.set(key, value) for key, value in values.items())


def _candidates(run: View, given: Settings, phase: str) -> Iterator[Lever]:
    for served in (given.server, *given.teachers):
        if served.name == phase:
            yield from _utilizations(given, served)
    if phase == HOST:
        yield from _off_the_host(given)
    elif not phase.startswith("teacher"):
        yield from _micro_batches(run, given, phase)
        yield from _engine_levers(given)


def _with(given: Settings, **changed: Any) -> Settings:
    return replace(given, student=replace(given.student, **changed))


def _on(given: Settings, key: str, value: str = "true", **changed: Any) -> Lever:
    """A lever of one switch."""
    return Lever({key: value}, f"{key.rpartition('.')[2]}={value}", _with(given, **changed))


def _micro_batches(run: View, given: Settings, phase: str) -> Iterator[Lever]:
    """Half of a micro-batch, at least one sequence; log-probabilities follow the update where their key does."""
    s = given.student
    if phase == "student update":
        key, prefix, at = f"{ACTOR}.ppo_max_token_len_per_gpu", "", run.micro_batch.at
    elif phase == "log-prob":
        key, prefix = f"{ROLLOUT}.log_prob_max_token_len_per_gpu", "log_prob_"
        at = run.log_prob_micro_batch.at
    else:
        return
    budget, count = getattr(s, f"{prefix}budget"), getattr(s, f"{prefix}micro_batch")
    least = ceil(s.sequence / s.sequence_parallel)
    if budget is None and count > 1:
        half = count // 2
        smaller = _with(given, **{f"{prefix}micro_batch": half})
        yield Lever({f"{at}_per_gpu": str(half)}, f"sequences a micro-batch {count} → {half}", smaller)
    elif budget is not None and budget > least:
        half = max(least, budget // 2)
        follow = {"log_prob_budget": half} if s.log_prob_budget == budget else {}
        smaller = _with(given, **{f"{prefix}budget": half} | ({} if prefix else follow))
        yield Lever({key: str(half)}, f"micro-batch tokens {budget} → {half}", smaller)


def _engine_levers(given: Settings) -> Iterator[Lever]:
    s = given.student
    block, fsdp = BLOCKS[s.engine], s.engine == "fsdp_config"
    if not s.checkpointing:
        yield _on(given, f"{MODEL}.enable_gradient_checkpointing", checkpointing=True)
    if not s.reshard:
        yield _on(given, f"{block}.reshard_after_forward", reshard=True)
    if s.no_sync:
        yield _on(given, f"{block}.use_no_sync_for_gradient_accumulation", "false", no_sync=False)
    if s.offload_policy:
        return
    if not s.param_offload:
        yield _on(given, f"{block}.param_offload", param_offload=True)
    if not s.optimizer_offload and (fsdp or s.param_offload):  # VeOmni refuses this one alone
        yield _on(given, f"{block}.optimizer_offload", optimizer_offload=True)
    yield _offload_policy(given)


def _off_the_host(given: Settings) -> Iterator[Lever]:
    """Back onto the device, where it has room."""
    s = given.student
    block, fsdp = BLOCKS[s.engine], s.engine == "fsdp_config"
    if s.optimizer_offload:
        yield _on(given, f"{block}.optimizer_offload", "false", optimizer_offload=False)
    if s.param_offload and (fsdp or not s.optimizer_offload):
        yield _on(given, f"{block}.param_offload", "false", param_offload=False)
    if s.offload_policy:
        yield _on(
            given, f"{block}.{'offload_policy' if fsdp else 'enable_fsdp_offload'}", "false", offload_policy=False
        )


def _offload_policy(given: Settings) -> Lever:
    """Everything on the host: measured, an update then takes 6 to 9 times as long."""
    block, fsdp = BLOCKS[given.student.engine], given.student.engine == "fsdp_config"
    changed = _with(given, offload_policy=True, param_offload=False, optimizer_offload=False)
    if fsdp:
        return Lever({f"{block}.offload_policy": "true"}, "offload_policy=true", changed, last_resort=True)
    overrides = {"enable_fsdp_offload": "true", "param_offload": "false", "optimizer_offload": "false"}
    keys = {f"{block}.{key}": value for key, value in overrides.items()}
    return Lever(keys, "enable_fsdp_offload=true", changed, last_resort=True)


def _utilizations(given: Settings, served: Served) -> Iterator[Lever]:
    """The largest fraction, in steps of 0.05, that fits beside the rest and holds the weights and one sequence."""
    if given.device is None:
        return
    device = given.device.size
    mine = estimated(given).peak(served.name)[1]
    fitting = served.utilization - max(0.0, mine - device) / device
    fraction = floor(round(fitting * 20, 6)) / 20
    if fraction < served.utilization and fraction * device >= served.weights + served.sequence_cache:
        changed = replace(served, utilization=fraction)
        yield Lever(
            {f"{served.at}.gpu_memory_utilization": f"{fraction:g}"},
            f"gpu_memory_utilization {served.utilization:g} → {fraction:g}",
            _replaced(given, served, changed),
        )


def _replaced(given: Settings, old: Served, new: Served) -> Settings:
    if given.server == old:
        return replace(given, server=new)
    return replace(given, teachers=tuple(new if teacher == old else teacher for teacher in given.teachers))

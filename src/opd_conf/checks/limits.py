"""Bounds of single values that verl's dataclasses assert: of profilers, servers, engines, and of what is skipped."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from opd_conf.checks.finding import Finding, error
from opd_conf.view import ACTOR, REF, ROLLOUT, Server, View

MODEL = "actor_rollout_ref.model"
Test = Callable[[object], bool]


@dataclass(frozen=True)
class Limit:
    """A key, what its value must be, in code and in words, and a value that is right."""

    key: str
    holds: Test
    wanted: str
    right: object


def value_allowed(run: View) -> Iterator[Finding]:
    """A value lies within the bounds that verl's dataclasses assert.

    verl: utils/profiler/config.py, workers/config/*.py and utils/skip/config.py, each class's __post_init__.
    """
    seen: set[str] = set()
    for limit in _limits(run):
        key = run.origin(limit.key)
        if key in seen or not run.has(key):
            continue
        seen.add(key)
        value = run.setting(key)
        if not limit.holds(value):
            shown = "null" if value is None else value
            yield error(key, message=f"{key} is {shown}; verl takes {limit.wanted}.", fix=run.set(key, limit.right))


def profiled_tokens_in_order(run: View) -> Iterator[Finding]:
    """A profiler stops at a later token than it starts.

    verl: utils/profiler/config.py:TorchProfilerToolConfig.__post_init__ and :NPUToolConfig.__post_init__.
    """
    for at in _profilers(run):
        for tool in ("torch", "npu"):
            start, end = (f"{at}.tool_config.{tool}.profile_token_{side}" for side in ("start", "end"))
            first, last = run.setting(start), run.setting(end)
            if first is not None and last is not None and last <= first:
                yield error(
                    end,
                    start,
                    message=f"{end} is {last}, and it starts at {first}.",
                    fix=run.set(end, None),
                )


def _limits(run: View) -> Iterator[Limit]:
    for at in _profilers(run):
        yield from _profiler(at)
    for server in (run.rollout, *run.teachers):
        yield from _server(run, server)
    yield from _lora(run)
    yield Limit(f"{MODEL}.target_modules", _modules, "a name or a list of names", "all-linear")
    for worker in _workers(run):
        yield from _engine(worker)
    for part in ("rollout", "rollout_tq", "async_rollout"):
        yield _one_of(f"skip.{part}.action", "cache", "repeat")


def _profilers(run: View) -> list[str]:
    """Blocks from which verl builds a profiler, whatever tool is chosen, and when none is."""
    return [f"{worker}.profiler" for worker in (*_workers(run), ROLLOUT)]


def _workers(run: View) -> list[str]:
    """Blocks from which verl builds an engine."""
    return [ACTOR] if run.ref_micro_batch is None else [ACTOR, REF]


def _engine(worker: str) -> Iterator[Limit]:
    """workers/config/engine.py; `strategy` is checked there, though that of the worker then takes its place."""
    strategies = {"fsdp_config": ("fsdp2", "fsdp", "fsdp_turbo"), "veomni": ("veomni",)}
    for block, names in strategies.items():
        yield _one_of(f"{worker}.{block}.strategy", *names)
        yield _one_of(f"{worker}.{block}.router_replay.mode", "disabled", "R2", "R3")
    cache = f"{worker}.veomni.activation_offload_host_cache_limit_gb"
    yield Limit(cache, _at_least(0), "at least 0", 4.0)


def _profiler(at: str) -> Iterator[Limit]:
    tools = f"{at}.tool_config"
    for name in ("ranks", "finish_hook_ranks"):
        yield Limit(f"{at}.{name}", _all(object), "a list", "[]")
    for name, right in {"trace_alloc_max_entries": 100000, "stack_depth": 32, "memory_snapshot_num_steps": 1}.items():
        yield Limit(f"{tools}.torch_memory.{name}", _at_least(1), "at least 1", right)
    for name in ("skip_first", "wait", "warmup", "active", "repeat"):
        yield Limit(f"{tools}.torch.schedule.{name}", _at_least(0), "at least 0", 0)
    contents = {
        "torch": ("cuda", "cpu", "memory", "shapes", "stack"),
        "npu": ("npu", "cpu", "memory", "shapes", "module", "stack"),
    }
    for tool, names in contents.items():
        yield Limit(f"{tools}.{tool}.contents", _all(str, names), f"a list of {', '.join(names)}", "[]")
        for side in ("start", "end"):
            yield Limit(f"{tools}.{tool}.profile_token_{side}", _null_or(_at_least(0)), "null or at least 0", None)
    yield _one_of(f"{tools}.npu.level", "level0", "level1", "level2", "level_none")


def _server(run: View, server: Server) -> Iterator[Limit]:
    at = server.at
    yield Limit(f"{at}.trace.max_samples_per_step_per_worker", _null_or(_at_least(0)), "null or at least 0", None)
    if at != ROLLOUT:  # the student's is one of checks/choices.py
        yield Limit(f"{at}.mode", lambda value: value != "sync", "async", "async")
    if server.backend != "trtllm":
        experts = f"{at}.moe_tensor_parallel_size"
        yield Limit(experts, _null_or(lambda value: not _at_least(2)(value)), f"1 with {server.backend}", 1)
    apart = f"{at}.disaggregation"
    if not run.setting(f"{apart}.enabled"):
        return
    yield Limit(
        f"{apart}.enabled", lambda _: server.backend in ("sglang", "vllm"), f"false with {server.backend}", False
    )
    yield _one_of(f"{apart}.transfer_backend", "nixl", "mooncake", "ascend", "mori", "fake")
    yield Limit(f"{apart}.prefill_replicas", _at_least(1), "at least 1", 1)
    yield Limit(f"{apart}.decode_replicas", _at_least(1), "at least 1", 1)
    port = _null_or(lambda value: 0 < _number(value) < 65536)
    yield Limit(f"{apart}.bootstrap_port", port, "null or a port", None)
    if run.setting(f"{apart}.transfer_backend") == "mooncake":
        yield _one_of(f"{apart}.mooncake_protocol", "nvlink", "local", "rdma", "tcp")


def _lora(run: View) -> Iterator[Limit]:
    """vLLM's largest rank: utils/config.py:validate_config, with vllm's config/lora.py:MaxLoRARanks."""
    largest, merged = 512, run.setting(f"{MODEL}.lora.merge")
    if run.rollout.backend == "vllm" and not merged:
        megatron = f"{MODEL}.lora.rank"
        key = megatron if _at_least(1)(run.setting(megatron)) else f"{MODEL}.lora_rank"
        yield Limit(key, lambda value: _number(value) <= largest, f"at most {largest} with vLLM", largest)


def _one_of(key: str, *names: str) -> Limit:
    return Limit(key, lambda value: value in names, " or ".join(names), names[0])


def _number(value: object) -> float:
    """A value as a number; below all others when it is none, or no finite one."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else -math.inf


def _at_least(least: int) -> Test:
    return lambda value: _number(value) >= least


def _null_or(test: Test) -> Test:
    return lambda value: value is None or test(value)


def _all(kind: type, names: tuple[str, ...] = ()) -> Test:
    """Whether a value is a list, of one kind, and out of names where there are some."""
    return lambda value: (
        isinstance(value, list) and all(isinstance(item, kind) and (not names or item in names) for item in value)
    )


def _modules(value: object) -> bool:
    return value is None or isinstance(value, str) or _all(str)(value)

"""Who trains the student, and how the student's accelerators share the work."""

from collections.abc import Iterator

from opd_conf.checks.finding import Finding, error
from opd_conf.mistakes import nearest
from opd_conf.view import ACTOR, View, is_qwen3_5, largest_divisor

STRATEGIES = {
    "fsdp_config": ("fsdp2", "fsdp", "fsdp_turbo"),
    "veomni": ("veomni",),
    "megatron": ("megatron",),
    "torchtitan": ("torchtitan",),
}
"""What trains, by the block below `actor` whose settings it reads (the engines' registrations in workers/engine/*)."""

ULYSSES = {
    "fsdp_config": f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
    "veomni": f"{ACTOR}.veomni.ulysses_parallel_size",
}


def strategy_known(run: View) -> Iterator[Finding]:
    """actor.strategy is one that fits the engine's settings; verl looks at it once accelerators are claimed.

    verl: workers/engine/base.py:EngineRegistry.get_engine_cls.
    """
    known = STRATEGIES[run.engine]
    if run.strategy in known:
        return
    other = next(
        (f"; engine={group} brings its settings" for group in ("veomni", "megatron") if run.strategy == group), ""
    )
    yield error(
        f"{ACTOR}.strategy",
        message=f"actor.strategy is {run.strategy}; with actor.{run.engine} it can be {' or '.join(known)}{other}.",
        fix=f"{ACTOR}.strategy={(nearest(run.strategy, known) or known)[0]}",
    )


def fsdp2_on(run: View) -> Iterator[Finding]:
    """FSDP2 is what runs: actor.strategy decides, fsdp_config.strategy does not.

    verl: workers/config/actor.py:FSDPActorConfig.__post_init__.
    """
    if run.strategy == "fsdp":
        yield error(
            f"{ACTOR}.strategy",
            f"{ACTOR}.fsdp_config.strategy",
            message="FSDP1 would run: actor.strategy is fsdp, and fsdp_config.strategy does not count.",
            fix=f"{ACTOR}.strategy=fsdp2",
        )


def ulysses_divides_world(run: View) -> Iterator[Finding]:
    """Ranks that share a sequence divide the student's accelerators.

    verl: workers/engine/fsdp/transformer_impl.py and .../veomni/transformer_impl.py, the device mesh.
    """
    shared, world = run.sequence_parallel, run.student_world
    if run.engine in ULYSSES and world % shared:
        old = f"{ACTOR}.ulysses_sequence_parallel_size"
        key = old if run.engine == "fsdp_config" and _deprecated(run, old) else ULYSSES[run.engine]
        yield error(
            key,
            "trainer.n_gpus_per_node",
            message=f"{shared} ranks are to share a sequence, and the student has {world} accelerators.",
            fix=f"{key}={largest_divisor(world, shared)}",
        )


def qwen3_5_on_veomni(run: View) -> Iterator[Finding]:
    """Qwen3.5 is trained with FSDP2 on NPUs: VeOmni 0.1.11 has no kernels for its linear attention there.

    verl: workers/config/engine.py:VeOmniEngineConfig.
    """
    if run.platform != "npu" or run.engine != "veomni":
        return
    path = run.student_path or ""
    if is_qwen3_5(path):
        yield error(
            "engine",
            "actor_rollout_ref.model.path",
            message=f"{path} cannot be trained with VeOmni on an NPU: no kernels for its linear attention.",
            fix="engine=fsdp2",
        )


def _deprecated(run: View, key: str) -> bool:
    """Whether the deprecated key is the one that counts: it does when above 1."""
    return run.has(key) and run.values.config.actor_rollout_ref.actor.ulysses_sequence_parallel_size > 1

"""Who trains the student, and how the student's accelerators share the work."""

from collections.abc import Iterator

from opd_conf.checks.finding import Finding, error
from opd_conf.names import nearest
from opd_conf.view import ACTOR, REF, View, largest_divisor

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

PACKED = "actor_rollout_ref.model.use_remove_padding"


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


def shards_divide_ranks(run: View) -> Iterator[Finding]:
    """Ranks that hold a model between them are -1 (all), or divide the ranks that are to be shared out.

    verl: workers/engine/fsdp/utils.py:create_device_mesh, workers/engine/veomni/transformer_impl.py.
    """
    key = f"{ACTOR}.{run.engine}.fsdp_size"
    size = run.number(key, -1)
    ranks = run.data_parallel if run.engine == "veomni" else run.student_world
    if run.engine in ULYSSES and (size == 0 or (0 < size < ranks and ranks % size)):
        yield error(
            key,
            "trainer.n_gpus_per_node",
            message=f"{key} is {size}, and {ranks} ranks cannot be divided by it.",
            fix=f"{key}={largest_divisor(ranks, size) if size else -1}",
        )


def packed_when_shared(run: View) -> Iterator[Finding]:
    """Sequences that ranks share are packed (use_remove_padding).

    verl: workers/engine/fsdp/transformer_impl.py:FSDPEngine.__init__; VeOmni's engine shares out packed ones only.
    """
    if run.engine in ULYSSES and run.sequence_parallel > 1 and run.setting(PACKED) is not True:
        yield error(
            PACKED,
            ULYSSES[run.engine],
            message=f"{run.sequence_parallel} ranks are to share a sequence, which takes packed sequences, and "
            "use_remove_padding is false.",
            fix=f"{PACKED}=true",
        )


def top_k_unpadded(run: View) -> Iterator[Finding]:
    """With a top-k loss, packed sequences are not padded to a fixed length.

    verl: workers/engine/fsdp/transformer_impl.py:FSDPEngineWithLMHead.prepare_model_inputs, for VeOmni too.
    """
    key = f"{ACTOR}.{run.engine}.pad_to_length"
    if run.engine in ULYSSES and run.uses_top_k and run.setting(key) is True:
        typed = f"{ACTOR}.pad_to_length" if run.follows(key) else key
        yield error(
            typed,
            message="pad_to_length and forward_kl_topk exclude each other: a RuntimeError at the first update.",
            fix=f"{typed}=false",
        )


def replay_packed(run: View) -> Iterator[Finding]:
    """VeOmni replays the routes of experts for packed sequences only.

    verl: workers/config/actor.py:VeOmniActorConfig.__post_init__.
    """
    for worker in (ACTOR, REF) if run.engine == "veomni" else ():
        key, packed = f"{worker}.veomni.router_replay.mode", run.origin(f"{worker}.use_remove_padding")
        built = worker == ACTOR or run.ref_micro_batch is not None
        if built and run.setting(key) in ("R2", "R3") and run.setting(packed) is not True:
            yield error(
                key,
                packed,
                message=f"{key} is {run.setting(key)}, and sequences are not packed ({packed}).",
                fix=run.set(key, "disabled"),
            )


def replay_records(run: View) -> Iterator[Finding]:
    """Replay R2 records routes in a forward pass that bypass_mode leaves out.

    verl: utils/config.py:_validate_router_replay_config.
    """
    key, bypass = f"{ACTOR}.{run.engine}.router_replay.mode", "algorithm.rollout_correction.bypass_mode"
    if run.setting(key) == "R2" and run.setting(bypass):
        yield error(
            key,
            bypass,
            message=f"{key} is R2, which records routes in the pass that bypass_mode leaves out.",
            fix=f"{bypass}=false",
        )


def _deprecated(run: View, key: str) -> bool:
    """Whether the deprecated key is the one that counts: it does when above 1."""
    return run.has(key) and run.values.config.actor_rollout_ref.actor.ulysses_sequence_parallel_size > 1

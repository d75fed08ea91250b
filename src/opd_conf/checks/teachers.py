"""The teachers: which ones verl starts, how many replicas, with which weights, and whether a sequence fits."""

import math
from collections.abc import Iterator

from opd_conf.checks.finding import Finding, error, warning
from opd_conf.checks.rollout import BACKENDS
from opd_conf.names import nearest
from opd_conf.view import TEACHERS, Teacher, View, largest_divisor

POOL = ("distillation.nnodes", "distillation.n_gpus_per_node")
PARALLEL = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")


def teacher_dropped(run: View) -> Iterator[Finding]:
    """`teacher_model` does not stand beside teachers with other names: verl drops it.

    verl: workers/config/distillation.py:_resolve_teacher_models.
    """
    if run.dropped_teacher is not None:
        others = ", ".join(teacher.entry for teacher in run.teachers)
        yield error(
            f"{TEACHERS}.teacher_model",
            *(teacher.prefix for teacher in run.teachers),
            message=f"verl drops teacher_model ({run.dropped_teacher}) silently when there are others ({others}). "
            "Leave it out (~teacher), or give it a name too (+teacher@distillation.teacher_models.NAME=…).",
            fix=f"{TEACHERS}.teacher_model.model_path=null",
        )


def teacher_model_path(run: View) -> Iterator[Finding]:
    """Every teacher has a model.

    verl: workers/config/distillation.py:check_configured.
    """
    for teacher in run.teachers:
        if teacher.model_path is None:
            key = f"{teacher.prefix}.model_path"
            yield error(key, message=f"Teacher {teacher.entry} has no model.", fix=run.set(key, "PATH_OR_NAME"))


def teacher_load_format(run: View) -> Iterator[Finding]:
    """Every teacher loads its weights; verl's default for one added by name is `dummy`, random weights.

    verl: workers/config/rollout.py:RolloutConfig.load_format.
    """
    for teacher in run.teachers:
        if teacher.load_format == "dummy":
            key = f"{teacher.at}.load_format"
            origin = "is set to dummy" if run.has(key) else "is not set, and verl's default is dummy"
            yield error(
                key,
                message=f"Teacher {teacher.entry} would have random weights, silently: load_format {origin}.",
                fix=run.set(key, "auto"),
            )


def teacher_backend(run: View) -> Iterator[Finding]:
    """Every teacher says who serves it.

    verl: workers/rollout/replica.py:get_rollout_replica_class.
    """
    for teacher in run.teachers:
        if teacher.backend not in BACKENDS:
            guess = nearest(teacher.backend or "", BACKENDS) or [run.rollout.backend or "vllm"]
            yield error(
                f"{teacher.at}.name",
                message=f"Teacher {teacher.entry} is to be served by {teacher.backend or 'nothing'}; verl has "
                f"{', '.join(BACKENDS)}.",
                fix=run.set(f"{teacher.at}.name", guess[0]),
            )


def teacher_key(run: View) -> Iterator[Finding]:
    """Teachers added by name have keys, each its own.

    verl: workers/config/distillation.py:check_configured and :_resolve_teacher_models.
    """
    seen: dict[str, str] = {}
    for teacher in run.teachers if run.named_teachers else ():
        key = f"{teacher.prefix}.key"
        if teacher.key is None:
            problem, keys = f"Teacher {teacher.entry} has no key", [key]
        elif teacher.key in seen:
            problem = f"Teachers {seen[teacher.key]} and {teacher.entry} have the same key, {teacher.key}"
            keys = [key, f"{TEACHERS}.{seen[teacher.key]}.key"]
        else:
            seen[teacher.key] = teacher.entry
            continue
        yield error(
            *keys,
            message=f"{problem}; it names the rows (by the column distillation.teacher_key) that are its own.",
            fix=run.set(key, "VALUE_IN_THE_DATA"),
        )


def teacher_lengths(run: View) -> Iterator[Finding]:
    """Teachers added by name know the data's lengths, with which verl checks their context.

    verl: workers/config/distillation.py:validate_and_prepare_for_distillation.
    """
    wanted = {"prompt_length": run.prompt_length, "response_length": run.response_length}
    for teacher in run.teachers if run.named_teachers else ():
        found = {"prompt_length": teacher.prompt_length, "response_length": teacher.response_length}
        if found != wanted:
            yield warning(
                *(f"{teacher.at}.{name}" for name in wanted if found[name] != wanted[name]),
                message=f"Teacher {teacher.entry} has lengths of {teacher.prompt_length} + {teacher.response_length} "
                f"tokens, and the data has {run.prompt_length} + {run.response_length}: verl checks its context for "
                f"{teacher.prompt_length + teacher.response_length + 1} instead of {run.sequence_length + 1}.",
                fix=" ".join(
                    run.set(f"{teacher.at}.{name}", size) for name, size in wanted.items() if found[name] != size
                ),
            )


def teacher_context(run: View) -> Iterator[Finding]:
    """Every teacher has room for prompt, response and the one token that it must generate.

    verl: workers/config/distillation.py:validate_and_prepare_for_distillation, for the teacher's own lengths.
    """
    for teacher in run.teachers:
        told = teacher.prompt_length + teacher.response_length
        needed = max(run.sequence_length, told) + 1
        if teacher.max_model_len is not None and teacher.max_model_len < needed:
            key = f"{teacher.at}.max_model_len"
            if told <= run.sequence_length:
                lengths = f"{run.prompt_length} + {run.response_length}"
                at = ("data.max_prompt_length", "data.max_response_length")
            else:
                lengths = f"{teacher.prompt_length} + {teacher.response_length} (its prompt_length and response_length)"
                at = (f"{teacher.at}.prompt_length", f"{teacher.at}.response_length")
            yield error(
                key,
                *at,
                message=f"Teacher {teacher.entry} holds {teacher.max_model_len} tokens and needs {lengths} + 1 = "
                f"{needed}: longer sequences fail one by one, and only the log says so.",
                fix=run.set(key, needed),
            )


def teacher_divides_pool(run: View) -> Iterator[Finding]:
    """A single teacher's replica divides the teacher pool.

    verl: workers/config/distillation.py:_resolve_teacher_models.
    """
    for teacher in () if run.named_teachers else run.teachers:
        if run.teacher_pool % teacher.accelerators:
            yield error(
                *(f"{teacher.at}.{name}" for name in PARALLEL),
                *POOL,
                message=f"A replica of the teacher takes {teacher.sizes} accelerators, which do not divide the teacher "
                f"pool of {run.teacher_nodes} x {run.teacher_per_node} = {run.teacher_pool}.",
                fix=_smaller(run, teacher),
            )


def teachers_fill_pool(run: View) -> Iterator[Finding]:
    """Several teachers use the teacher pool up exactly.

    verl: workers/config/distillation.py:DistillationConfig.__post_init__.
    """
    used = sum(teacher.num_replicas * teacher.accelerators for teacher in run.teachers)
    if not run.named_teachers or used == run.teacher_pool:
        return
    parts = " + ".join(f"{teacher.entry} {teacher.num_replicas} x {teacher.accelerators}" for teacher in run.teachers)
    yield error(
        *(f"{teacher.prefix}.num_replicas" for teacher in run.teachers),
        *(f"{teacher.at}.{name}" for teacher in run.teachers for name in PARALLEL),
        *POOL,
        message=f"The teachers take {parts} = {used} accelerators (replicas x size of one), and the teacher pool has "
        f"{run.teacher_nodes} x {run.teacher_per_node} = {run.teacher_pool}; verl wants them equal.",
        fix=_filling(run),
    )


def _smaller(run: View, teacher: Teacher) -> str:
    """A tensor-parallel size that divides the pool; data and pipeline sizes go when they are in the way."""
    others = teacher.data_parallel * teacher.pipeline_parallel
    fits = run.teacher_pool % others == 0
    tensor = largest_divisor(run.teacher_pool // others if fits else run.teacher_pool, teacher.tensor_parallel)
    sizes = {PARALLEL[0]: tensor}
    sizes |= {} if fits else {PARALLEL[1]: 1, PARALLEL[2]: 1}
    if teacher.expert_parallel > 1:
        sizes["expert_parallel_size"] = tensor * (teacher.data_parallel if fits else 1)
    return " ".join(run.set(f"{teacher.at}.{name}", size) for name, size in sizes.items())


def _filling(run: View) -> str:
    """Replicas that fill the pool, the same number of each teacher; else a pool for one replica of each."""
    once = sum(teacher.accelerators for teacher in run.teachers)
    replicas = max(1, run.teacher_pool // once)
    typed = [run.set(f"{teacher.prefix}.num_replicas", replicas) for teacher in run.teachers]
    total = replicas * once
    if total != run.teacher_pool:
        fewest = math.ceil(total / run.cluster_per_node)
        nodes = next(count for count in range(fewest, total + 1) if total % count == 0)
        typed += [f"distillation.nnodes={nodes}", f"distillation.n_gpus_per_node={total // nodes}"]
    return " ".join(typed)

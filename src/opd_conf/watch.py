"""Watches a run's metrics while it trains: what is almost surely not meant, each said once.

A concern is a function of the steps so far and of what was asked for; its name is its id. Thresholds are such that no
run that works is doubted. Metric names and what they count are those of verl 0.9.1.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from opd_conf import metrics, model_files, models
from opd_conf.handoff import Handoff
from opd_conf.metrics import Step

ABS_LOSS, TEACHER_MASS = "actor/distillation/abs_loss", "actor/distillation/teacher_mass"
TEACHER_MASS_MIN, ENTROPY = "actor/distillation/teacher_mass_min", "actor/entropy"
GRADIENT, RATE = "actor/grad_norm", "actor/lr"
CUT, LONGEST = "response_length_non_aborted/clip_ratio", "response_length/max"
PROMPT, RESPONSE = "prompt_length/mean", "response_length/mean"
REPLACED = "training/rollout_failure/evicted_samples"
WATCHED = (
    *(*metrics.LOSSES, TEACHER_MASS, TEACHER_MASS_MIN, ENTROPY, GRADIENT, RATE),
    *(CUT, LONGEST, PROMPT, RESPONSE, REPLACED, metrics.TOKENS),
)

EARLY = 3  # steps in which random weights of a teacher must show; later a student may have broken by itself
CLEAR_GAP = 5.0  # nats: no trained teacher is this far from a student's own tokens on average
CLEAR_MASS = 0.1  # a trained teacher's best tokens hold more than this
IN_A_ROW = 3  # steps, before something that can happen once is a concern
STILL_STEPS, STILL_CHANGE = 100, 0.02  # a loss that stays within 2 % for so many steps at the full learning rate
PADDING_TOKENS = 128  # verl: trainer/ppo/padding_utils.py:SYNTHETIC_PADDING_SEQ_LEN


@dataclass(frozen=True)
class Concern:
    """What is wrong at a step, with the numbers, and what to try."""

    id: str
    step: int
    message: str
    try_: str

    def as_dict(self) -> dict[str, Any]:
        """As it is kept in status.json."""
        return {"id": self.id, "step": self.step, "message": self.message, "try": self.try_}


@dataclass(frozen=True)
class Asked:
    """What was asked of a run. Lengths in tokens; None: not known, or of no meaning in this run.

    `vocabulary`: rows of the teachers' embedding, else of the student's. `samples` in a step, in multiples of
    `mini_batch`, when verl pads to that. `dummy`: the teachers' overrides that give them weights.
    """

    folder: Path
    loss_mode: str
    topk: int | None
    vocabulary: int | None
    teachers: int
    dummy: tuple[str, ...]
    entropy_per_token: bool
    response_length: int | None
    samples: int | None
    mini_batch: int
    learning_rate: float
    only_teacher: bool


Doubt: TypeAlias = tuple[str, str] | None
"""A message and what to try."""


def random_teacher(steps: Sequence[Step], asked: Asked) -> Doubt:
    """The teacher knows something about the student's tokens.

    A teacher with random weights gives each of V tokens a probability near 1/V. Its k best tokens then hold k/V; its
    log-probability of a sampled token is -ln V, and the student's is minus its entropy on average. verl's servers leave
    out rows that the tokenizer has no token for, so the true V is a little smaller than the embedding, which errs
    towards silence (verl: workers/rollout/vllm_rollout/utils.py:monkey_patch_compute_logits).
    """
    doubt = _random_mass(steps[-1], asked) or (_random_distance(steps[-1], asked) if len(steps) <= EARLY else None)
    if doubt is None:
        return None
    if asked.dummy:
        return f"{doubt} load_format=dummy, verl's default for a named teacher, loads none.", " ".join(asked.dummy)
    fix = "look whether the teacher's model_path holds trained weights and has the student's tokenizer"
    return f"{doubt} It looks like random weights, or like another tokenizer.", fix


def _random_mass(step: Step, asked: Asked) -> str | None:
    """verl: trainer/distillation/losses.py:compute_forward_kl_topk."""
    if asked.topk is None or asked.vocabulary is None or 10 * asked.topk / asked.vocabulary > CLEAR_MASS:
        return None
    random = asked.topk / asked.vocabulary
    mass, least = _number(step, TEACHER_MASS), _number(step, TEACHER_MASS_MIN)
    of = f"{asked.topk} of {asked.vocabulary} tokens drawn at random hold {random:.2g}"
    if mass is not None and mass < 10 * random:
        return f"The teacher's {asked.topk} best tokens hold {mass:.2g} of its probability (teacher_mass); {of}."
    if asked.teachers > 1 and least is not None and least < 2 * random:
        return f"One of {asked.teachers} teachers gives its best tokens only {least:.2g} (teacher_mass_min); {of}."
    return None


def _random_distance(step: Step, asked: Asked) -> str | None:
    """verl: trainer/distillation/losses.py:compute_distillation_loss_reverse_kl_estimator."""
    loss, entropy = _number(step, ABS_LOSS), _number(step, ENTROPY)
    if loss is None or entropy is None or asked.vocabulary is None or not asked.entropy_per_token:
        return None
    gap = math.log(asked.vocabulary) - entropy
    if gap < CLEAR_GAP or loss < 0.9 * _estimate(gap, asked.loss_mode):
        return None
    return (
        f"The distance to the teacher (abs_loss) is {loss:.3g}; to a teacher that finds all {asked.vocabulary} tokens "
        f"equally likely it would be near {_estimate(gap, asked.loss_mode):.3g} (ln V - the student's entropy is "
        f"{gap:.3g})."
    )


def _estimate(gap: float, loss_mode: str) -> float:
    """What a log-ratio becomes in an estimator (verl: trainer/ppo/core_algos.py:kl_penalty_forward)."""
    if loss_mode in ("k2", "mse"):
        return gap * gap / 2
    if loss_mode in ("k3", "low_var_kl"):
        return min(10.0, math.exp(-gap) + gap - 1)
    return gap


def not_finite(steps: Sequence[Step], asked: Asked) -> Doubt:
    """Losses and the gradient are numbers (the file logger writes null for NaN and infinity).

    verl: utils/tracking.py:FileLogger; workers/engine/fsdp/transformer_impl.py:optimizer_step.
    """
    names = [name for name in (*metrics.LOSSES, GRADIENT) if _broken(steps[-1], name)]
    if not names:
        return None
    return (
        f"{', '.join(names)} not finite (NaN or infinite). verl skips an update whose gradient is not finite: the "
        "student does not learn from it.",
        f"actor_rollout_ref.actor.optim.lr={asked.learning_rate / 2:g}",
    )


def responses_cut(steps: Sequence[Step], asked: Asked) -> Doubt:
    """Some responses end by themselves.

    verl's clip_ratio is the share of responses that are as long as the longest one, whatever the limit is:
    trainer/ppo/metric_utils.py:compute_data_metrics.
    """
    limit, last = asked.response_length, steps[-IN_A_ROW:]
    if limit is None or len(last) < IN_A_ROW:
        return None
    if any((_number(step, LONGEST) or 0) < limit or (_number(step, CUT) or 0) < 0.95 for step in last):
        return None
    share = min(_number(step, CUT) or 0 for step in last)
    return (
        f"{'All' if share == 1 else f'At least {share:.0%} of the'} responses were cut at the limit of {limit} tokens, "
        f"{IN_A_ROW} steps in a row: the student is hardly ever taught where to end.",
        f"data.max_response_length={2 * limit}",
    )


def samples_failing(steps: Sequence[Step], asked: Asked) -> Doubt:
    """Every sample is trained on: none fails and is replaced, by padding or by another.

    verl: trainer/ppo/v1/agent_loop_tq.py:_run_prompt, replay_buffer.py:_evict_terminal_groups.
    """
    replaced = _number(steps[-1], REPLACED) or 0
    look = f"grep -A 20 'Error in _run_prompt' '{asked.folder / 'train.log'}'"
    if replaced > 0:
        return f"{replaced:.0f} groups of samples failed and were sampled again.", look
    real = _real_samples(steps[-1], asked)
    if real is None or real == asked.samples:
        return None
    return f"{(asked.samples or 0) - real} of {asked.samples} samples failed; padding took their place.", look


def _real_samples(step: Step, asked: Asked) -> int | None:
    """Samples that are no padding, None where it cannot be told: tokens are counted with padding, lengths without.

    verl: trainer/ppo/v1/trainer_base.py:_balance_batch and :_compute_metrics.
    """
    tokens, prompt, response = (_number(step, name) for name in (metrics.TOKENS, PROMPT, RESPONSE))
    if asked.samples is None or tokens is None or prompt is None or response is None:
        return None
    rounding = 1 + 1e-6 * tokens  # the means are of single precision
    for real in range(asked.samples, 0, -1):
        padding = -real % asked.mini_batch
        if abs(real * (prompt + response) + padding * PADDING_TOKENS - tokens) <= rounding:
            return real
    return None


def no_gradient(steps: Sequence[Step], asked: Asked) -> Doubt:
    """The loss has a gradient."""
    last = steps[-IN_A_ROW:]
    if len(last) < IN_A_ROW or any(_number(step, GRADIENT) != 0 for step in last):
        return None
    return (
        f"The gradient is exactly 0, {IN_A_ROW} steps in a row: the student learns nothing. A loss that is clamped "
        "everywhere has none.",
        "distillation.distillation_loss.loss_max_clamp=null",
    )


def loss_stands_still(steps: Sequence[Step], asked: Asked) -> Doubt:
    """The loss moves, at some time after the learning rate has reached its peak."""
    if not asked.only_teacher or len(steps) % STILL_STEPS:
        return None
    rates = [_number(step, RATE) or 0 for step in steps]
    losses = [step.loss for step in steps[rates.index(max(rates)) :] if step.loss is not None]
    if len(losses) < STILL_STEPS:
        return None
    part = STILL_STEPS // 5
    first, rest = sum(losses[:part]) / part, losses[part:]
    quarter = len(rest) // 4
    later = [sum(rest[at * quarter : (at + 1) * quarter]) / quarter for at in range(4)]
    if any(abs(mean - first) > STILL_CHANGE * abs(first) for mean in later):
        return None
    return (
        f"The loss has not moved in {len(losses)} steps: {first:.4g} at first, {later[-1]:.4g} now "
        f"(means of {part} and {quarter} steps). Nothing to learn, or too small a learning rate ({max(rates):g}).",
        f"actor_rollout_ref.actor.optim.lr={3 * asked.learning_rate:g}",
    )


CONCERNS: tuple[Callable[[Sequence[Step], Asked], Doubt], ...] = (
    random_teacher,
    not_finite,
    responses_cut,
    samples_failing,
    no_gradient,
    loss_stands_still,
)


class Watch:
    """Says each concern once. It keeps only what is watched of a step."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.steps: list[Step] = []
        self.told: list[Concern] = []

    def new(self, step: Step) -> Iterator[Concern]:
        """The concerns that this step gives rise to and that were not told before."""
        watched = {name: step.values[name] for name in WATCHED if name in step.values}
        self.steps.append(Step(step.number, watched))
        for concern in CONCERNS:
            if concern.__name__ in {told.id for told in self.told}:
                continue
            if doubt := concern(self.steps, self.asked):
                self.told.append(Concern(concern.__name__, step.number, *doubt))
                yield self.told[-1]


def asked_of(run: Handoff) -> Asked:
    """What was asked of a run, from what verl is given. A key that another tree of verl lacks silences its concerns."""

    def value(key: str) -> Any:
        node: Any = run.verl
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return node

    def size(key: str) -> int | None:
        found = value(key)
        return found if isinstance(found, int) and found > 0 else None

    teachers = _teachers(value("distillation.teacher_models") or {})
    mode, rate = value("distillation.distillation_loss.loss_mode"), value("actor_rollout_ref.actor.optim.lr")
    batch, mini = size("data.train_batch_size"), size("actor_rollout_ref.actor.ppo_mini_batch_size")
    answers = size("actor_rollout_ref.rollout.n") or 1
    padded = value("trainer.v1.trainer_mode") == "sync" and batch and mini
    return Asked(
        folder=run.folder,
        loss_mode=str(mode),
        topk=size("distillation.distillation_loss.topk") if mode == "forward_kl_topk" else None,
        vocabulary=_vocabulary(value("actor_rollout_ref.model.path"), teachers, {**os.environ, **run.environment}),
        teachers=len(teachers),
        dummy=tuple(_weights(name, teacher) for name, teacher in teachers.items() if _is_dummy(teacher)),
        entropy_per_token=value("actor_rollout_ref.actor.loss_agg_mode") in ("token-mean", "seq-mean-token-mean"),
        response_length=None if value("actor_rollout_ref.rollout.ignore_eos") else size("data.max_response_length"),
        samples=batch * answers if batch and padded else None,
        mini_batch=(mini or 1) * answers,
        learning_rate=float(rate) if isinstance(rate, int | float) else 0.0,
        only_teacher=not value("distillation.distillation_loss.use_task_rewards"),
    )


def _teachers(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those that verl starts: `teacher_model` only when it is alone."""
    return {name: entry for name, entry in entries.items() if name != "teacher_model"} or entries


def _vocabulary(student: object, teachers: Mapping[str, Any], environment: Mapping[str, str]) -> int | None:
    """Rows of the largest embedding of a teacher's (a smaller one would raise thresholds), else of the student's."""
    known = [rows for entry in teachers.values() if (rows := _rows(entry.get("model_path"), environment))]
    return max(known) if known else _rows(student, environment)


def _rows(path: object, environment: Mapping[str, str]) -> int | None:
    if not isinstance(path, str):
        return None
    if (here := model_files.find(path, environment.get)) and (rows := here.number("vocab_size")):
        return rows
    facts = models.facts(path, environment.get)
    return facts.vocabulary if facts else None


def _is_dummy(teacher: Mapping[str, Any]) -> bool:
    """verl's default for one added by name is dummy: workers/config/rollout.py:RolloutConfig.load_format."""
    return bool((teacher.get("inference") or {}).get("load_format", "dummy") == "dummy")


def _weights(name: str, teacher: Mapping[str, Any]) -> str:
    new = "" if "load_format" in (teacher.get("inference") or {}) else "+"
    return f"{new}distillation.teacher_models.{name}.inference.load_format=auto"


def _number(step: Step, name: str) -> float | None:
    """A metric's value; None where there is none, or none that is a number."""
    value = step.values.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _broken(step: Step, name: str) -> bool:
    return name in step.values and _number(step, name) is None

"""Batches: what must divide what. B prompts a step, m a mini-batch, n answers a prompt."""

import math
from collections.abc import Iterator

from opd_conf.checks.finding import Finding, error, note, warning
from opd_conf.view import ACTOR, ROLLOUT, MicroBatch, View, is_qwen3_5, largest_divisor

BATCH = "data.train_batch_size"
MINI = f"{ACTOR}.ppo_mini_batch_size"
N = f"{ROLLOUT}.n"


def batch_splits_over_world(run: View) -> Iterator[Finding]:
    """Without dynamic batches, a step's sequences split evenly over the student's accelerators.

    verl: utils/config.py:validate_config.
    """
    sequences = run.train_batch * run.rollout_n
    unit = _smallest_batch(run)
    if not run.dynamic and sequences % unit:
        yield error(
            BATCH,
            N,
            "trainer.n_gpus_per_node",
            message=f"{run.train_batch} prompts x {run.rollout_n} answers = {sequences} sequences do not split evenly "
            f"over {unit}{_unit_reason(run)}.",
            fix=_fix(run),
        )


def mini_batch_divides_batch(run: View) -> Iterator[Finding]:
    """The batch is a multiple of the mini-batch; verl fills up the rest with made-up rows.

    verl: trainer/ppo/v1/trainer_base.py:_balance_batch.
    """
    if run.train_batch % run.mini_batch == 0:
        return
    padded = _padded(run)
    made_up = padded - run.train_batch * run.rollout_n
    yield error(
        BATCH,
        MINI,
        message=f"{run.train_batch} prompts are no multiple of the mini-batch of {run.mini_batch}: each step would be "
        f"filled up from {run.train_batch * run.rollout_n} to {padded} sequences, {made_up} of them made up.",
        fix=_fix(run),
    )


def mini_batch_splits_over_ranks(run: View) -> Iterator[Finding]:
    """A mini-batch splits evenly over the data-parallel ranks.

    verl: workers/engine_workers.py:train_mini_batch.
    """
    sequences = run.mini_batch * run.rollout_n
    if sequences % run.data_parallel:
        yield error(
            MINI,
            N,
            "trainer.n_gpus_per_node",
            message=f"A mini-batch of {run.mini_batch} prompts x {run.rollout_n} answers = {sequences} sequences does "
            f"not split evenly over {run.data_parallel} data-parallel ranks.",
            fix=_fix(run),
        )


def micro_batch_divides_mini_batch(run: View) -> Iterator[Finding]:
    """Without dynamic batches, a rank's share of a mini-batch is a multiple of its micro-batch.

    verl: workers/engine/utils.py:prepare_micro_batches.
    """
    share, rest = divmod(run.mini_batch * run.rollout_n, run.data_parallel)
    yield from _cut(run, run.micro_batch, share, "mini-batch") if not run.dynamic and not rest else ()


def micro_batch_divides_batch(run: View) -> Iterator[Finding]:
    """Without dynamic batches, a rank's share of a step is a multiple of its micro-batch for log-probabilities.

    verl: workers/engine/utils.py:prepare_micro_batches.
    """
    share, rest = divmod(_padded(run), run.data_parallel)
    ways = (run.log_prob_micro_batch, run.ref_micro_batch)
    for way in ways if not run.log_prob_dynamic and not rest else ():
        yield from _cut(run, way, share, "batch") if way else ()


def micro_batch_set(run: View) -> Iterator[Finding]:
    """Without dynamic batches, each phase has a micro-batch for an accelerator, set in the one way that verl reads.

    verl: utils/config.py:validate_config, then workers/engine_workers.py:ActorRolloutRefWorker.init_model.
    """
    if run.dynamic:
        return
    needs_ref = [key for key in (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward") if run.setting(key) is True]
    ways = {run.micro_batch: (), run.log_prob_micro_batch: (), run.ref_micro_batch: needs_ref}
    for way, needed_for in ways.items():
        if way is None or (way.per_gpu is not None and way.overall is None):
            continue
        if way.per_gpu is not None:
            yield error(
                way.at,
                f"{way.at}_per_gpu",
                message=f"{way.at} ({way.overall}) and {way.at}_per_gpu ({way.per_gpu}) are both set; verl stops.",
                fix=f"{way.at}=null",
            )
            continue
        old = (
            ""
            if way.overall is None
            else f"; {way.at}={way.overall}, deprecated, passes verl's first check and then stops it"
        )
        instead = "" if way.overall is None else f" {way.at}=null"
        yield error(
            f"{way.at}_per_gpu",
            way.at,
            f"{ACTOR}.use_dynamic_bsz",
            *needed_for,
            message=f"{way.at}_per_gpu is not set, and batches are not dynamic{old}.",
            fix=f"{way.at}_per_gpu=1{instead}",
        )


def dynamic_batches_agree(run: View) -> Iterator[Finding]:
    """Training and log-probabilities both cut batches dynamically, or neither does.

    verl: workers/engine_workers.py:ActorRolloutRefWorker.init_model, an assertion without text.
    """
    if run.dynamic != run.log_prob_dynamic:
        key = f"{ROLLOUT}.log_prob_use_dynamic_bsz"
        yield error(
            f"{ACTOR}.use_dynamic_bsz",
            key,
            message=f"{ACTOR}.use_dynamic_bsz is {_yes(run.dynamic)} and {key} is {_yes(run.log_prob_dynamic)}; "
            "verl stops with an empty AssertionError.",
            fix=f"{key}={_yes(run.dynamic)}",
        )


def token_budget(run: View) -> Iterator[Finding]:
    """A dynamic batch has room for the longest sequence.

    verl: utils/seqlen_balancing.py:rearrange_micro_batches.
    """
    training, log_prob = f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_max_token_len_per_gpu"
    budgets = {training: run.token_budget}
    if not run.follows(log_prob):
        budgets[log_prob] = run.log_prob_token_budget
    shared = run.sequence_parallel
    for key, budget in budgets.items():
        if budget is not None and budget * shared < run.sequence_length:
            ranks = f" x {shared} ranks that share a sequence = {budget * shared}" if shared > 1 else ""
            yield error(
                key,
                "data.max_prompt_length",
                "data.max_response_length",
                message=f"A dynamic batch holds {budget}{ranks} tokens, and one sequence may have "
                f"{run.prompt_length} + {run.response_length} = {run.sequence_length}: a long one ends the run.",
                fix=f"{key}={math.ceil(run.sequence_length / shared)}",
            )


LONG = 8192
"""Tokens of a sequence from which one at a time fills an accelerator anyway."""


def micro_batch_of_one(run: View) -> Iterator[Finding]:
    """Short sequences are packed (use_dynamic_bsz), not updated one at a time.

    Measured on an H200, 64 x 768 tokens: 21 to 25 s an update with one sequence at a time, 2 to 3 s packed. verl's own
    Qwen3.5 scripts go one by one, so for these it is a note; on NPUs their packing is no quicker, and nothing is said.

    verl: workers/engine/utils.py:prepare_micro_batches.
    """
    packable = run.setting("actor_rollout_ref.model.use_remove_padding") is True
    share = run.mini_batch * run.rollout_n // run.data_parallel
    if run.dynamic or run.micro_batch.per_gpu != 1 or not packable or share < 2 or run.sequence_length > LONG:
        return
    qwen3_5 = is_qwen3_5(run.student_path or "")
    if run.platform == "cpu" or (run.platform == "npu" and qwen3_5):
        return
    budget = max(2 * run.sequence_length, LONG)
    say = note if qwen3_5 else warning
    yield say(
        f"{ACTOR}.use_dynamic_bsz",
        f"{run.micro_batch.at}_per_gpu",
        message=f"Each update goes through {share} sequences an accelerator one by one; packed into {budget} tokens it "
        "takes a small part of the time.",
        fix=f"{ACTOR}.use_dynamic_bsz=true {ACTOR}.ppo_max_token_len_per_gpu={budget}"
        + ("" if run.follows(f"{ROLLOUT}.log_prob_use_dynamic_bsz") else f" {ROLLOUT}.log_prob_use_dynamic_bsz=true"),
    )


def _smallest_batch(run: View) -> int:
    """Sequences that a step's number must be a multiple of (utils/config.py:validate_config, `minimal_bsz`)."""
    if run.engine == "megatron":
        return run.data_parallel * (run.micro_batch.per_gpu or 1)
    return run.student_world


def _unit_reason(run: View) -> str:
    if run.engine == "megatron":
        return f" (data-parallel size {run.data_parallel} x micro-batch {run.micro_batch.per_gpu})"
    return " student accelerators"


def _padded(run: View) -> int:
    """Sequences of a step after verl has filled it up (trainer_base.py:_get_required_batch_multiple)."""
    multiple = math.lcm(run.data_parallel, run.mini_batch * run.rollout_n)
    return math.ceil(run.train_batch * run.rollout_n / multiple) * multiple


def _cut(run: View, way: MicroBatch, share: int, whole: str) -> Iterator[Finding]:
    """Whether a rank's share can be cut into micro-batches."""
    if way.per_gpu and share % way.per_gpu:
        key = f"{way.at}_per_gpu"
        yield error(
            key,
            MINI if whole == "mini-batch" else BATCH,
            message=f"A rank's share of a {whole} is {share} sequences, no multiple of its micro-batch "
            f"of {way.per_gpu}.",
            fix=f"{key}={largest_divisor(share, way.per_gpu)}",
        )


def _fix(run: View) -> str:
    """The nearest B, and an m for it, that satisfy every rule of this module."""
    a_mini = _step(run, run.data_parallel * (1 if run.dynamic else run.micro_batch.per_gpu or 1))
    a_batch = 1 if run.dynamic else _step(run, _smallest_batch(run))
    a_log_prob = 1 if run.log_prob_dynamic else _step(run, run.data_parallel * (run.log_prob_micro_batch.per_gpu or 1))
    step = math.lcm(a_mini, a_batch, a_log_prob)
    batch = max(1, round(run.train_batch / step)) * step
    typed = [] if batch == run.train_batch else [f"{BATCH}={batch}"]
    follows = run.follows(MINI) and run.mini_batch == run.train_batch
    if not follows and not (batch % run.mini_batch == 0 and run.mini_batch % a_mini == 0):
        typed.append(f"{MINI}={a_mini * largest_divisor(batch // a_mini, max(1, run.mini_batch // a_mini))}")
    return " ".join(typed)


def _step(run: View, sequences: int) -> int:
    """The smallest number of prompts whose answers are a multiple of so many sequences."""
    return sequences // math.gcd(sequences, run.rollout_n)


def _yes(value: bool) -> str:
    return "true" if value else "false"

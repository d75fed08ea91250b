"""How late verl finds a mistake, next to how early opd_conf does: makes docs/late.md.

    python tools/late.py [NAME…]

Each mistake is made twice on this machine's CPU with the tiny models: for `action=check`, and for real with the rule
that would have stopped it left out. A row takes two minutes; with names, only theirs are measured again.
"""

import contextlib
import inspect
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from opd_conf import metrics, status

ROOT = Path(__file__).parents[1]
NUMBERS, PAGE = ROOT / "tools" / "late.json", ROOT / "docs" / "late.md"
COMMAND = (sys.executable, "-m", "opd_conf", "experiment=smoke", "platform=cpu")

SILENCE = 120.0
"""Seconds without a new line after which a run hangs; imports and loading are silent for less than twenty."""
LIMIT = 600.0
"""Seconds that a run gets at most: a right one has done its first step after a quarter of them."""
REPEATS = 3
"""Times that opd_conf is measured before verl, and again after it; the median counts."""
LONGEST = 110
"""Characters of what verl says that the page shows."""

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
TEACHER, LOSS = "distillation.teacher_models.teacher_model", "distillation.distillation_loss"
TWO_RANKS = ("cluster.accelerators_per_node=3", "trainer.n_gpus_per_node=2")
DYNAMIC = (f"{ACTOR}.use_dynamic_bsz=true", f"{ROLLOUT}.log_prob_use_dynamic_bsz=true")


@dataclass(frozen=True)
class Mistake:
    """One mistake: what to type after COMMAND, the rule that refuses it, and what is done to the files.

    `damage` changes a copy of the tiny models and data, to which `assets` then points. `metric` shows that training
    goes wrong where verl goes on: a name in metrics.jsonl.
    """

    name: str
    words: str
    rule: str
    overrides: tuple[str, ...] = ()
    damage: Callable[[Path], None] | None = None
    metric: str | None = None


@dataclass(frozen=True)
class Measured:
    """Seconds until opd_conf refused, and until verl `fails`, `hangs` or `trains` wrongly, and what it shows then.

    `values`: metrics of the first step. `load`: the machine's, before.
    """

    ours: float
    verl: float
    end: str
    shown: str
    values: dict[str, float]
    load: float

    @property
    def ratio(self) -> float:
        return self.verl / self.ours


def unknown_source(sums: Path) -> None:
    """`data_source` says `sums` in train.parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(sums / "train.parquet")
    place = table.column_names.index("data_source")
    pq.write_table(table.set_column(place, "data_source", pa.array(["sums"] * len(table))), sums / "train.parquet")


def other_tokens(sums: Path) -> None:
    """The teacher learned with 3 and 4 in each other's places: it gets 58 % of the student's sums right, not 99."""
    from safetensors.numpy import load_file, save_file

    file, places = sums / "teacher" / "tokenizer.json", [24, 25]
    tokenizer = json.loads(file.read_text())
    words = tokenizer["model"]["vocab"]
    words["3"], words["4"] = places[::-1]
    file.write_text(json.dumps(tokenizer))
    weights = load_file(sums / "teacher" / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name][places] = weights[name][places[::-1]]
    save_file(weights, sums / "teacher" / "model.safetensors", {"format": "pt"})


def no_template(sums: Path) -> None:
    """The student's folder has no chat_template.jinja."""
    (sums / "student" / "chat_template.jinja").unlink()


MISTAKES = (
    Mistake(
        "random_teacher",
        "a teacher with random weights",
        "teacher_load_format",
        (f"{TEACHER}.inference.load_format=dummy",),
        metric="actor/distillation/teacher_mass",
    ),
    Mistake(
        "no_gradient",
        "`kl` without a policy gradient",
        "policy_gradient_for_k1",
        ("loss_mode=kl", f"{LOSS}.use_policy_gradient=false"),
    ),
    Mistake(
        "other_tokens",
        "a teacher whose tokenizer differs in two tokens",
        "teachers_share_tokens",
        damage=other_tokens,
    ),
    Mistake(
        "made_up_rows",
        "a batch that is no multiple of the mini-batch",
        "mini_batch_divides_batch",
        ("data.train_batch_size=48",),
        metric="perf/total_num_tokens",
    ),
    Mistake(
        "no_topk",
        "a top-k loss over no tokens",
        "topk_size",
        ("topk=0",),
        metric="actor/distillation/teacher_mass",
    ),
    Mistake("unknown_source", "data that no reward function knows", "reward_knows_source", damage=unknown_source),
    Mistake("no_template", "a tokenizer without a chat template", "chat_template_there", damage=no_template),
    Mistake("estimator", "a misspelt advantage estimator", "adv_estimator", ("algorithm.adv_estimator=grop",)),
    Mistake(
        "token_budget",
        "a dynamic batch smaller than a sequence",
        "token_budget",
        (*DYNAMIC, f"{ACTOR}.ppo_max_token_len_per_gpu=12"),
    ),
    Mistake(
        "fused_kernels",
        "fused kernels on FSDP2 for a student whose last layer is not its embedding",
        "fused_kernels_reach_last_layer",
        ("loss_mode=k1", "actor_rollout_ref.model.use_fused_kernels=true"),
    ),
    Mistake(
        "uneven_ranks",
        "a mini-batch that does not split over two ranks",
        "mini_batch_splits_over_ranks",
        (*TWO_RANKS, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=32", f"{ACTOR}.ppo_mini_batch_size=1"),
    ),
    Mistake(
        "dynamic_flags",
        "dynamic batches in one of two places",
        "dynamic_batches_agree",
        (f"{ROLLOUT}.log_prob_use_dynamic_bsz=true",),
    ),
    Mistake("strategy", "a misspelt strategy", "strategy_known", (f"{ACTOR}.strategy=fsdp3",)),
    Mistake(
        "tensor_parallel",
        "tensor parallelism wider than the student's accelerators",
        "rollout_divides_world",
        (f"{ROLLOUT}.tensor_model_parallel_size=2",),
    ),
    Mistake(
        "teacher_context",
        "a teacher one token short",
        "teacher_context",
        (f"{TEACHER}.inference.max_model_len=28",),
    ),
    Mistake("pools", "more accelerators than there are", "pools_fit", ("distillation.n_gpus_per_node=2",)),
    Mistake(
        "cpus",
        "fewer CPUs than Ray is asked for",
        "cpus_suffice",
        ("ray_kwargs.ray_init.num_cpus=6",),
    ),
    Mistake(
        "positions",
        "a response longer than the models' positions",
        "positions_hold_sequence",
        ("data.max_response_length=2000",),
    ),
)

METRICS = sorted({mistake.metric for mistake in MISTAKES if mistake.metric})
RIGHT = Mistake("right", "no mistake at all", "")
"""For comparison: how long a right run takes to its first step."""


Outcome = tuple[float, str, str, dict[str, float]]


class Wrong(Exception):
    """A measurement that would say something else than it seems to."""


def check(mistake: Mistake, typed: Sequence[str], place: Path) -> list[float]:
    """Seconds of a whole `action=check`, which must refuse the mistake with this rule and no other."""
    seconds = []
    for _ in range(REPEATS):
        begun = time.monotonic()
        done = subprocess.run(
            [*COMMAND, *typed, "action=check", "checks.report=json"], cwd=place, capture_output=True, text=True
        )
        seconds.append(time.monotonic() - begun)
        found = {finding["id"] for finding in json.loads(done.stdout)["findings"] if finding["severity"] == "error"}
        if (done.returncode, found) != ((2, {mistake.rule}) if mistake.rule else (0, set())):
            raise Wrong(f"{mistake.name}: exit code {done.returncode}, errors of {sorted(found) or 'no rule'}")
    return seconds


def train(mistake: Mistake, typed: Sequence[str], place: Path) -> Outcome:
    """Seconds from the trainer's start to its end, and how it ended, with what verl shows."""
    folder, output = place / "run", place / "output"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [*COMMAND, *typed, f"run_dir={folder}", f"checks.ignore=[{mistake.rule}]"],
            cwd=place,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(place)},
        )
    try:
        while status.read(folder).get("state") in (None, "created"):
            if process.poll() is not None:
                raise Wrong(f"{mistake.name}: did not start\n{output.read_text()}")
            time.sleep(0.05)
        return _follow(mistake, folder)
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.send_signal(signal.SIGINT)  # a second one ends what is left at once
        process.wait()


def _follow(mistake: Mistake, folder: Path) -> Outcome:
    """Looks at a run five times a second until one of three things has happened."""
    log, told, heard, length = folder / "train.log", 0.0, 0.0, 0
    begun = status.read(folder)["time"]
    trainer = int(status.read(folder)["trainer_pid"])
    while True:
        now = time.time() - begun
        if steps := metrics.read(folder / "metrics.jsonl"):
            return now, "trains", "", {name: steps[0].values[name] for name in METRICS if name in steps[0].values}
        if not psutil.pid_exists(trainer):
            return now, "fails", telling(log.read_text(errors="replace")), {}
        if log.stat().st_size != length:
            length, heard = log.stat().st_size, now
        if now - heard > SILENCE or now > LIMIT:
            return now, "hangs", "", {}
        if now - told > 30:
            told = now
            print(f"  {now:4.0f} s  {last_line(log.read_text(errors='replace'))[:100]}", flush=True)
        time.sleep(0.2)


_PREFIX = re.compile(r"\x1b\[[0-9;]*m|^\s*\([^)]*pid=[^)]*\)\s?")
_ERROR = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b.*")


def _clean(line: str) -> str:
    return _PREFIX.sub("", _PREFIX.sub("", line)).strip()


def telling(log: str) -> str:
    """The last line of a log that names an exception: what is on the screen when verl has ended."""
    lines = [_clean(line) for line in log.splitlines()]
    return next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1] if lines else "")


def last_line(log: str) -> str:
    return next((text for line in reversed(log.splitlines()) if (text := _clean(line))), "")


def typed(mistake: Mistake, sums: Path, place: Path) -> list[str]:
    """The overrides that make a mistake; a copy of the tiny task, damaged, goes to `place` where one is needed."""
    if not mistake.damage:
        return list(mistake.overrides)
    shutil.copytree(sums, place / "assets" / "sums")
    mistake.damage(place / "assets" / "sums")
    return [*mistake.overrides, f"assets={place / 'assets'}"]


def measure(mistake: Mistake) -> Measured:
    """Both times of one mistake, in a temporary folder of its own."""
    with tempfile.TemporaryDirectory(prefix="late_", dir="/tmp") as name:
        place, load = Path(name), os.getloadavg()[0]
        overrides = typed(mistake, assets(), place)
        before = check(mistake, overrides, place)
        verl, end, shown, values = train(mistake, overrides, place)
        ours = statistics.median(before + check(mistake, overrides, place))  # others may have come, or gone, meanwhile
        return Measured(round(ours, 2), round(verl, 1), end, shown.replace(name, "…"), values, round(load, 2))


def measured() -> dict[str, Measured]:
    """What has been measured, by the names of the mistakes."""
    return {name: Measured(**row) for name, row in json.loads(NUMBERS.read_text()).items()}


def assets() -> Path:
    """Where `python -m opd_conf.cpu.sums` has put the tiny models and their data."""
    return Path(os.environ.get("OPD_ASSETS", Path.home() / ".cache" / "opd_conf")) / "sums"


HEAD = """\
# How late

verl 0.9.1 starts Ray, workers and servers before it looks at most settings, and some mistakes it never sees. Each of
these was made on a CPU with the tiny models of `make smoke`; with real ones, add the minutes that they take to load.

- verl: seconds from the trainer's start, with the rule left out (`checks.ignore`). A run that learns the wrong thing
  has no end of its own: what counts is when its first step is done. A right run's is done after {right:.0f} s. One
  that hangs is ended after {silence:.0f} s of silence.
- opd_conf: seconds of the whole command, `python -m opd_conf experiment=smoke platform=cpu … action=check`, median of
  {commands}, half of them before verl and half of them after it.
- Both wait for whatever else the machine does; its load while this was measured was {low:.0f} to {high:.0f}.

`python tools/late.py` measures it all again and makes this page; with names of mistakes, only theirs.

| mistake | made by | in verl | what verl says | verl | opd_conf | times sooner | rule |
| --- | --- | --- | --- | ---: | ---: | ---: | --- |
"""

ENDS = {"fails": "fails", "hangs": "hangs", "trains": "trains on"}


def page(rows: Mapping[str, Measured]) -> str:
    """docs/late.md: a row for each mistake that was measured."""
    right = rows[RIGHT.name]
    lines = [_row(mistake, rows[mistake.name], right) for mistake in MISTAKES if mistake.name in rows]
    loads = [row.load for row in rows.values()]
    head = HEAD.format(silence=SILENCE, commands=2 * REPEATS, right=right.verl, low=min(loads), high=max(loads))
    return head + "\n".join(lines) + "\n"


def _row(mistake: Mistake, row: Measured, right: Measured) -> str:
    made = [f"`{' '.join(mistake.overrides)}`"] if mistake.overrides else [inspect.getdoc(mistake.damage) or ""]
    says = f"`{shortened(row.shown)}`" if row.shown else "nothing"
    if mistake.metric:
        name = mistake.metric.rpartition("/")[2]
        says += f"; {name} is {row.values[mistake.metric]:.4g}, {right.values[mistake.metric]:.4g} in a right run"
    cells = [mistake.words, *made, ENDS[row.end], says, f"{row.verl:.0f} s", f"{row.ours:.2f} s", f"{row.ratio:.0f}"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in [*cells, f"`{mistake.rule}`"]) + " |"


def shortened(text: str) -> str:
    """The beginning of what verl says, whole words."""
    return text if len(text) <= LONGEST else text[:LONGEST].rpartition(" ")[0] + " …"


def main(names: Sequence[str]) -> None:
    known = {mistake.name: mistake for mistake in (RIGHT, *MISTAKES)}
    if unknown := set(names) - known.keys():
        sys.exit(f"no such mistake: {', '.join(unknown)}; there are {', '.join(known)}")
    subprocess.run([sys.executable, "-m", "opd_conf.cpu.sums"], check=True)
    rows = measured() if NUMBERS.exists() else {}
    for mistake in (known[name] for name in names or known):
        print(f"{mistake.name}: {mistake.words}", flush=True)
        rows[mistake.name] = row = measure(mistake)
        print(f"  {row.end} after {row.verl} s, ours {row.ours} s, load {row.load}: {row.shown}", flush=True)
        NUMBERS.write_text(json.dumps({name: asdict(rows[name]) for name in known if name in rows}, indent=1) + "\n")
    if RIGHT.name in rows:
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main(sys.argv[1:])

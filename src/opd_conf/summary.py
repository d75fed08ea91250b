"""What a run came to, in words for the person who started it."""

from pathlib import Path

from opd_conf import metrics, status
from opd_conf.handoff import Handoff
from opd_conf.metrics import WINDOW

TAIL_LINES = 15


def summary(run: Handoff, code: int) -> str:
    """The lines after a run: how it ended, loss and score first and last, and where everything is."""
    steps = metrics.read(run.folder / "metrics.jsonl")
    last = status.read(run.folder)
    state = last.get("state", "unknown")
    lines = ["", f"{state} after {len(steps)} step{'' if len(steps) == 1 else 's'}, exit code {code}"]
    lines += comparison("loss (distance to the teacher)", [step.loss for step in steps], "{:.4g}")
    lines += comparison("score of sampled answers", [step.score for step in steps], "{:.0%}")
    if warned := [f"{warning['id']} (step {warning['step']})" for warning in last.get("warnings", [])]:
        lines += [f"  {'warnings, see above':<32} {', '.join(warned)}"]
    lines += [f"  {'run folder':<32} {run.folder}"]
    if code == 0 and run.try_next:
        lines += ["", "try next:", *(f"  {command}" for command in run.try_next)]
    return "\n".join(lines)


def comparison(label: str, values: list[float | None], form: str) -> list[str]:
    """First against last, each a mean over as many steps as there are, at most WINDOW."""
    window = min(WINDOW, max(1, len(values) // 2))
    first, last = metrics.mean(values[:window]), metrics.mean(values[-window:])
    if first is None or last is None:
        return []
    over = f"   (mean of {window} steps each)" if window > 1 else ""
    return [f"  {label:<32} {form.format(first)} → {form.format(last)}{over}"]


def tail(log: Path) -> str:
    """The last lines of train.log, for a run that failed."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"the end of {log}:", *(f"  {line}" for line in lines[-TAIL_LINES:])])

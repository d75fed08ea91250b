"""What a step came to, by names that people use: value, unit, and which way is better."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opd_conf import metrics
from opd_conf.metrics import SCORE, STEP_SECONDS, TOKENS, WINDOW, Step

Best = Callable[..., float]
MEMORY = ("perf/max_memory_reserved_gb", "actor/perf/max_memory_reserved_gb")


@dataclass(frozen=True)
class Figure:
    """A metric of a step. `of` gives None where the step has no finite value; `best` is min or max."""

    name: str
    unit: str
    best: Best
    of: Callable[[Step], float | None]
    form: str = "{:.4g}"

    @property
    def axis(self) -> str:
        """What stands beside an axis."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


def value(step: Step, name: str) -> float | None:
    """A metric of verl's; None where there is none, and for NaN, which verl writes as null."""
    found = step.values.get(name)
    known = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
    return float(found) if known and found is not None else None


def _named(*names: str) -> Callable[[Step], float | None]:
    return lambda step: next((found for name in names if (found := value(step, name)) is not None), None)


def _tokens_per_second(step: Step) -> float | None:
    tokens, seconds = value(step, TOKENS), value(step, STEP_SECONDS)
    return tokens / seconds if tokens is not None and seconds else None


def _validation(step: Step) -> float | None:
    """The mean over data sets of the mean score. verl: trainer/ppo/metric_utils.py:process_validation_metrics."""
    names = [name for name in step.values if re.fullmatch(r"val-core/.*/mean@\d+", name)]
    return metrics.mean([value(step, name) for name in names])


FIGURES = (
    Figure("loss", "", min, _named(*metrics.LOSSES)),
    Figure("reward", "mean score", max, _named(SCORE), "{:.3g}"),
    Figure("validation", "mean score", max, _validation, "{:.3g}"),
    Figure("response", "tokens", max, _named("response_length/mean"), "{:.0f}"),
    Figure("speed", "tokens/s", max, _tokens_per_second, "{:.0f}"),
    Figure("memory", "GiB", min, _named(*MEMORY), "{:.1f}"),
    Figure("step time", "s", min, _named(STEP_SECONDS), "{:.1f}"),
    Figure("entropy", "nats", max, _named("actor/entropy")),
    Figure("gradient", "norm", min, _named("actor/grad_norm")),
)
"""speed counts prompts and responses, over all accelerators; memory is what PyTorch reserved on the fullest one."""

LARGER_IS_BETTER = re.compile(r"score|reward|/acc/|throughput|mfu|overlap_ratio|_mass|pearson|^response_length")
UNITS = {
    r"^timing_s/|time_per_step$": "s",
    r"^timing_per_token_ms/": "ms",
    r"_gb$": "GiB",
    r"clip_ratio$|_ratio$": "share",
    r"_length[^/]*/|^global_seqlen/|total_num_tokens$": "tokens",
    r"throughput$": "tokens/s",
    r"entropy$": "nats",
}


def figure(name: str) -> Figure:
    """The figure of that name, else verl's metric."""
    named = next((figure for figure in FIGURES if figure.name == name), None)
    if named:
        return named
    unit = next((unit for pattern, unit in UNITS.items() if re.search(pattern, name)), "")
    return Figure(name, unit, max if LARGER_IS_BETTER.search(name) else min, _named(name))


def last(figure: Figure, steps: Sequence[Step]) -> float | None:
    """The mean over the last steps; of what was last measured before them, the last value."""
    found = metrics.mean([figure.of(step) for step in steps[-WINDOW:]])
    return found if found is not None else next((v for s in reversed(steps) if (v := figure.of(s)) is not None), None)

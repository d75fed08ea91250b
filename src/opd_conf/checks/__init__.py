"""Pre-flight checks: everything about a composed configuration that verl would find late, or never.

A rule is a public function `(run: View) -> Iterator[Finding]` of one of the modules below; adding one is writing one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FunctionType, ModuleType

from omegaconf import DictConfig

from opd_conf.checks import (
    asynchronous,
    batch,
    checkpoints,
    choices,
    cluster,
    data,
    engine,
    environment,
    files,
    keys,
    limits,
    loss,
    memory,
    models,
    packages,
    placement,
    rewards,
    rollout,
    servers,
    teachers,
    tokenizers,
    trainer,
    unused,
    values,
    veomni,
)
from opd_conf.checks.finding import Finding, Rule, error
from opd_conf.checks.report import as_dict, report, show_memory
from opd_conf.names import nearest
from opd_conf.reader import Malformed
from opd_conf.view import View, view

__all__ = ["RULES", "Finding", "Rule", "as_dict", "findings", "has_errors", "report", "show_memory"]

SEVERITIES = ("error", "warning", "note")


def _rules_of(module: ModuleType) -> list[Rule]:
    """The public functions of a module that take a View and yield findings."""
    rule = {"run": View, "return": Iterator[Finding]}
    return [
        thing
        for name, thing in vars(module).items()
        if isinstance(thing, FunctionType) and thing.__annotations__ == rule and not name.startswith("_")
    ]


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for module in (
        *(loss, rewards, batch, placement, cluster, teachers, rollout, servers, engine, veomni, trainer, asynchronous),
        *(choices, limits, unused, memory, environment, packages, files, data, models, tokenizers),
        *(checkpoints, keys, values),
    )
    for rule in _rules_of(module)
}
"""All rules by id, in the order in which they are documented."""


def findings(config: DictConfig) -> list[Finding]:
    """All that is to say about a composed configuration, errors first; rules in `checks.ignore` are left out.

    With values that no rule can count with (id `wrong_value`), only these are reported.
    """
    try:
        run = view(config)
    except Malformed as malformed:
        return wrong_values(malformed)
    return inspect(run)


def wrong_values(malformed: Malformed) -> list[Finding]:
    """Values that no rule can count with, as findings."""
    return [Finding("error", (fault.key,), fault.message, fault.fix, "wrong_value") for fault in malformed.faults]


def inspect(run: View) -> list[Finding]:
    """All that rules have to say about a run, errors first."""
    rules = [rule for name, rule in RULES.items() if name not in run.ignored]
    found = [replace(finding, id=rule.__name__) for rule in [*rules, unknown_rule] for finding in rule(run)]
    return sorted(found, key=lambda finding: (SEVERITIES.index(finding.severity), finding.id))


def has_errors(found: Sequence[Finding]) -> bool:
    """Whether the run must not start."""
    return any(finding.severity == "error" for finding in found)


def unknown_rule(run: View) -> Iterator[Finding]:
    """Every id in checks.ignore is one of a rule."""
    for name in run.ignored:
        if name not in RULES:
            near = nearest(name, RULES)
            kept = [known for known in run.ignored if known in RULES] + near[:1]
            yield error(
                "checks.ignore",
                message=f"checks.ignore has {name}, and no rule is called so; nearest: {', '.join(near) or 'none'}.",
                fix=f"'checks.ignore=[{','.join(kept)}]'",
            )

"""Findings for people (a terminal or a log) and for programs (JSON)."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from opd_conf.checks.finding import Finding
from opd_conf.reader import texts

COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def report(found: Sequence[Finding], config: DictConfig) -> None:
    """Shows findings in the form that `checks.report` names: text on stderr, or one JSON document on stdout."""
    ignored = _ignored(config)
    if _chosen(config, "checks.report") == "json":
        print(as_json(found, ignored))
    elif found or ignored or config.action == "check":  # a start with nothing to say stays quiet
        _show(found, ignored)


def _ignored(config: DictConfig) -> tuple[str, ...]:
    return texts(_chosen(config, "checks.ignore"))


def _chosen(config: DictConfig, key: str) -> Any:
    """The value of a key of ours; None when it is itself what was wrong."""
    try:
        return OmegaConf.select(config, key)
    except OmegaConfBaseException:
        return None


def as_dict(finding: Finding) -> dict[str, Any]:
    """A finding as plain data: id, severity, keys, message, fix."""
    return {"id": finding.id, **asdict(finding), "keys": list(finding.keys)}


def as_json(found: Sequence[Finding], ignored: Sequence[str]) -> str:
    """One JSON document: findings, the numbers of errors and warnings, and the rules that were left out."""
    document = {
        "findings": [as_dict(finding) for finding in found],
        "errors": _count(found, "error"),
        "warnings": _count(found, "warning"),
        "ignored": list(ignored),
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def summary(found: Sequence[Finding], ignored: Sequence[str]) -> str:
    """One line: how many of what, and which rules were left out."""
    counts = [(_count(found, severity), severity) for severity in ("error", "warning", "note")]
    parts = [f"{count} {severity}{'s' * (count > 1)}" for count, severity in counts if count]
    left_out = f" Left out: {', '.join(ignored)}." if ignored else ""
    return f"{', '.join(parts) or 'No findings'}.{left_out}"


def _count(found: Sequence[Finding], severity: str) -> int:
    return sum(finding.severity == severity for finding in found)


def _show(found: Sequence[Finding], ignored: Sequence[str]) -> None:
    """Each finding as: severity and id, message, what to type. Lines are never broken outside a terminal."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(file=sys.stderr, highlight=False, soft_wrap=not sys.stderr.isatty())
    for finding in found:
        console.print(Text.assemble((finding.severity, COLOURS[finding.severity]), "  ", (finding.id, "bold")))
        console.print(
            Padding(Text(finding.message), (0, 0, 0, 2)) if sys.stderr.isatty() else Text(f"  {finding.message}")
        )
        console.print(Text.assemble("  type: " if _typed(finding) else "  ", (finding.fix, "green")), soft_wrap=True)
    console.print(Text(summary(found, ignored)))


def show_memory(config: DictConfig) -> None:
    """The estimate of memory as a table on stderr, where one can be made and is of use: not on a CPU, not in JSON."""
    from opd_conf import memory
    from opd_conf.view import view

    if config.checks.report != "text" or config.platform.name == "cpu":
        return
    if estimate := memory.estimate(view(config)):
        from rich.console import Console

        Console(file=sys.stderr, highlight=False).print(memory.table(estimate))


def _typed(finding: Finding) -> bool:
    return "=" in finding.fix or finding.fix.startswith("python ")

"""`python -m opd_conf.checks`: the page docs/rules.md, made from the rules themselves."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import yaml

from opd_conf.checks import RULES, SEVERITIES, Rule
from opd_conf.checks import finding as findings
from opd_conf.checks.examples import RUN, examples, finding

HEAD = f"""\
# Rules

What is checked before a run starts; made with `python -m opd_conf.checks > docs/rules.md`. An error stops the run
with exit code 2: verl would fail, hang, or train on the wrong thing. A warning: it runs, and hardly as intended.
A note: good to know. `checks.ignore=[id]` leaves a rule out, and that is recorded.

Each rule is given with what holds when it is quiet, with where verl 0.9.1 (or another program) reads what it is about,
and with an example: what is typed after `{" ".join(RUN)}`, and the answer, here without its advice what to type.
"""

LEFT = """\
## Left to verl

What verl 0.9.1 asks for and no rule does, because verl says so itself before an accelerator is claimed, or because a
configuration cannot tell.

| what | in verl | why not here |
| --- | --- | --- |
"""


def page() -> str:
    """Every rule by subject, then what is left to verl."""
    subjects = groupby(RULES.items(), key=lambda item: item[1].__module__)
    return "\n".join([HEAD, *(_subject(name, dict(rules)) for name, rules in subjects), _left_to_verl()])


def source(rule: Rule) -> str:
    """Where what a rule is about is read: the last paragraph of its docstring, `verl: file:function` or another's."""
    last = _paragraphs(rule)[-1]
    return last if re.match(r"[\w-]+: ", last) else ""


def severities(rule: Rule) -> list[str]:
    """The severities that a rule can have: the makers of findings that it and its helpers name."""
    assert isinstance(rule, FunctionType)
    named = _named(rule, set())
    return [severity for severity in SEVERITIES if severity in named]


def _named(function: FunctionType, seen: set[FunctionType]) -> set[str]:
    found: set[str] = set()
    seen.add(function)
    for name in _names(function.__code__):
        thing = function.__globals__.get(name)
        if thing in (findings.error, findings.warning, findings.note):
            found.add(name)
        elif isinstance(thing, FunctionType) and thing.__module__ == function.__module__ and thing not in seen:
            found |= _named(thing, seen)
    return found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _subject(module: str, rules: dict[str, Rule]) -> str:
    about = _paragraphs(__import__(module, fromlist=["*"]))
    return "\n".join([f"## {module.rpartition('.')[2]}", "", about[0], "", *map(_rule, rules, rules.values())])


def _rule(id: str, rule: Rule) -> str:
    said = finding(id)
    return "\n".join(
        [
            f"**`{id}`** ({', '.join(severities(rule))})",
            f"{_paragraphs(rule)[0]} {source(rule)}\n".replace("__", "\\_\\_"),
            "```text",
            *_wrapped(f"$ {' '.join(examples()[id].typed.split())}"),
            *_wrapped(f"{said.severity}: {said.message}"),
            "```\n",
        ]
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def left_to_verl() -> list[dict[str, str]]:
    """Rows of left_to_verl.yaml: `what`, in `verl` where, `why` not here."""
    return yaml.safe_load((Path(__file__).parent / "left_to_verl.yaml").read_text()) or []


def _left_to_verl() -> str:
    cells = [[row[name].replace("|", "\\|") for name in ("what", "verl", "why")] for row in left_to_verl()]
    return LEFT + "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _paragraphs(thing: Rule | ModuleType) -> list[str]:
    return [" ".join(text.split()) for text in (inspect.getdoc(thing) or "").split("\n\n")]


if __name__ == "__main__":
    print(page(), end="")

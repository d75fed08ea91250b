"""`python -m opd_conf.checks`: the page docs/rules.md, made from the rules themselves."""

import inspect
from itertools import groupby

from opd_conf.checks import RULES, Rule

HEAD = """\
# Rules

What is checked before a run starts; made with `python -m opd_conf.checks > docs/rules.md`. `checks.ignore=[id]` leaves
a rule out, and that is recorded. An error stops the run with exit code 2: verl would fail, hang, or train on the wrong
thing.
"""


def page() -> str:
    """Every rule by subject: its id, what holds when it is quiet, and where verl reads what it is about."""
    subjects = groupby(RULES.items(), key=lambda item: item[1].__module__.rpartition(".")[2])
    return "\n".join([HEAD, *(_subject(name, dict(rules)) for name, rules in subjects)])


def _subject(name: str, rules: dict[str, Rule]) -> str:
    rows = [f"| `{id}` | {_cell(rule, 0)} | {_cell(rule, 'verl: ')} |" for id, rule in rules.items()]
    return "\n".join([f"## {name}", "", "| id | holds when quiet | in verl |", "| --- | --- | --- |", *rows, ""])


def _cell(rule: Rule, part: int | str) -> str:
    """A paragraph of a rule's docstring, by number or by how it begins; empty when there is none."""
    paragraphs = [" ".join(text.split()) for text in (inspect.getdoc(rule) or "").split("\n\n")]
    if isinstance(part, int):
        return paragraphs[part].replace("|", "\\|")
    return next((text.removeprefix(part) for text in paragraphs if text.startswith(part)), "").replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")

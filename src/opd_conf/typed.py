"""What to type: values in the grammars of Hydra and of the shell, and lines that show them."""

import re
import shlex

PLAIN = re.compile(r"[A-Za-z0-9_./:@%+-]+")
"""A value that needs quotes neither for Hydra nor for the shell."""


def argument(key: str, value: object) -> str:
    """`key=value` as it is typed in a shell, quoted for the shell and for Hydra where needed."""
    text = literal(value)
    return f"{key}={text}" if PLAIN.fullmatch(text) else shlex.quote(f"{key}={text}")


def literal(value: object) -> str:
    """A value in Hydra's grammar of overrides."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) and not _is_other_type(value) else in_quotes(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(literal, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{literal(item)}" for name, item in value.items()) + "}"
    return str(value)


def _is_other_type(text: str) -> bool:
    """Whether Hydra reads an unquoted text as a number, a boolean or null."""
    return re.fullmatch(r"null|true|false|nan|[+-]?(inf|[\d_.]+(e[+-]?\d+)?)", text, re.I) is not None


def in_quotes(text: str) -> str:
    """Text in the quotes of Hydra's grammar: a backslash counts only before a quote."""
    return '"' + re.sub(r'(\\*)"', r'\1\1\\"', re.sub(r"(\\+)$", r"\1\1", text)) + '"'


def answer(problem: str, *typed: str) -> str:
    """A problem, and lines of what to type."""
    return "\n".join([problem, *(f"  type: {line}" for line in typed)])


def shell(given: str) -> str:
    """An argument as it is typed in a shell."""
    return given if re.fullmatch(r"[\w./,:@%+=-]+", given) else shlex.quote(given)

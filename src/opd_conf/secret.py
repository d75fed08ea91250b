"""Secrets reach the trainer through the process environment only: never a file, a log or the screen."""

import os
import re
from collections.abc import Iterable

from opd_conf.errors import UserError

# HF_TOKEN, WANDB_API_KEY, AWS_SECRET_ACCESS_KEY, DB_PASSWORD … but not TOKENIZERS_PARALLELISM.
_NAME = r"[A-Za-z0-9_]*(?:TOKEN(?!IZ)|KEY|SECRET|PASSWORD)[A-Za-z0-9_]*"
_OVERRIDE = re.compile(
    rf"^(\+{{0,2}}(?:platform\.env|ray_kwargs\.ray_init\.runtime_env\.env_vars)\.({_NAME}))=(.*)$", re.S
)
_ELSEWHERE = re.compile(rf"\b({_NAME})\s*[:=]\s*[^\s,}}]")


def is_secret(name: str, value: str = "") -> bool:
    """Whether a variable is to be kept: by its name, or because its value is an address with a password in it."""
    return re.fullmatch(_NAME, name) is not None or re.search(r"://[^/@\s]*:[^/@\s]+@", value) is not None


def take(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Moves secrets that were written as `platform.env.NAME=value` into this process's environment.

    Returns the arguments without them (so that Hydra never records them), and what to record instead: `…NAME=***`.
    Raises UserError when a secret is written inside a larger value, e.g. `platform.env={HF_TOKEN:…}`.
    """
    rest, masked = [], []
    for argument in arguments:
        if found := _OVERRIDE.match(argument):
            key, name, value = found.groups()
            if value not in ("null", ""):
                os.environ[name] = value.strip("'\"")
            else:
                os.environ.pop(name, None)
            masked.append(f"{key}={value if value == 'null' else '***'}")
        elif found := _ELSEWHERE.search(argument):
            raise UserError(
                f"{found.group(1)} looks like a secret, inside a larger argument that would be recorded.\n"
                f"Export it in the shell (it reaches the trainer from there), or write platform.env.{found.group(1)}=…"
            )
        else:
            rest.append(argument)
    return rest, masked

"""Values of another kind than verl's own: YAML and Hydra take `off`, `1e-6x` and `"3"` for text without a word."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from omegaconf.errors import OmegaConfBaseException

from opd_conf import verl_tree
from opd_conf.checks.finding import Finding, error, warning
from opd_conf.checks.keys import OPEN, OUR_KEYS, Names, fields, inner
from opd_conf.reader import shown
from opd_conf.typed import argument
from opd_conf.view import ACTOR, ROLLOUT, TEACHERS, View

WANTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "list": "a list",
    "dict": "a block of keys",
}
"""Kinds of values, in words; what a value may be is a set of these."""

ALSO = {
    "data.train_files": "list",  # utils/dataset/rl_dataset.py:RLHFDataset
    "data.val_files": "list",
    "trainer.logger": "str",  # utils/tracking.py:Tracking
    "actor_rollout_ref.nccl_timeout": "float",  # seconds
    "trainer.ray_wait_register_center_timeout": "float",
    "trainer.esi_redundant_time": "float",
}
"""Kinds that verl takes too where no dataclass says so."""

COUNTED = (
    "trainer.save_freq",  # trainer/ppo/v1/trainer_base.py:step
    "trainer.test_freq",
    "trainer.total_epochs",
    "trainer.critic_warmup",
    "data.train_max_samples",  # utils/dataset/rl_dataset.py:RLHFDataset
    "data.val_max_samples",
    f"{ACTOR}.ppo_epochs",  # utils/tensordict_utils.py, repeated so often
    f"{ROLLOUT}.moe_load_balance_metrics_interval",
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",  # workers/engine_workers.py:update_weights
)
"""Numbers that every run compares or calculates with: null is a TypeError."""

_REFERENCE = re.compile(r"\$\{([a-z]\w*(?:\.\w+)*)\}")
_INNERMOST = re.compile(r"\$\{[^${}]*\}")
_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)\}")
_SAFE = re.compile(r"\$\{(oc\.env:\w+,|oc\.select:|now:|add:|hydra:)")
"""Interpolations that have something to fall back on, or that only our own files write."""

SWITCHES = {"off": False, "no": False, "n": False, "0": False, "on": True, "yes": True, "y": True, "1": True}


class Owner:
    """Verl's dataclass behind a block, looked up once it is asked: reading the source of one takes a millisecond."""

    def __init__(self, target: str, above: "Owner | None" = None, name: str = "") -> None:
        self._target, self._above, self._name = target, above, name

    def annotation(self, name: str) -> str:
        """What the dataclass declares for a key; empty where it has none, or where there is no dataclass."""
        if not self._target and self._above:
            self._target, self._above = inner(self._above.annotation(self._name)), None
        return fields(self._target).get(name, "") if self._target else ""


Found: TypeAlias = tuple[str, Any, Any, Owner]
"""A key, its value, verl's own, and whose key it is."""


def value_kind(run: View) -> Iterator[Finding]:
    """A value is of the kind that verl declares: true or false, a whole number, a number, a text, a list, a block.

    verl: the annotations of its dataclasses (workers/config, trainer/config), else the kind of its tree's own value;
    a null or an interpolation there allows any.
    """
    for key, value, default, owner in _values(run.values.raw, verl_tree.read(run.tree)):
        if value is None and key in COUNTED:
            yield error(key, message=f"{key} is null, and verl calculates with it.", fix=argument(key, default))
        made = isinstance(value, str) and "${" in value
        if value is None or made or type(value) is type(default):
            continue
        kinds = _kinds(key, default, owner.annotation(key.rpartition(".")[2]))
        if not kinds or any(_is(value, kind) for kind in kinds):
            continue
        wanted = " or ".join(WANTED[kind] for kind in WANTED if kind in kinds)
        fix = argument(key, _repaired(value, kinds, default))
        yield error(key, message=f"{key} is {shown(value)}, and verl needs {wanted}.", fix=fix)


def value_made(run: View) -> Iterator[Finding]:
    """A value that is made from others can be made: the keys and variables are there, and no value needs itself.

    verl: trainer/main_ppo.py:run_ppo, which resolves all of them.
    """
    told: set[str] = set()
    worked_out: set[str] = set()
    for key, value, default, _ in _values(run.values.raw, verl_tree.read(run.tree), ours=True):
        if not isinstance(value, str) or "${" not in value or value in worked_out:
            continue
        own = value == default and not _REFERENCE.fullmatch(value)  # verl's, made from what stands beside it
        if own or not _may_fail(run, value):
            continue
        if "${." not in value:
            worked_out.add(value)
        try:
            run.values.value(key)
        except OmegaConfBaseException as problem:
            reason = str(problem).splitlines()[0].rstrip(".")
            if reason not in told:
                yield error(key, message=f"{key} is {value}, which cannot be made: {reason}.", fix=f"{key}=VALUE")
            told.add(reason)


def key_left_out(run: View) -> Iterator[Finding]:
    """Every key of verl's own configuration is there, if no dataclass knows its default.

    verl: trainer/main_ppo.py, trainer/ppo/v1/trainer_base.py and others read them as they are: ConfigAttributeError.
    """
    for key in _left_out(run.values.raw, verl_tree.read(run.tree)):
        yield warning(key, message=f"{key} was left out: verl fails where it reads it.", fix=f"leave out ~{key}")


def _values(raw: Mapping[str, Any], tree: Mapping[str, Any], ours: bool = False) -> list[Found]:
    """Every value, with what verl has at the same place; of our own root keys only when asked for."""
    found: list[Found] = []
    blocks: list[tuple[str, Mapping[str, Any], Mapping[str, Any], Owner]] = [("", raw, tree, Owner(""))]
    for at, block, own, owner in blocks:  # grows while it is read: twice as fast as a recursive generator
        for name, value in block.items():
            key = f"{at}{name}"
            if name == "_target_" or key in OPEN or (not at and not ours and key in OUR_KEYS):
                continue
            default = own.get("teacher_model") if at == f"{TEACHERS}." else own.get(name)
            found.append((key, value, default, owner))
            if isinstance(value, dict):
                below = default if isinstance(default, dict) else {}
                target = str(below.get("_target_", "")).rpartition(".")[2]
                blocks.append((f"{key}.", value, below, Owner(target, owner, name)))
    return found


def _kinds(key: str, default: Any, annotation: str) -> set[str]:
    """What a value may be; empty: anything."""
    if not annotation:
        own = type(default).__name__
        return {own, *([ALSO[key]] if key in ALSO else [])} & set(WANTED) if "${" not in str(default) else set()
    optional = re.fullmatch(r"Optional\[(.*)\]", annotation)
    parts = [part.strip() for part in (optional[1] if optional else annotation).split("|")]
    kinds = {_kind(part) for part in parts} - {"None"}
    return kinds if kinds <= set(WANTED) else set()


def _kind(annotation: str) -> str:
    name = re.split(r"\W", annotation)[0]
    if inner(annotation) not in ("", "dict"):
        return "dict"  # a dataclass
    return {"tuple": "list", "Literal": "str"}.get(name, name)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "bool"
    types = {"int": int, "float": (int, float), "str": (str, int, float), "list": list, "dict": dict, "bool": bool}
    return isinstance(value, types[kind])  # type: ignore[arg-type]


def _repaired(value: Any, kinds: set[str], default: Any) -> Any:
    """The value of the wanted kind that was meant; verl's own where that cannot be told."""
    if "bool" in kinds and str(value).lower() in SWITCHES:
        return SWITCHES[str(value).lower()]
    if "list" in kinds and not isinstance(value, (dict, list)):
        return [value]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if kinds & {"int", "float"} and not isinstance(value, (bool, list, dict)):
        try:
            number = float(value)
        except (TypeError, ValueError):
            return default
        return int(number) if number.is_integer() else number if "float" in kinds else default
    return value if "str" in kinds and isinstance(value, str) else default


def _may_fail(run: View, value: str) -> bool:
    """Whether a value must be worked out to see whether it can be: 1 ms each, so not for those that always can."""
    rest = value
    while "${" in rest and (innermost := _INNERMOST.search(rest)):
        if variable := _VARIABLE.fullmatch(innermost[0]):
            known = variable[1] in os.environ
        else:
            known = bool(_SAFE.match(innermost[0]) or _REFERENCE.fullmatch(innermost[0]))
        if not known:
            return True
        rest = rest.replace(innermost[0], "1")
    return "${" in rest or not _can_be_followed(run, value, ())


def _can_be_followed(run: View, value: Any, through: Names) -> bool:
    """Whether the keys that a value names are there, and those that theirs name, and none leads back."""
    for key in _REFERENCE.findall(value) if isinstance(value, str) else ():
        if key in through or not run.has(key) or not _can_be_followed(run, run.values.written(key), (*through, key)):
            return False
    return True


def _left_out(raw: Mapping[str, Any], tree: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Keys of verl's tree that a run lacks, the topmost of each branch, outside of dataclasses."""
    if "_target_" in tree or f"{at}." in (f"{TEACHERS}.",):
        return
    for name, default in tree.items():
        key = f"{at}.{name}" if at else name
        if key in OPEN:
            continue
        if name not in raw:
            yield key
        elif isinstance(default, dict) and isinstance(raw[name], Mapping):
            yield from _left_out(raw[name], default, key)

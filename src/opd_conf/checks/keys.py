"""Keys that verl does not know. Hydra stops a wrong key, but not one with a `+` before it or in a file of one's own."""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from opd_conf import verl_tree
from opd_conf.checks.finding import Finding, error, warning
from opd_conf.checks.rollout import BACKENDS
from opd_conf.names import nearest_keys
from opd_conf.typed import argument
from opd_conf.view import TEACHERS, View

Names: TypeAlias = tuple[str, ...]

OUR_KEYS = (
    *("action", "run_dir", "topk", "assets", "platform", "cluster", "checks", "sweep", "launch"),
    *("student", "hydra"),
)
"""Root keys of conf/opd.yaml that are not verl's."""

OPEN = (
    "ray_kwargs.ray_init",  # trainer/main_ppo.py:run_ppo hands it to ray.init
    "transfer_queue",  # merged into TransferQueue's own configuration
    "reward.reward_kwargs",  # experimental/reward_loop/reward_manager/dapo.py
    "reward.custom_reward_function.reward_kwargs",  # trainer/ppo/reward.py
    "reward_model.reward_kwargs",  # experimental/reward_loop/reward_loop.py
    "global_profiler.global_tool_config.nsys.controller_nsight_options",
    "global_profiler.global_tool_config.nsys.worker_nsight_options",
)
"""Blocks whose keys go to something else, beside those that verl's tree has empty or a dataclass calls dict."""

BUILT = ("actor_rollout_ref", "distillation", "skip")
"""Roots whose blocks become dataclasses (utils/config.py:omega_conf_to_dataclass); others are read key by key."""

READ = (
    "data.cache_dir",
    "data.chat_template_func",
    "data.filter_prompts",
    "data.need_tools_kwargs",
    "trainer.remove_previous_ckpt_in_save",
)
"""Keys that no tree has and verl reads: utils/dataset/rl_dataset.py:RLHFDataset, trainer_base.py:_save_checkpoint."""

OF_SERVERS = ("enable_sleep_mode",)
"""Fields of workers/config/rollout.py:RolloutConfig that our own files set: known without reading its source."""

DATACLASS_FILES = (
    "workers/config/*.py",
    "trainer/config/*.py",
    "utils/profiler/config.py",
    "utils/qat/core.py",
    "utils/skip/config.py",
)


def unknown_key(run: View) -> Iterator[Finding]:
    """Every key is one that verl reads.

    verl: utils/config.py:omega_conf_to_dataclass, for keys of dataclasses; others are read one by one.
    """
    tree = verl_tree.read(run.tree)
    for path, value in _unknown(run.values.raw, tree, tree):
        key, owner = ".".join(path), _owner(path, tree)
        if _is_variable(run, key) or (path[0] == "data" and _own_dataset(run)):
            continue
        parent = key.rpartition(".")[0]
        siblings = [f"{parent}.{name}" for name in fields(owner or "")]
        close = nearest_keys(key, [*siblings, *_names(tree)], limit=2)
        refused = owner and path[0] in BUILT
        reason = (
            f"verl's {owner} has no field for {key}: a TypeError once it gets there."
            if refused
            else f"verl never reads {key}: it has no effect."
        )
        severity = error if close or refused else warning
        yield severity(
            key,
            message=f"{reason} Did you mean {' or '.join(close)}?" if close else reason,
            fix=_typed(run, close[0], value) if close else f"leave out +{key}",
        )


def engine_kwargs_backend(run: View) -> Iterator[Finding]:
    """Arguments for a server stand below its name: verl reads `engine_kwargs.vllm.…` and nothing beside it.

    verl: workers/rollout/vllm_rollout/vllm_async_server.py:launch_server, and its siblings.
    """
    for server in (run.rollout, *run.teachers):
        for name, value in _find(run.values.raw, f"{server.at}.engine_kwargs").items():
            key = f"{server.at}.engine_kwargs.{name}"
            if (meant := below_backend(key, server.backend)) != key:
                yield error(
                    key,
                    message=f"engine_kwargs.{name} is ignored: verl reads what is below {', '.join(BACKENDS)} alone.",
                    fix=_typed(run, meant, value),
                )


def below_backend(key: str, backend: str | None = None) -> str:
    """Where an argument for a server belongs: `engine_kwargs.vllm_x` → `engine_kwargs.vllm.x`; a right key stays."""
    found = re.fullmatch(r"(.*\.(?:rollout|inference)\.engine_kwargs)\.(\w+)(\..*)?", key)
    if not found or found[2] in BACKENDS:
        return key
    named = next((known for known in BACKENDS if found[2].startswith(f"{known}_")), None)
    name = found[2].removeprefix(f"{named}_") if named else found[2]
    return f"{found[1]}.{named or backend or 'vllm'}.{name}{found[3] or ''}"


def accepts(key: str, tree: str) -> bool:
    """Whether verl reads a key that its tree lacks: then `+key=value` is right."""
    return _accepted(tuple(key.split(".")), verl_tree.read(tree))


def _unknown(
    raw: Mapping[str, Any], root: Mapping[str, Any], tree: Mapping[str, Any], at: Names = ()
) -> Iterator[tuple[Names, Any]]:
    """Keys of a configuration that verl does not read, the topmost of each branch, with values; ours are left out.

    `tree` is the block of verl's tree `root` at the same place.
    """
    for name, value in raw.items():
        path = (*at, str(name))
        known = tree["teacher_model"] if ".".join(at) == TEACHERS else tree.get(name)
        if (not at and name in OUR_KEYS) or name == "_target_" or known == {} or ".".join(path) in OPEN:
            continue
        if known is None and name not in tree and not _accepted(path, root):
            yield path, value
        elif isinstance(value, dict):
            yield from _unknown(value, root, known if isinstance(known, dict) else {}, path)


def _accepted(path: Names, tree: Mapping[str, Any]) -> bool:
    """Whether a key that verl's tree lacks is read all the same: a dataclass has it, or anything goes there."""
    key = ".".join(path)
    return (
        key in READ
        or path[-1] in OF_SERVERS
        or any(f"{key}.".startswith(f"{block}.") for block in OPEN)
        or _owner(path, tree) in (None, "dict")
    )


def _owner(path: Names, tree: Any) -> str | None:
    """Who lacks a key: a dataclass, by name; "dict" where anything goes; "" for a block read key by key; None: nobody.

    Goes down verl's tree, and where that ends down the annotations of the dataclasses that `_target_` names.
    """
    owner = ""
    for depth, name in enumerate(path):
        block = tree if isinstance(tree, dict) else {}
        if ".".join(path[:depth]) == TEACHERS:
            tree = block["teacher_model"]
            continue
        owner = str(block["_target_"]).rpartition(".")[2] if "_target_" in block else owner
        declared = fields(owner)
        if name not in block and name not in declared:
            return owner
        owner = inner(declared[name]) if name in declared else "dict" if owner == "dict" else ""
        tree = block.get(name)
    return None


def inner(annotation: str) -> str:
    """What the value of a dataclass's field is: the name of another dataclass, "dict" for anything open, else ""."""
    names = re.findall(r"\w+", annotation)
    known = [name for name in names if name in _dataclasses()]
    return known[0] if known else "dict" if {"dict", "Any", "BaseConfig"} & set(names) else ""


@functools.cache
def _dataclasses() -> dict[str, str]:
    """The source of each of verl's configuration dataclasses by name; read, not imported."""
    package = verl_tree.package_folder()
    texts = [path.read_text() for pattern in DATACLASS_FILES for path in sorted(package.glob(pattern))]
    return {
        found[1]: found[0] for text in texts for found in re.finditer(r"^class (\w+).*?(?=^\S|\Z)", text, re.M | re.S)
    }


@functools.cache
def fields(name: str) -> dict[str, str]:
    """Fields of a dataclass of verl's with their annotations, inherited ones included; none for another name."""
    if name not in _dataclasses():
        return {}
    [node] = ast.parse(_dataclasses()[name]).body
    assert isinstance(node, ast.ClassDef)
    inherited = [item for base in node.bases for item in fields(ast.unparse(base)).items()]
    own = {
        item.target.id: ast.unparse(item.annotation)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    return {**dict(inherited), **own}


def _typed(run: View, key: str, value: Any) -> str:
    """What to type to set a key, or each key of a block."""
    if isinstance(value, dict):
        return " ".join(_typed(run, f"{key}.{name}", item) for name, item in value.items())
    return argument(key if run.has(key) else f"+{key}", value)


def _is_variable(run: View, key: str) -> bool:
    """Whether another value is made from the key, so that it need not be verl's."""
    return re.search(rf"\$\{{(oc\.select:)?{re.escape(key)}\b", str(run.values.raw)) is not None


def _own_dataset(run: View) -> bool:
    """Whether the data is read by a class of the user's, which may read any key."""
    return _find(run.values.raw, "data.custom_cls").get("path") is not None


def _find(raw: Any, key: str) -> dict[str, Any]:
    for part in key.split("."):
        raw = raw.get(part) if isinstance(raw, Mapping) else None
    return raw if isinstance(raw, dict) else {}


def _names(tree: Mapping[str, Any], at: str = "") -> list[str]:
    """All keys of verl's tree, dotted, without Hydra's `_target_`."""
    found: list[str] = []
    for name, value in tree.items():
        if name != "_target_":
            found += [f"{at}{name}", *(_names(value, f"{at}{name}.") if isinstance(value, dict) else ())]
    return found

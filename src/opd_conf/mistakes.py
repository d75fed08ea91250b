"""What Hydra and OmegaConf raise for a user's mistake, as a message that says what to type instead."""

import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import (
    CompactHydraException,
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)

from opd_conf.errors import UserError
from opd_conf.names import nearest, nearest_keys
from opd_conf.typed import PLAIN, answer, argument, in_quotes, shell

NO_OPTION = ("none", "None", "off", "false", "False", "", "~")
"""What people type to leave a group out."""

TREE_OF_ENGINE = {"megatron": "ppo_megatron_trainer", "torchtitan": "ppo_torchtitan_trainer"}
"""verl's tree for engines of verl's without a file here."""

VARIABLE = re.compile(r"(?:platform\.env|.*\.env_vars)\.(\w+)")
"""A key that is an environment variable, its name in the first group."""

MODEL_KEYS = {
    "student": "actor_rollout_ref.model.path",
    "teacher": "distillation.teacher_models.teacher_model.model_path",
}
"""Where a model goes that no preset is made for."""

WRONG_VALUES = (GrammarParseError, InterpolationResolutionError, MissingMandatoryValue, ValidationError)
"""Errors of OmegaConf that a user's value can cause; its other ones are faults of a program."""

OF_A_GROUP = ("_dummy_", "defaults")
"""Where Hydra says that a value is whose argument chooses a file of a group."""

OPTIONAL = ("experiment",)
"""Groups that a run can do without."""


def explain(error: Exception, arguments: Sequence[str] = ()) -> str | None:
    """A message for people when the error is a user's mistake in arguments or files; None for anything else."""
    if isinstance(error, (UserError, HydraException, OmegaConfBaseException)):
        for cause in _chain(error):
            if isinstance(cause, UserError):
                return str(cause)
    for explanation in _EXPLANATIONS:
        if (message := explanation(error)) is not None:
            return message
    return _unexplained(error, arguments) if _while_composing(error) else None


def _while_composing(error: Exception) -> bool:
    """Whether Hydra raised it for the arguments that it was given: no code of ours stands below that call."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [number for number, frame in enumerate(frames) if Path(__file__).parent in Path(frame.filename).parents]
    callers = ("compose", "with_platform", "_through_hydra")
    return bool(ours) and ours[-1] < len(frames) - 1 and frames[ours[-1]].name in callers


def _unexplained(error: Exception, arguments: Sequence[str]) -> str:
    """An error that Hydra did not foresee; the argument without which the others compose is the one to blame."""
    from opd_conf.compose import compose

    for given in arguments:
        try:
            compose([other for other in arguments if other != given])
        except Exception:
            continue
        group = re.split("[=@]", given.lstrip("+~"))[0]
        if group in _groups():
            return answer(f"{given}: a group takes the name of one of its files.", f"{group}={_options(group)[0]}")
        return f"Hydra cannot use {given}: {_reason(error)}."
    return f"Hydra cannot compose {' '.join(map(shell, arguments))}: {_reason(error)}."


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


# What was wrong, one function a kind


def _unreadable(error: Exception) -> str | None:
    """The grammar of overrides refuses an argument."""
    if not isinstance(error, OverrideParseException):
        return None
    given = error.override
    key, equals, value = given.partition("=")
    if given.startswith("-"):
        return f"There is no option {given}; --help lists them."
    if not equals:
        guess = re.sub(r"[: ]+", "=", given, count=1) if re.search("[: ]", given) else f"{given}=VALUE"
        return answer(f"{given} is not an argument: each is key=value.", guess)
    if value[:1] == "{":
        example = f"'{key}={{name:value,other:\"a text\"}}'"
        return answer(f"The value of {key} cannot be read as a mapping: {value}.", example)
    if value[:1] == "[" or value[-1:] == "]":
        return answer(f"The value of {key} cannot be read as a list: {value}.", shell(f"{key}={_list(value)}"))
    return answer(
        f"The value of {key} has characters that must be quoted, for Hydra and again for the shell: {value}.",
        argument(key, _without_quotes(value)),
    )


def _without_quotes(value: str) -> str:
    """A value without the quotes around it, also when one of them is missing."""
    return value.strip("\"'")


def _list(value: str) -> str:
    """Parts between commas as a list of Hydra's grammar, those with odd characters in quotes."""
    parts = [_without_quotes(part.strip()) for part in value.strip("[]").split(",")]
    return f"[{','.join(part if PLAIN.fullmatch(part) else in_quotes(part) for part in parts)}]"


def _swept(error: Exception) -> str | None:
    """Several values for one run."""
    said = re.match(
        r"Ambiguous value for argument '(.*)'\n1\. |Sweep parameters '(.*)' requires --multirun", str(error)
    )
    if not isinstance(error, CompactHydraException) or not said:
        return None
    key, _, value = (said[1] or said[2]).partition("=")
    if variable := VARIABLE.fullmatch(key.lstrip("+")):
        problem = f"{variable[1]} is an environment variable, and its value has a comma ({value}): it is one text."
        return answer(problem, argument(key, value))
    sweep = f"-m {shell(f'{key}={value}')}"
    if said[2] or key.lstrip("+~").partition("@")[0] in _groups():
        return answer(f"{key} has several values ({value}), and one run takes one.", f"{sweep}   (a run for each)")
    return "\n".join(
        [
            f"{key} has a comma in its value ({value}), which can mean three things.",
            f"  one text: {argument(key, value)}",
            f"  a list:   {shell(f'{key}={_list(value)}')}",
            f"  a run each: {sweep}",
        ]
    )


def _no_option(error: Exception) -> str | None:
    """A group has no such file."""
    if not isinstance(error, MissingConfigException) or not error.missing_cfg_file:
        return None
    group, option = _split_option(error.missing_cfg_file)
    if not group:
        return None
    options = _shown_options(error.options or ())
    near = nearest(option, options, limit=len(options) or 1)
    ordered = [*near, *(name for name in options if name not in near)]
    if option in NO_OPTION and group in OPTIONAL:
        return answer(f"{group} is left out with null.", f"{group}=null")
    start = "cannot be left out: every run has one" if option in NO_OPTION else f"has no {option}"
    typed = [f"{group}={ordered[0]}"] if ordered else [f"{group}=null"]
    if group in MODEL_KEYS and "/" in option and ordered:
        typed.append(
            f"{typed[0]} {argument(MODEL_KEYS[group], option)}   (a model without preset: start from another's)"
        )
    return answer(f"{group} {start}. Choices: {', '.join(ordered) or 'none'}.", *typed)


def _split_option(path: str) -> tuple[str, str]:
    """`student/Qwen/Qwen3` → student, Qwen/Qwen3; groups of Hydra's own (hydra/launcher) have two parts."""
    depth = 2 if path.startswith("hydra/") else 1
    parts = path.split("/", depth)
    return ("/".join(parts[:depth]), parts[-1]) if len(parts) > depth else ("", path)


def _shown_options(options: Iterable[str]) -> list[str]:
    """Options that are for people: names with a leading underscore are parts of others."""
    return [option for option in options if not option.startswith("_")]


def _not_chosen(error: Exception) -> str | None:
    """A group without default."""
    said = re.match(r"You must specify '([^']+)', e\.g, .*?\nAvailable options:\n(.*)", str(error), re.S)
    if not isinstance(error, CompactHydraException) or not said:
        return None
    group, options = said[1], _shown_options(said[2].split())
    question = {"student": "Who learns?", "teacher": "From whom?", "platform": "On what?"}.get(group, "")
    problem = f"{question} No {group} is chosen. Choices: {', '.join(options)}.".strip()
    whole = "python -m opd_conf student=qwen3_5_2b teacher=qwen3_5_35b_a3b   (for example)"
    return answer(problem, f"{group}={options[0] if options else 'NAME'}", *([whole] if group in MODEL_KEYS else ()))


def _no_key(error: Exception) -> str | None:
    """A key that no configuration has."""
    said = re.match(r"Could not override '([^']+)'\.\nTo append to your config use \+(.*)", str(error), re.S)
    if not isinstance(error, CompactHydraException) or not said:
        return None
    key, given = said[1], said[2]
    value = given.partition("=")[2]
    composed = _composed(error)
    if key == "model_engine":
        return _engine(value)
    if "." not in key and (groups := nearest(key, _groups())):
        return answer(f"There is no group or key {key}.", *(f"{group}={value}" for group in groups))
    named = re.match(r"(distillation\.teacher_models\.(\w+))\.", key)
    if named and named[1] not in _values(composed):
        typed = f"+teacher@{named[1]}=NAME {shell(given)}"
        return answer(f"There is no teacher {named[2]} yet; add one from the group teacher first.", typed)
    if (moved := _below_backend(key)) != key:
        return answer(f"verl ignores {key}: arguments of a server stand below its name.", shell(f"+{moved}={value}"))
    if _is_new(key, composed):
        return answer(f"{key} is not set yet; a key that is new is added with +.", shell(f"+{given}"))
    meant = nearest_keys(key, _values(composed))
    if not meant:
        return f"There is no key {key}, and none that looks like it.\n  to see all of them: add --cfg job"
    return answer(f"There is no key {key}. Did you mean one of these?", *(shell(f"{name}={value}") for name in meant))


def _engine(value: str) -> str:
    """verl's own way to choose who trains: a group of its, which stands in our engines' files."""
    from opd_conf.compose import conf_folder

    engines = _shown_options(sorted(path.stem for path in (conf_folder() / "engine").glob("*.yaml")))
    problem = f"verl's model_engine is the group engine here. Choices: {', '.join(engines)}."
    if value in TREE_OF_ENGINE and value not in engines:
        problem += (
            f"\nOne for {value} is a file of your own, FOLDER/engine/{value}.yaml, with `# @package _global_` and "
            f"`defaults: [/verl/{TREE_OF_ENGINE[value]}@_global_, _self_]`; then --config-dir FOLDER engine={value}."
        )
    near = [value] if value in engines else engines
    return answer(problem, *(f"engine={engine}" for engine in near))


def _wrong_group(error: Exception) -> str | None:
    """A group that does not exist, or is not in the list of defaults."""
    if not isinstance(error, CompactHydraException):
        return None
    if said := re.search(r"To append to your default list use (\+\S+)", str(error)):
        return answer(f"{said[1][1:]} is not part of a run yet; another place for a group is added with +.", said[1])
    said = re.match(
        r"Override (\S+) looks like a config group override, but config group '([^']+)' does not exist", str(error)
    )
    if not said:
        return None
    groups = nearest(said[2], _groups()) or sorted(_groups())
    return answer(f"There is no group {said[2]}. Groups: {', '.join(groups)}.", said[1].replace(said[2], groups[0], 1))


def _nothing_to_delete(error: Exception) -> str | None:
    said = re.match(r"Could not delete (?:from config\. )?'([^']*)'(?: does not exist|\. No match)", str(error))
    if not isinstance(error, CompactHydraException) or not said:
        return None
    key = said[1].partition("=")[0]
    if not key:
        return answer("~ leaves out what stands behind it, and nothing does.", "~KEY")
    return answer(f"~{said[1]}: there is no {key} to leave out.", *(f"~{group}" for group in nearest(key, _groups())))


def _group_again(error: Exception) -> str | None:
    """A + before a group that every run has."""
    said = re.match(
        r"(\S+) appears more than once in the final|Multiple values for ([^.]+)\.|force-add of config .*'\+\+([^=]+)=",
        str(error),
    )
    if not isinstance(error, CompactHydraException) or not said:
        return None
    group = said[1] or said[2] or said[3]
    return answer(f"{group} is chosen without +: that adds a group at another place.", f"{group}=NAME")


def _there_already(error: Exception) -> str | None:
    said = re.match(
        r"Could not append to config\. An item is already at '([^']+)'\.\nEither remove \+ prefix: '(.*)'\n", str(error)
    )
    if not isinstance(error, CompactHydraException) or not said:
        return None
    return answer(f"{said[1]} is there already; + is for new keys.", shell(said[2]))


def _wrong_value(error: Exception) -> str | None:
    """A value of the wrong type, or one made from a key that does not exist."""
    if not isinstance(error, (HydraException, OmegaConfBaseException)):
        return None
    cause = next((link for link in _chain(error) if isinstance(link, WRONG_VALUES)), None)
    if not isinstance(cause, OmegaConfBaseException) or cause.full_key in OF_A_GROUP:
        return None
    where = f"{cause.full_key}: " if cause.full_key else ""
    problem = f"{where}{str(cause.msg or cause).splitlines()[0].rstrip('.')}."
    if isinstance(cause, InterpolationKeyError) and (said := re.search(r"'([^']+)' not found", problem)):
        return _no_source(said[1], str(cause.full_key), _root(cause))
    given = re.match(r"Error merging override (.*)", str(error))
    return f"{given[1]}: {problem}" if given else problem


def _no_source(name: str, key: str, config: DictConfig | None) -> str:
    """A value made from a key that does not exist; `key` is where it was noticed, perhaps not where it is written."""
    values = _values(config)
    key = next((place for place, value in values.items() if f"${{{name}}}" in str(value)), key)
    typed = (f"'{key}=${{{meant}}}'" for meant in nearest_keys(name, values))
    return answer(f"{key}: its value is made from ${{{name}}}, and there is no key {name}.", *typed)


def _bad_file(error: Exception) -> str | None:
    return f"A configuration file is not valid YAML: {error}" if isinstance(error, yaml.YAMLError) else None


def _anything_else_of_hydra(error: Exception) -> str | None:
    """Hydra's other compact errors are made for people too; a failed instantiation is not."""
    if not isinstance(error, CompactHydraException) or isinstance(error, InstantiationException):
        return None
    said = str(error).strip()
    return None if not said or said.startswith("Error resolving interpolation") else said  # that one: of a group's name


_EXPLANATIONS: tuple[Callable[[Exception], str | None], ...] = (
    _unreadable,
    _swept,
    _no_option,
    _not_chosen,
    _no_key,
    _wrong_group,
    _nothing_to_delete,
    _group_again,
    _there_already,
    _wrong_value,
    _bad_file,
    _anything_else_of_hydra,
)


# What the error knows


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error of Hydra's and what caused it, outermost first, also causes that OmegaConf hides from a traceback."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _composed(error: Exception) -> DictConfig | None:
    """The configuration that was being composed when OmegaConf refused a key."""
    return next((root for link in _chain(error) if (root := _root(link)) is not None), None)


def _root(error: BaseException) -> DictConfig | None:
    node = getattr(error, "parent_node", None)
    root = node._get_root() if node is not None else None
    return root if isinstance(root, DictConfig) else None


def _values(config: DictConfig | None) -> dict[str, Any]:
    """All keys of a configuration, dotted, with their values; blocks have None."""
    found: dict[str, Any] = {}

    def walk(block: dict[str, Any], at: str) -> None:
        for name, value in block.items():
            if name != "_target_":
                found[f"{at}{name}"] = None if isinstance(value, dict) else value
                walk(value if isinstance(value, dict) else {}, f"{at}{name}.")

    walk(OmegaConf.to_container(config, resolve=False) if config is not None else {}, "")  # type: ignore[arg-type]
    return found


def _is_new(key: str, config: DictConfig | None) -> bool:
    """Whether a key only has to be added: a dataclass of verl's has it, or anything goes there."""
    from opd_conf.checks.keys import accepts
    from opd_conf.view import ACTOR, TREES

    actor = OmegaConf.select(config, ACTOR) if config is not None else None
    tree = next((name for block, name in TREES.items() if actor and block in actor), None)
    return key.startswith("platform.env.") or (tree is not None and accepts(key, tree))


def _below_backend(key: str) -> str:
    from opd_conf.checks.keys import below_backend

    return below_backend(key)


def _options(group: str) -> list[str]:
    """Names of the files of a group of ours."""
    from opd_conf.compose import conf_folder

    return _shown_options(sorted(path.stem for path in (conf_folder() / group).glob("*.yaml")))


def _groups() -> list[str]:
    """Names of our groups."""
    from opd_conf.compose import conf_folder

    return [folder.name for folder in conf_folder().iterdir() if folder.is_dir()]

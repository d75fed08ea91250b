"""verl's own code as the judge of a configuration: its driver's check, and the dataclasses that its workers build."""

import contextlib
import functools
import io
import json
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hydra.utils
import omegaconf.base
import pytest
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.profiler import ProfilerConfig
from verl.utils.skip import SkipManagerConfig

from opd_conf import checks
from opd_conf.checks import Finding
from opd_conf.compose import compose
from opd_conf.reader import Values, plain

ABSENT: Any = ("absent",)
"""A setting's value: the key is left out."""

Settings = Mapping[str, Any]


@functools.cache
def chosen(groups: tuple[str, ...]) -> tuple[DictConfig, Values]:
    """A choice of groups as Hydra composes it, and its plain data."""
    config = compose([*groups, "checks.ignore=[data_files]"]).config
    return config, plain(config)


@contextlib.contextmanager
def changed(groups: tuple[str, ...], settings: Settings) -> Iterator[DictConfig]:
    """A choice of groups with settings, until the end of the block: a copy would take as long as all the rest."""
    config, before = chosen(groups)
    try:
        for key, value in settings.items():
            _set(config, key, value)
        yield config
    finally:
        for key in reversed(settings):
            top = next(part for part in _prefixes(key) if part == key or not before.has(part))
            _set(config, top, before.written(top, ABSENT))


def _set(config: DictConfig, key: str, value: Any) -> None:
    parent, _, name = key.rpartition(".")
    if value is not ABSENT:
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    elif (block := OmegaConf.select(config, parent)) is not None:
        with open_dict(block):
            block.pop(name, None)


def _prefixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[: size + 1]) for size in range(len(parts))]


def refusals(groups: tuple[str, ...], settings: Settings) -> dict[str, str]:
    """What verl says against settings, by the step of a run that says it."""
    with changed(groups, settings) as config:
        said = {step: says(config) for step, says in STEPS.items()}
    return {step: words for step, words in said.items() if words}


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """verl's code with a quicker Hydra below it: interpolations are parsed once, and nothing is copied to be built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(omegaconf.base, "parse", functools.cache(omegaconf.base.parse))
        patch.setattr(hydra.utils, "instantiate", instantiate)
        yield


def instantiate(config: Any, _convert_: str = "partial") -> Any:
    """What hydra.utils.instantiate makes, from plain data."""
    if OmegaConf.is_config(config):
        config = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    if isinstance(config, list):
        return [instantiate(item) for item in config]
    if not isinstance(config, dict):
        return config
    built = {name: instantiate(value) for name, value in config.items() if name != "_target_"}
    return _class(config["_target_"])(**built) if "_target_" in config else built


_class = functools.cache(hydra.utils.get_class)


def _said(step: Callable[[], Any]) -> str:
    """What a step of verl's raises, in words, or nothing."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _driver(config: DictConfig) -> str:
    return _said(lambda: validate_config(config, need_reference_policy(config), need_critic(config)))


def _built(key: str, build: Callable[[dict[str, Any]], Any] = omega_conf_to_dataclass) -> Callable[[DictConfig], str]:
    """What building the block at a key says, worked out once for the same content."""

    @functools.cache
    def says(content: str) -> str:
        return _said(lambda: build(json.loads(content)))

    def step(config: DictConfig) -> str:
        return says(json.dumps(_plain(OmegaConf.select(config, key))))

    return step


def _reference_policy(config: DictConfig) -> str:
    """engine_workers.py:ActorRolloutRefWorker.init_model, step 1."""
    if not need_reference_policy(config):
        return ""
    ref = _plain(config.actor_rollout_ref.ref)
    ref["ppo_mini_batch_size"] = config.actor_rollout_ref.actor.ppo_mini_batch_size
    ref["ppo_micro_batch_size"] = ref.pop("log_prob_micro_batch_size", None)
    ref["ppo_micro_batch_size_per_gpu"] = ref.pop("log_prob_micro_batch_size_per_gpu", None)
    ref["use_dynamic_bsz"] = ref.pop("log_prob_use_dynamic_bsz", False)
    ref["ppo_max_token_len_per_gpu"] = ref.pop("log_prob_max_token_len_per_gpu", None)
    return _said(lambda: omega_conf_to_dataclass(ref))


def _plain(block: DictConfig) -> dict[str, Any]:
    found = OmegaConf.to_container(block, resolve=True)
    assert isinstance(found, dict)
    return {str(name): value for name, value in found.items()}


def _profiler(config: dict[str, Any]) -> None:
    """engine_workers.py:ActorRolloutRefWorker.__init__."""
    omega_conf_to_dataclass(config, dataclass_type=ProfilerConfig)
    if config.get("tool") in ["npu", "nsys", "torch", "torch_memory", "precision_debugger"]:
        omega_conf_to_dataclass(config.get("tool_config", {}).get(config.get("tool")))


def _model(config: dict[str, Any]) -> None:
    """HFModelConfig, for the same small model whatever the path: files are not judged here."""
    path = str(_small_model())
    files = {"path": path, "hf_config_path": path, "tokenizer_path": path, "custom_chat_template": None}
    switches = {"load_tokenizer": False, "use_shm": False, "external_lib": None}
    omega_conf_to_dataclass(config | files | switches)


@functools.cache
def _small_model() -> Path:
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text('{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}')
    return folder


STEPS: dict[str, Callable[[DictConfig], str]] = {
    "validate_config": _driver,
    "rollout": _built("actor_rollout_ref.rollout"),
    "distillation": _built("distillation"),
    "reference policy": _reference_policy,
    "model": _built("actor_rollout_ref.model", _model),
    "profiler": _built("actor_rollout_ref.actor.profiler", _profiler),
    "skip": _built("skip", lambda block: omega_conf_to_dataclass(block, dataclass_type=SkipManagerConfig)),
}
"""Where a run stops, in order: the driver, then what the task runner and the workers build."""


def errors(groups: tuple[str, ...], settings: Settings) -> list[Finding]:
    """Our errors about settings."""
    with changed(groups, settings) as config:
        return [finding for finding in checks.findings(config) if finding.severity == "error"]


def cause(groups: tuple[str, ...], settings: Settings, step: str, words: str) -> dict[str, Any]:
    """The fewest of the settings with which a step of verl's still refuses in the same words, numbers aside."""
    fewest = dict(settings)
    for key in settings:
        fewer = {other: value for other, value in fewest.items() if other != key}
        with changed(groups, fewer) as config:
            said = STEPS[step](config)
        if kind(said) == kind(words):
            fewest = fewer
    return fewest


def kind(words: str) -> str:
    """A refusal without its values."""
    return re.sub(r"-?\d+(\.\d+)?|'[^']*'", "_", words)

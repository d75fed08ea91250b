"""How a rule is tested: it fires with the right numbers, what it says to type helps, and it is quiet otherwise."""

import functools
import json
import pickle
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from opd_conf.checks import Finding
from opd_conf.compose import compose as compose_run
from opd_conf.view import view

Fires = Callable[..., Finding]
Quiet = Callable[..., None]
GPU = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")


@pytest.fixture
def fires(check) -> Fires:
    """Asserts that this rule speaks once, and that its fix, typed as it stands, helps and breaks nothing else."""

    def assert_fires(rule: str, overrides: str, message: str, fix: str, severity: str = "error") -> Finding:
        given = shlex.split(overrides)
        before = check(*given)
        found = [finding for finding in before if finding.id == rule]
        assert len(found) == 1, [(finding.id, finding.message) for finding in before]
        assert found[0].severity == severity
        assert message in found[0].message
        assert found[0].fix == fix
        after = {finding.id for finding in check(*given, *shlex.split(fix)) if finding.severity == "error"}
        assert rule not in after
        assert after <= {finding.id for finding in before}
        return found[0]

    return assert_fires


@pytest.fixture
def quiet(check) -> Quiet:
    """Asserts that a rule has nothing to say about the usual run with some overrides."""

    def assert_quiet(rule: str, overrides: str = "") -> None:
        assert [finding.message for finding in check(*shlex.split(overrides)) if finding.id == rule] == []

    return assert_quiet


@functools.cache
def _groups(groups: tuple[str, ...]) -> bytes:
    return pickle.dumps(compose_run(groups).config)


def composed(settings: dict[str, Any], groups: tuple[str, ...]) -> Any:
    """Groups composed by Hydra, with keys then set as they stand, of any kind."""
    config = pickle.loads(_groups(groups))
    for key, value in settings.items():
        OmegaConf.update(config, key, value, force_add=True)
    return config


def _say(rule: Any, settings: dict[str, Any], groups: tuple[str, ...] = GPU) -> list[Finding]:
    return list(rule(view(composed(settings, groups))))


@pytest.fixture
def view_of() -> Callable[..., Any]:
    """The view of a run from settings and groups."""
    return lambda settings, groups=GPU: view(composed(settings, groups))


@pytest.fixture
def say() -> Callable[..., list[Finding]]:
    """What one rule says about a run from settings and groups."""
    return _say


@pytest.fixture
def one() -> Callable[..., tuple[str, str, str]]:
    """Severity, message and fix of a rule's only finding; typing the fix silences the rule."""

    def only(rule: Any, settings: dict[str, Any], groups: tuple[str, ...] = GPU) -> tuple[str, str, str]:
        [finding] = _say(rule, settings, groups)
        if "=" in finding.fix and not finding.fix.startswith(("pip", "#", "engine")):
            pairs = (pair.lstrip("+").split("=", 1) for pair in shlex.split(finding.fix))
            typed = {key: None if value == "null" else OmegaConf.create(f"x: {value}").x for key, value in pairs}
            assert _say(rule, settings | typed, groups) == []
        return finding.severity, finding.message, finding.fix

    return only


# Models' folders


SIZES = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "vocab_size": 16,
}
WORDS = {"<end>": 0, "<user>": 1, "a": 2, "b": 3, "c": 4, "vocab": 5}


@pytest.fixture
def no_cache(monkeypatch, tmp_path) -> None:
    """An empty Hugging Face cache: whoever runs the tests may have models in theirs."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


@pytest.fixture
def write_tokenizer() -> Callable[..., None]:
    """Writes a tokenizer.json as the package `tokenizers` does: words in `model.vocab`, marks in `added_tokens`."""

    def write(folder: Path, tokens: dict[str, int]) -> None:
        words = {token: number for token, number in tokens.items() if token[0] != "<"}
        marks = [{"id": tokens[token], "content": token, "special": True} for token in tokens if token[0] == "<"]
        model = {"type": "BPE", "vocab": words, "merges": [["a", "b"]]}
        (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": marks, "model": model}, indent=2))

    return write


@pytest.fixture
def make(tmp_path, write_tokenizer) -> Callable[..., str]:
    """Writes a model's folder: sizes over SIZES, tokens, what its tokenizer_config.json says."""

    def write(name: str, tokens: dict[str, int] = WORDS, tokenizer: dict[str, Any] | None = None, **sizes: Any) -> str:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(SIZES | sizes))
        write_tokenizer(folder, tokens)
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer or {"chat_template": "{{ messages }}"}))
        return str(folder)

    return write


@pytest.fixture
def pair(make) -> Callable[..., dict[str, Any]]:
    """A student's and a teacher's folders, as settings."""
    student, teacher = "actor_rollout_ref.model.path", "distillation.teacher_models.teacher_model.model_path"
    return lambda **sizes: {student: make("student"), teacher: make("teacher", **sizes)}


@pytest.fixture
def in_cache(tmp_path) -> Callable[[str, str], None]:
    """Copies a model's folder into the hub's layout, under a name."""

    def copy(made: str, name: str) -> None:
        repository = tmp_path / "hf" / "hub" / f"models--{name.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("abc123")
        shutil.copytree(made, repository / "snapshots" / "abc123")

    return copy

"""verl's trees are found without importing verl, whole, and their absence is explained."""

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from opd_conf import verl_tree
from opd_conf.errors import UserError


@pytest.mark.parametrize("tree", ["ppo_trainer", "ppo_veomni_trainer", "ppo_megatron_trainer"])
def test_a_tree_equals_what_omegaconf_itself_reads(tree):
    assert verl_tree.load(tree) == OmegaConf.load(verl_tree.file_of(tree))


def test_floats_are_floats_as_in_omegaconf(tmp_path):
    text = "a: 1e-6\nb: 1.0e-06\nc: .5\nd: 1_000.5\ne: 3\nf: 1.2.3\ng: 0x1e\nh: -2E5\ni: 12e03\nj: .inf\nk: 1e\n"
    (tmp_path / "x.yaml").write_text(text)
    import yaml

    assert yaml.load(text, Loader=verl_tree._Loader) == OmegaConf.to_container(OmegaConf.load(tmp_path / "x.yaml"))


def test_neither_verl_nor_torch_is_imported():
    code = (
        "import sys; from opd_conf.compose import compose;"
        "compose(['platform=npu', 'student=qwen3_5_2b', 'teacher=qwen3_5_35b_a3b']);"
        "print([m for m in ('torch', 'verl', 'ray', 'vllm', 'transformers') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def _checkout(tmp_path: Path, version: str = "0.9.1", trees: bool = True) -> Path:
    config = tmp_path / "verl" / "trainer" / "config"
    config.mkdir(parents=True)
    (tmp_path / "verl" / "version").mkdir()
    (tmp_path / "verl" / "version" / "version").write_text(version + "\n")
    if trees:
        for name in verl_tree.names():
            (config / f"_generated_{name}.yaml").write_bytes(verl_tree.file_of(name).read_bytes())
    return tmp_path


def test_a_checkout_is_used_instead(tmp_path, monkeypatch):
    root = _checkout(tmp_path)
    monkeypatch.setenv("OPD_VERL_ROOT", str(root))
    assert verl_tree.package_folder() == root / "verl"
    assert verl_tree.version() == "0.9.1"
    verl_tree.require_tested_version()


def test_a_folder_that_is_no_checkout_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("OPD_VERL_ROOT", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="No verl checkout at .*nowhere"):
        verl_tree.package_folder()


def test_another_version_says_what_is_tested_and_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setenv("OPD_VERL_ROOT", str(_checkout(tmp_path, version="0.8.0")))
    with pytest.raises(UserError, match=r"(?s)verl 0.8.0 .*==0.9.1.*launch.any_verl_version=true"):
        verl_tree.require_tested_version()


def test_missing_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("OPD_VERL_ROOT", str(_checkout(tmp_path, trees=False)))
    with pytest.raises(UserError, match="_generated_ppo_trainer.yaml"):
        verl_tree.load("ppo_trainer")


def test_no_verl_names_both_ways_to_get_it():
    code = "import sys; sys.modules['verl'] = None; from opd_conf import verl_tree; verl_tree.package_folder()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "opd_conf[gpu]" in done.stderr
    assert "pip install --no-deps verl==0.9.1" in done.stderr


def test_every_tree_has_the_same_root_keys():
    roots = [set(verl_tree.load(name)) for name in ("ppo_trainer", "ppo_veomni_trainer", "ppo_megatron_trainer")]
    assert roots[0] == roots[1] == roots[2] == verl_tree.root_keys()


def test_a_search_path_of_the_users_own_takes_nothing_away(tmp_path):
    from opd_conf.compose import compose

    (tmp_path / "student").mkdir()
    (tmp_path / "student" / "mine.yaml").write_text("# @package actor_rollout_ref.model\npath: /models/mine\n")
    overrides = ["platform=gpu", "student=mine", "teacher=qwen3_5_35b_a3b", f"hydra.searchpath=[file://{tmp_path}]"]
    assert compose(overrides).config.actor_rollout_ref.model.path == "/models/mine"

"""Every option of every group composes with every option of every other, and what comes out is complete."""

import itertools
from collections.abc import Iterator

import pytest
from omegaconf import OmegaConf

from opd_conf import verl_tree
from opd_conf.compose import compose, conf_folder

GROUPS = ("platform", "engine", "student", "teacher", "loss_mode", "cluster", "data", "rollout")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_folder() / group).glob("[!_]*.yaml"))


def _all_pairs() -> Iterator[tuple[str, ...]]:
    """Runs in which each pair of options of two groups meets at least once (greedy; sixty instead of 20,736)."""
    choices = {group: options(group) for group in GROUPS}
    pairs = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(GROUPS, 2)
        for x, y in itertools.product(choices[a], choices[b])
    }
    while pairs:
        (a, x), (b, y) = min(pairs)
        run = {a: x, b: y}
        for group in GROUPS:
            if group not in run:
                run[group] = max(choices[group], key=lambda option: len(_met({**run, group: option}) & pairs))
        pairs -= _met(run)
        yield tuple(f"{group}={option}" for group, option in run.items())


def _met(run: dict[str, str]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    named = [(group, run[group]) for group in GROUPS if group in run]
    return set(itertools.combinations(named, 2))


@pytest.mark.parametrize("run", list(_all_pairs()), ids=lambda run: "-".join(choice.split("=")[1] for choice in run))
def test_every_pair_of_options_composes_and_resolves(run):
    config = compose(run).config
    config.reward.reward_model.rollout.name = None  # verl leaves it open while there is no reward model
    resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    assert verl_tree.root_keys() <= resolved.keys()
    assert resolved["distillation"]["teacher_models"]["teacher_model"]["inference"]["load_format"] == "auto"


@pytest.mark.parametrize(
    "path", sorted(conf_folder().rglob("*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_file_says_who_it_is_for(path):
    first = next(line for line in path.read_text().splitlines() if not line.startswith("# @package"))
    assert first.startswith("# ")


def test_a_second_teacher_added_by_name_is_complete():
    run = [
        *("platform=gpu", "student=qwen2_5_0_5b", "data=gsm8k", "cluster=1x6", "~teacher"),
        *("+teacher@distillation.teacher_models.math=qwen2_5_3b_instruct",),
        *("distillation.teacher_models.math.key=openai/gsm8k", "distillation.teacher_models.math.num_replicas=4"),
    ]
    math = compose(run).config.distillation.teacher_models.math
    assert (math.model_path, math.key, math.num_replicas) == ("Qwen/Qwen2.5-3B-Instruct", "openai/gsm8k", 4)
    inference = math.inference
    assert (inference.load_format, inference.name, inference.max_model_len) == ("auto", "vllm", 512 + 1024 + 1)
    assert (inference.prompt_length, inference.response_length) == (512, 1024)


def test_a_users_own_folder_adds_options(tmp_path):
    """The three lines of CONTRIBUTING.md, in a folder that Hydra's --config-dir names."""
    import subprocess
    import sys

    (tmp_path / "student").mkdir()
    (tmp_path / "student" / "mine.yaml").write_text(
        "# @package _global_\n"
        "actor_rollout_ref: {model: {path: MyOrg/My-1B}, rollout: {tensor_model_parallel_size: 1}}\n"
    )
    command = [sys.executable, "-m", "opd_conf", "--config-dir", str(tmp_path), "--cfg", "job"]
    choices = ["platform=gpu", "student=mine", "teacher=qwen2_5_3b_instruct"]
    done = subprocess.run([*command, *choices], cwd=tmp_path, capture_output=True, text=True)
    assert "path: MyOrg/My-1B" in done.stdout, done.stderr

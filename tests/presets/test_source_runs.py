"""The runs of verl's own scripts, leaf by leaf: every difference from them is named here, with its reason."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from opd_conf import platforms, verl_tree
from opd_conf.compose import compose

RUNS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("source_runs.yaml").read_text())

EVERYWHERE = {
    "trainer.logger": "`file` writes metrics.jsonl",
    "trainer.project_name": "named for the data",
    "trainer.experiment_name": "named for the student that is trained",
    "trainer.default_local_dir": "inside the run folder",
    "actor_rollout_ref.rollout.trace.project_name": "follows trainer",
    "actor_rollout_ref.rollout.trace.experiment_name": "follows trainer",
    "ray_kwargs.ray_init.address": "a Ray of our own on one node, the existing one on several",
    "distillation.teacher_models.teacher_model.inference.enable_sleep_mode": "verl's own default; false on a CPU",
    "distillation.teacher_models.teacher_model.num_replicas": "of named teachers; verl computes it for a single one",
}
QWEN3_5 = {"data.image_patch_size": "16 is Qwen3.5's; 14 makes the length filter count wrong"}
DEVIATIONS = {
    "qwen3_5_2b_gpu": QWEN3_5,
    "qwen3_5_2b_npu": QWEN3_5
    | {
        "trainer.device": "verl sets it itself when it starts on an NPU",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile": "the key that the engine reads",
        "actor_rollout_ref.rollout.engine_kwargs.vllm": "an empty mapping there",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.mm_processor_cache_gb": "in the place that verl reads",
    },
    "qwen3_5_4b_gpu": QWEN3_5,
    "qwen2_5_0_5b_veomni": {
        "data.train_batch_size": "14 was for seven student accelerators",
        "actor_rollout_ref.actor.ppo_mini_batch_size": "follows the batch",
        "actor_rollout_ref.actor.optim.lr_scheduler_type": "VeOmni's default decays to 0",
        "critic.ppo_mini_batch_size": "follows the batch; there is no critic",
    },
}


def _leaves(config: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(config, dict) or not config:
        return {prefix: config}
    return {
        key: value
        for name, child in config.items()
        for key, value in _leaves(child, f"{prefix}.{name}".strip(".")).items()
    }


def _theirs(run: dict[str, Any]) -> dict[str, Any]:
    tree = verl_tree.load(run["tree"])
    for key, value in run["sets"].items():
        OmegaConf.update(tree, key, value)
    tree.reward.reward_model.rollout.name = None  # mandatory only when there is a reward model
    return _leaves(OmegaConf.to_container(tree, resolve=True))


def _ours(run: dict[str, Any]) -> dict[str, Any]:
    config = compose(run["ours"]).config
    config.reward.reward_model.rollout.name = None
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return _leaves({key: value for key, value in resolved.items() if key in verl_tree.root_keys()})


def _same(theirs: Any, ours: Any) -> bool:
    return str(theirs).replace("$HOME", os.environ["HOME"]) == str(ours)


@pytest.mark.parametrize("name", RUNS)
def test_a_source_run_differs_only_where_it_is_said(name: str):
    theirs, ours = _theirs(RUNS[name]), _ours(RUNS[name])
    missing = object()
    different = {
        key
        for key in theirs.keys() | ours.keys()
        if not _same(theirs.get(key, missing), ours.get(key, missing))
        and not (key not in theirs and ours[key] in ({}, None))
    }
    said = (EVERYWHERE | DEVIATIONS[name]).keys()
    assert different - said == set(), {key: (theirs.get(key), ours.get(key)) for key in different - said}
    assert DEVIATIONS[name].keys() - different == set(), "no difference any more: take it out"


@pytest.mark.parametrize("name", RUNS)
def test_keys_that_verl_does_not_read_are_not_repeated(name: str):
    ours, default = (
        _ours(RUNS[name]),
        _leaves(OmegaConf.to_container(verl_tree.load(RUNS[name]["tree"]), resolve=False)),
    )
    for key in RUNS[name]["unread"]:
        value = default[key]
        if not str(value).startswith("${"):
            assert ours[key] == value, key


def test_the_npu_environment_is_the_scripts_block():
    config = compose(RUNS["qwen3_5_2b_npu"]["ours"]).config
    assert platforms.environment(config).items() >= RUNS["qwen3_5_2b_npu"]["environment"].items()
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in config.platform.env


@pytest.mark.parametrize("platform", ["gpu", "npu"])
def test_the_default_cluster_is_one_node_split_in_half(platform: str):
    config = compose([f"platform={platform}", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b"]).config
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (1, 4)
    assert (config.distillation.nnodes, config.distillation.n_gpus_per_node) == (1, 4)
    assert config.distillation.teacher_models.teacher_model.inference.tensor_model_parallel_size == 4

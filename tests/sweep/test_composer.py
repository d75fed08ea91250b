"""Cells are what Hydra would have made of them: a sample of a large sweep is composed both ways."""

import random

import pytest
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

from opd_conf.compose import compose

RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
AXES = (
    ("loss_mode=k1", "loss_mode=forward_kl_topk", "loss_mode=kl"),
    ("engine=fsdp2", "engine=veomni"),
    ("data=geo3k", "data=gsm8k"),
    ("rollout=vllm", "rollout=sglang"),
    ("cluster=1x8", "cluster=2x8"),
    ("topk=8", "topk=64"),
    ("+data.note={a: 1}", "data.max_prompt_length=512"),
    ("actor_rollout_ref.actor.ppo_mini_batch_size=64", "++trainer.extra='[1, 2]'", "~trainer.project_name"),
    ("data.train_batch_size=256", "actor_rollout_ref.actor.optim={lr: 1e-5}"),
)


def drawn(number: int) -> list[list[str]]:
    draw = random.Random(7)
    return [[*RUN, *draw.sample([draw.choice(axis) for axis in AXES], k=6)] for _ in range(number)]


@pytest.mark.parametrize("overrides", drawn(12), ids=lambda overrides: " ".join(overrides[3:]))
def test_a_cell_is_what_hydra_composes(composer, overrides):
    composer.compose([*RUN, "topk=3", "data.train_batch_size=7"])  # leaves nothing behind
    ours = composer.compose(overrides)
    name = ours.config.trainer.experiment_name
    hydras = compose(overrides)
    assert ours.choices == hydras.choices
    assert OmegaConf.to_container(ours.config) == OmegaConf.to_container(hydras.config)
    assert name == hydras.config.trainer.experiment_name


def test_a_key_that_is_not_there_is_hydras_error(composer):
    with pytest.raises(ConfigCompositionException, match="Could not override"):
        composer.compose([*RUN, "actor_rollout_ref.actor.veomni.param_offload=true"])

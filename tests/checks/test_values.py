"""Values of the wrong kind."""

import pytest


@pytest.mark.parametrize(
    ("override", "message", "fix"),
    [
        (
            "actor_rollout_ref.actor.optim.lr=1e-6x",
            'lr is the text "1e-6x", and verl needs a number',
            "actor_rollout_ref.actor.optim.lr=1e-06",
        ),
        (
            "trainer.val_before_train=off",
            'is the text "off", and verl needs true or false',
            "trainer.val_before_train=true",
        ),
        ("trainer.use_v1=1", "is 1, and verl needs true or false", "trainer.use_v1=true"),
        ("trainer.total_epochs=true", "is true, and verl needs a number", "trainer.total_epochs=30"),
    ],
)
def test_a_value_of_another_kind_is_refused(fires, override, message, fix):
    fires("value_kind", override, message, fix)


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.actor.entropy_coeff=0.001",
        "actor_rollout_ref.actor.optim.lr=1",
        "actor_rollout_ref.rollout.top_p=0.9",
        "trainer.experiment_name=12",
        "data.seed=3",
        "trainer.save_freq=null",
    ],
)
def test_whole_and_broken_numbers_and_nulls_are_fine(quiet, override):
    quiet("value_kind", override)

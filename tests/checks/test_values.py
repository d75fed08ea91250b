"""Values of the wrong kind, values that cannot be made, keys that were taken away."""

import pytest

from opd_conf.checks import findings
from opd_conf.checks.examples import RUN

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"


@pytest.mark.parametrize(
    ("override", "message", "fix"),
    [
        (f"{ACTOR}.optim.lr=1e-6x", 'lr is the text "1e-6x", and verl needs a number', f"{ACTOR}.optim.lr=1e-06"),
        ("trainer.val_before_train=off", 'is the text "off", and verl needs true', "trainer.val_before_train=false"),
        ("trainer.val_before_train=yes", 'is the text "yes", and verl needs true', "trainer.val_before_train=true"),
        ("trainer.use_v1=1", "is 1, and verl needs true or false", "trainer.use_v1=true"),
        ("trainer.total_epochs=true", "is true, and verl needs a whole number", "trainer.total_epochs=30"),
        # a broken number where verl counts, also one that is whole
        ("trainer.save_freq=64.0", "is 64.0, and verl needs a whole number", "trainer.save_freq=64"),
        (f"{ACTOR}.ppo_epochs=1.5", "is 1.5, and verl needs a whole number", f"{ACTOR}.ppo_epochs=1"),
        (f"{ROLLOUT}.max_num_seqs=1e3", "is 1000.0, and verl needs a whole number", f"{ROLLOUT}.max_num_seqs=1000"),
        # a number as text
        ("trainer.test_freq='\"5\"'", 'is the text "5", and verl needs a whole number', "trainer.test_freq=5"),
        (f"+{ROLLOUT}.limit_images=four", "and verl needs a whole number", f"{ROLLOUT}.limit_images=null"),
        # lists and single values
        (f"{ROLLOUT}.top_p=[0.9]", "is [0.9], and verl needs a number", f"{ROLLOUT}.top_p=0.9"),
        (f"{ROLLOUT}.dtype=[float16]", "is ['float16'], and verl needs a text", f"{ROLLOUT}.dtype=float16"),
        (f"{ACTOR}.checkpoint.save_contents=model", "verl needs a list", f"'{ACTOR}.checkpoint.save_contents=[model]'"),
        ("data.image_key=[images]", "is ['images'], and verl needs a text", "data.image_key=images"),
        # blocks
        (f"{MODEL}.override_config=x", "verl needs a block of keys", f"'{MODEL}.override_config={{}}'"),
        # null where verl calculates
        ("trainer.save_freq=null", "is null, and verl calculates with it", "trainer.save_freq=-1"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused(fires, override, message, fix):
    fires("value_kind", override, message, fix)


@pytest.mark.parametrize(
    "override",
    [
        f"{ACTOR}.entropy_coeff=0.001",
        f"{ACTOR}.optim.lr=1",
        f"{ROLLOUT}.top_p=0.9",
        "trainer.experiment_name=12",
        "trainer.logger=console",
        "data.seed=3",
        "data.train_files=[a.parquet,b.parquet]",
        "actor_rollout_ref.nccl_timeout=600.5",
        "actor_rollout_ref.model.override_config=null",
        "actor_rollout_ref.model.target_modules=[q_proj]",
        "trainer.v1.sampler.max_off_policy_threshold=null",
        f"{ROLLOUT}.max_num_seqs='${{data.train_batch_size}}'",
        f"+{ROLLOUT}.engine_kwargs.vllm.anything=[1,{{a:2}}]",
    ],
)
def test_what_verl_takes_is_fine(quiet, override):
    quiet("value_kind", override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.project_name='${nowhere}'", "Interpolation key 'nowhere' not found"),
        ("trainer.project_name='a_${nowhere}'", "Interpolation key 'nowhere' not found"),
        ("trainer.project_name='${oc.env:NOT_SET_ANYWHERE}'", "Environment variable 'NOT_SET_ANYWHERE' not found"),
        ("trainer.project_name='${trainer.project_name}'", "Recursive interpolation detected"),
        ("trainer.project_name='${no_resolver:1}'", "Unsupported interpolation type no_resolver"),
    ],
)
def test_a_value_that_cannot_be_made_is_refused(fires, override, message):
    fires("value_made", override, message, "trainer.project_name=VALUE")


@pytest.mark.parametrize(
    "override",
    ["trainer.project_name='${data.image_key}_${oc.env:HOME}'", "data.image_key='${oc.select:nowhere,images}'"],
)
def test_values_that_can_be_made(quiet, override):
    quiet("value_made", override)


@pytest.mark.parametrize("key", ["critic", "trainer.save_freq", "data.image_key"])
def test_a_key_that_was_taken_away(compose, key):
    [finding] = [found for found in findings(compose(*RUN, f"~{key}")) if found.id == "key_left_out"]
    assert (finding.severity, finding.keys, finding.fix) == ("warning", (key,), f"leave out ~{key}")


def test_keys_that_may_be_taken_away(compose):
    typed = "~distillation.teacher_models.teacher_model", "~actor_rollout_ref.actor.optim.betas"
    assert "key_left_out" not in {found.id for found in findings(compose(*RUN, *typed))}

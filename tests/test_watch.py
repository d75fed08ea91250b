"""Concerns about a run that trains: each is raised by the numbers it is about, once, and by no healthy ones."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from opd_conf.compose import compose
from opd_conf.handoff import Handoff, handoff
from opd_conf.metrics import Step
from opd_conf.watch import Asked, Watch, asked_of

V = 151_936

TOPK = Asked(
    folder=Path("run"),
    loss_mode="forward_kl_topk",
    topk=64,
    vocabulary=V,
    teachers=1,
    dummy=(),
    entropy_per_token=True,
    response_length=512,
    samples=64,
    mini_batch=32,
    learning_rate=1e-6,
    only_teacher=True,
)
K1 = replace(TOPK, loss_mode="k1", topk=None)
SMOKE = replace(TOPK, topk=16, vocabulary=100, response_length=12, learning_rate=2e-3)

# A step of a run with 64 answers that end, as verl logs it.
HEALTHY = {
    "actor/loss": 0.34,
    "actor/distillation/loss": 0.34,
    "actor/entropy": 0.51,
    "actor/grad_norm": 1.1,
    "actor/lr": 1e-6,
    "response_length_non_aborted/clip_ratio": 0.016,
    "response_length/max": 512.0,
    "response_length/mean": 200.25,
    "prompt_length/mean": 190.359375,
    "perf/total_num_tokens": 24999,
    "critic/score/mean": 0.1,
}
TOPK_STEP = {**HEALTHY, "actor/distillation/teacher_mass": 0.98, "actor/distillation/teacher_mass_min": 0.25}
K1_STEP = {**HEALTHY, "actor/distillation/loss": 0.01, "actor/distillation/abs_loss": 0.4}


def told(asked: Asked, *steps: dict[str, object]) -> list[tuple[str, int]]:
    """Ids and steps of what is said of these steps."""
    watch = Watch(asked)
    return [(concern.id, concern.step) for n, step in enumerate(steps, 1) for concern in watch.new(Step(n, step))]


@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        (TOPK, [TOPK_STEP] * 20),
        (K1, [K1_STEP] * 20),
        # Full runs of Qwen3-0.6B's dimensions: teacher = student with k1; another teacher with top-k.
        (K1, [{**K1_STEP, "actor/distillation/abs_loss": 0.032, "actor/entropy": 5.94}] * 2),
        (
            TOPK,
            [
                {
                    **TOPK_STEP,
                    "actor/distillation/teacher_mass": 0.425,
                    "actor/distillation/loss": 5.57,
                    "actor/grad_norm": 31.4,
                }
            ]
            * 2,
        ),
        # The smoke run, and k1 there, where ln V - entropy (4.1, later 3.6) is no more than the distance itself.
        (
            SMOKE,
            [{**TOPK_STEP, "actor/distillation/teacher_mass": 0.9999, "response_length/max": 9.0}] * 16,
        ),
        (
            replace(SMOKE, loss_mode="k1", topk=None),
            [{**K1_STEP, "actor/distillation/abs_loss": 3.5, "actor/entropy": 0.97, "response_length/max": 12.0}] * 16,
        ),
    ],
)
def test_healthy_runs_are_left_alone(asked, steps):
    assert told(asked, *steps) == []


def test_a_teacher_whose_best_tokens_hold_no_more_than_others_is_random():
    random = {**TOPK_STEP, "actor/distillation/teacher_mass": 0.00042}
    assert told(TOPK, random, random, random) == [("random_teacher", 1)]
    assert told(TOPK, TOPK_STEP, TOPK_STEP, TOPK_STEP, TOPK_STEP, random) == [("random_teacher", 5)]
    assert told(replace(TOPK, vocabulary=None), random) == []


def test_one_random_teacher_of_several_is_seen_at_the_least_mass():
    mixed = {**TOPK_STEP, "actor/distillation/teacher_mass": 0.49, "actor/distillation/teacher_mass_min": 64 / V}
    assert told(replace(TOPK, teachers=2), mixed) == [("random_teacher", 1)]
    assert told(TOPK, mixed) == []


@pytest.mark.parametrize(
    ("mode", "distance"),
    [("k1", 6.26), ("kl", 6.26), ("abs", 6.26), ("k2", 19.6), ("mse", 19.6), ("k3", 5.26), ("low_var_kl", 5.26)],
)
def test_a_distance_of_ln_v_minus_entropy_means_a_random_teacher(mode, distance):
    step = {**K1_STEP, "actor/distillation/abs_loss": distance, "actor/entropy": math.log(V) - 6.26}
    assert told(replace(K1, loss_mode=mode), step, step) == [("random_teacher", 1)]
    assert told(replace(K1, loss_mode=mode), {**step, "actor/distillation/abs_loss": 0.5 * distance}) == []


def test_a_distance_is_judged_only_where_it_says_something():
    step = {**K1_STEP, "actor/distillation/abs_loss": 11.4, "actor/entropy": 0.5}
    assert told(K1, step) == [("random_teacher", 1)]
    assert told(K1, K1_STEP, K1_STEP, K1_STEP, step) == []  # a student that broke later
    assert told(replace(K1, entropy_per_token=False), step) == []
    assert told(replace(K1, vocabulary=None), step) == []
    assert told(K1, {**step, "actor/entropy": None}) == []


@pytest.mark.parametrize("name", ["actor/loss", "actor/distillation/loss", "actor/grad_norm"])
def test_a_null_stands_for_a_number_that_is_none(name):
    assert told(TOPK, TOPK_STEP, {**TOPK_STEP, name: None}, {**TOPK_STEP, name: None}) == [("not_finite", 2)]
    assert told(TOPK, {**TOPK_STEP, name: float("nan")}) == [("not_finite", 1)]


def test_responses_that_are_all_cut_are_noticed_at_the_third_step():
    cut = {**TOPK_STEP, "response_length_non_aborted/clip_ratio": 1.0}
    assert told(TOPK, *[cut] * 9) == [("responses_cut", 3)]
    assert told(TOPK, cut, cut, TOPK_STEP, cut, cut) == []
    assert told(replace(TOPK, response_length=1024), *[cut] * 9) == []  # as long as the longest, below the limit
    assert told(replace(TOPK, response_length=None), *[cut] * 9) == []


def tokens(real: int, padding: int) -> dict[str, object]:
    return {**TOPK_STEP, "perf/total_num_tokens": round(real * (190.359375 + 200.25)) + 128 * padding}


def test_samples_that_padding_replaces_are_counted():
    assert told(TOPK, tokens(64, 0), tokens(61, 3), tokens(40, 24)) == [("samples_failing", 2)]
    watch = Watch(TOPK)
    (concern,) = watch.new(Step(1, tokens(61, 3)))
    assert "3 of 64 samples" in concern.message
    assert told(replace(TOPK, samples=40), tokens(40, 24)) == []  # padded up to whole mini-batches, as always
    assert told(replace(TOPK, samples=None), tokens(61, 3)) == []
    assert told(TOPK, tokens(70, 26)) == []  # more than were asked for: an agent with several outputs


def test_samples_that_are_sampled_again_are_a_concern_too():
    again = {**TOPK_STEP, "training/rollout_failure/evicted_samples": 4.0}
    assert told(replace(TOPK, samples=None), TOPK_STEP, again, again) == [("samples_failing", 2)]


def test_a_gradient_of_zero_three_times_is_a_concern():
    zero = {**TOPK_STEP, "actor/grad_norm": 0.0}
    assert told(TOPK, zero, zero, zero, zero) == [("no_gradient", 3)]
    assert told(TOPK, zero, zero, TOPK_STEP, zero, zero) == []


def curve(*losses: float, rate: float = 1e-6) -> list[dict[str, object]]:
    return [{**TOPK_STEP, "actor/distillation/loss": loss, "actor/lr": rate} for loss in losses]


def test_a_loss_that_does_not_move_in_a_hundred_steps_is_a_concern():
    still = [0.30 + 0.01 * (-1) ** n for n in range(250)]
    assert told(TOPK, *curve(*still)) == [("loss_stands_still", 100)]
    assert told(TOPK, *curve(*still[:99])) == []
    assert told(replace(TOPK, only_teacher=False), *curve(*still)) == []


def test_a_loss_that_has_moved_is_none():
    assert told(TOPK, *curve(*[0.3 - 0.0001 * n for n in range(300)])) == []  # slowly: 3 % in a hundred steps
    assert told(TOPK, *curve(*[0.3] * 30, *[0.2] * 970)) == []  # learnt, and on a plateau since
    assert told(TOPK, *curve(*[0.1] * 40, *[0.3] * 160)) == []


def test_a_loss_may_wait_for_the_learning_rate():
    warming = [step for n in range(150) for step in curve(0.3, rate=1e-8 * n)]
    assert told(TOPK, *warming, *curve(*[0.3] * 49)) == []
    assert told(TOPK, *warming, *curve(*[0.3] * 150)) == [("loss_stands_still", 300)]


def run(*overrides: str) -> Handoff:
    return handoff(compose([*overrides, "run_dir=x"]).config, Path("/run"))


QWEN = ("platform=gpu", "student=qwen2_5_0_5b", "teacher=qwen2_5_3b_instruct", "data=gsm8k")


def test_what_was_asked_is_read_from_the_run():
    found = asked_of(run(*QWEN, "loss_mode=forward_kl_topk", "topk=32", "actor_rollout_ref.rollout.n=2"))
    assert (found.loss_mode, found.topk, found.vocabulary, found.teachers) == ("forward_kl_topk", 32, 151_936, 1)
    assert (found.samples, found.mini_batch, found.response_length, found.dummy) == (256, 256, 1024, ())
    assert found.only_teacher
    assert asked_of(run(*QWEN, "actor_rollout_ref.rollout.ignore_eos=true")).response_length is None
    assert asked_of(run(*QWEN, "loss_mode=k1")).topk is None


def test_an_unknown_model_has_no_vocabulary():
    models = ("actor_rollout_ref.model.path=/none", "distillation.teacher_models.teacher_model.model_path=/none")
    assert asked_of(run(*QWEN, *models)).vocabulary is None


def test_what_to_try_names_each_teacher_that_has_no_weights():
    teacher = "+distillation.teacher_models.math"
    named = run(*QWEN, "loss_mode=forward_kl_topk", f"{teacher}.model_path=Qwen/Qwen2.5-3B", f"{teacher}.key=a")
    (concern,) = Watch(asked_of(named)).new(Step(1, {"actor/distillation/teacher_mass": 0.0005}))
    assert concern.try_ == "+distillation.teacher_models.math.inference.load_format=auto"


def test_a_configuration_that_lacks_keys_is_watched_as_far_as_it_goes():
    known = run(*QWEN)
    bare = replace(known, verl=OmegaConf.to_container(OmegaConf.create({"distillation": {"teacher_models": {}}})))
    assert told(asked_of(bare), {"actor/loss": None}) == [("not_finite", 1)]

"""The view: numbers of a run, each derived once."""

import pytest

from opd_conf.reader import Malformed
from opd_conf.view import largest_divisor, view

RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
ACTOR = "actor_rollout_ref.actor"
MODELS = "distillation.teacher_models"


def test_the_usual_run(compose):
    run = view(compose(*RUN))
    assert (run.cluster_nodes, run.cluster_per_node, run.student_world, run.teacher_pool) == (1, 8, 4, 4)
    assert (run.train_batch, run.mini_batch, run.rollout_n, run.data_parallel) == (128, 128, 1, 4)
    assert (run.prompt_length, run.response_length, run.sequence_length) == (1024, 2048, 3072)
    assert (run.dynamic, run.log_prob_dynamic, run.token_budget) == (False, False, None)
    assert (run.micro_batch.per_gpu, run.log_prob_micro_batch.per_gpu, run.ref_micro_batch) == (1, 1, None)
    assert (run.engine, run.tree, run.strategy) == ("fsdp_config", "ppo_trainer", "fsdp2")
    assert (run.loss_mode, run.uses_top_k, run.policy_gradient, run.adv_estimator) == ("k1", False, True, "grpo")
    assert (run.rollout.backend, run.rollout.accelerators, run.rollout.max_model_len) == ("vllm", 2, 3073)


def test_the_single_teacher(compose):
    run = view(compose(*RUN))
    [teacher] = run.teachers
    assert (teacher.entry, teacher.prefix) == ("teacher_model", f"{MODELS}.teacher_model")
    assert (teacher.model_path, teacher.load_format, teacher.backend) == ("Qwen/Qwen3.5-35B-A3B", "auto", "vllm")
    assert (teacher.accelerators, teacher.expert_parallel, teacher.max_model_len) == (4, 4, 3073)
    assert (run.named_teachers, run.dropped_teacher) == (False, None)


def test_two_nodes(compose):
    run = view(compose(*RUN, "cluster=2x8", "trainer.nnodes=2"))
    assert (run.student_world, run.data_parallel, run.teacher_pool) == (16, 16, 8)


@pytest.mark.parametrize(
    ("overrides", "shared", "ranks"),
    [
        ((f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=2",), 2, 2),
        ((f"{ACTOR}.ulysses_sequence_parallel_size=4",), 4, 1),
        ((f"{ACTOR}.ulysses_sequence_parallel_size=2", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=4"), 2, 2),
        (("engine=veomni", f"{ACTOR}.veomni.ulysses_parallel_size=2"), 2, 2),
        (("engine=veomni",), 1, 4),
    ],
)
def test_ranks_that_share_a_sequence_leave_fewer_data_parallel_ones(compose, overrides, shared, ranks):
    run = view(compose(*RUN, *overrides))
    assert (run.sequence_parallel, run.data_parallel) == (shared, ranks)


def test_dynamic_batches_have_budgets(compose):
    run = view(compose(*RUN, f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=8192"))
    assert (run.dynamic, run.log_prob_dynamic) == (True, True)
    assert (run.token_budget, run.log_prob_token_budget) == (8192, 8192)


def test_a_reference_policy_has_a_micro_batch(compose):
    run = view(compose(*RUN, f"{ACTOR}.use_kl_loss=true"))
    assert run.ref_micro_batch is not None
    assert run.ref_micro_batch.per_gpu is None


def test_a_named_teacher_gets_verls_defaults_and_the_other_entry_is_dropped(compose):
    run = view(compose(*RUN, f"+{MODELS}.math.key=a", f"+{MODELS}.math.inference.dtype=bfloat16"))
    [teacher] = run.teachers
    assert (teacher.entry, teacher.key, teacher.model_path, teacher.num_replicas) == ("math", "a", None, 0)
    assert (teacher.backend, teacher.load_format, teacher.accelerators) == (None, "dummy", 2)
    assert (teacher.prompt_length, teacher.response_length, teacher.max_model_len) == (512, 512, None)
    assert (run.named_teachers, run.dropped_teacher) == (True, "Qwen/Qwen3.5-35B-A3B")


def test_named_teachers_without_the_default_entry(compose):
    run = view(compose(*RUN, "~teacher", f"+{MODELS}.a.key=a", f"+{MODELS}.b.key=b"))
    assert [teacher.entry for teacher in run.teachers] == ["a", "b"]
    assert run.dropped_teacher is None


def test_what_to_type_for_a_key(compose):
    run = view(compose(*RUN))
    assert run.set("trainer.nnodes", 2) == "trainer.nnodes=2"
    assert run.set("trainer.use_v1", True) == "trainer.use_v1=true"
    assert run.set(f"{MODELS}.math.key", None) == f"+{MODELS}.math.key=null"


def test_values_made_from_others(compose):
    run = view(compose(*RUN, "loss_mode=forward_kl_topk"))
    assert run.follows(f"{ACTOR}.ppo_mini_batch_size")
    assert run.follows("distillation.distillation_loss.topk")
    assert not run.follows("data.train_batch_size")


def test_all_wrong_values_are_told_at_once_and_only_where_they_were_made(compose):
    config = compose(*RUN, "data.max_prompt_length=x", "trainer.nnodes=0")
    with pytest.raises(Malformed) as caught:
        view(config)
    assert [fault.key for fault in caught.value.faults] == ["trainer.nnodes", "data.max_prompt_length"]
    assert "type: trainer.nnodes=1" in str(caught.value)


def test_a_block_that_is_gone(compose):
    with pytest.raises(Malformed, match="trainer is 3, and every run needs the keys below it"):
        view(compose(*RUN, "trainer=3"))


def test_divisors_of_numbers_that_nobody_counts_to():
    assert [largest_divisor(*pair) for pair in ((12, 5), (7, 6), (999999937, 8), (10**18, 10**5))] == [4, 1, 1, 10**5]

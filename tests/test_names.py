"""Names that were meant: habits of other trainers, older versions of verl, slips and wrong places."""

import functools

import pytest

from opd_conf import verl_tree
from opd_conf.names import nearest, nearest_keys
from opd_conf.view import ACTOR, LOSS, ROLLOUT

MODEL = "actor_rollout_ref.model"
TEACHER = "distillation.teacher_models.teacher_model"


@functools.cache
def keys() -> tuple[str, ...]:
    """All keys of a run, as far as they can be meant: verl's, and one of ours."""

    def walk(block: dict, at: str = "") -> list[str]:
        found = []
        for name, value in block.items():
            found += [f"{at}{name}", *(walk(value, f"{at}{name}.") if isinstance(value, dict) else ())]
        return found

    return ("run_dir", *walk(verl_tree.read("ppo_trainer")))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("learning_rate", f"{ACTOR}.optim.lr"),
        ("lr", f"{ACTOR}.optim.lr"),
        ("optim.lr", f"{ACTOR}.optim.lr"),
        ("trainer.learning_rate", f"{ACTOR}.optim.lr"),
        ("batch_size", "data.train_batch_size"),
        ("train_batch_size", "data.train_batch_size"),
        ("rollout_batch_size", "data.train_batch_size"),
        ("mini_batch_size", f"{ACTOR}.ppo_mini_batch_size"),
        ("micro_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        ("per_device_train_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        ("num_gpus", "trainer.n_gpus_per_node"),
        ("n_gpus", "trainer.n_gpus_per_node"),
        ("num_nodes", "trainer.nnodes"),
        ("trainer.gpus_per_node", "trainer.n_gpus_per_node"),
        ("distillation.num_gpus", "distillation.n_gpus_per_node"),
        ("num_epochs", "trainer.total_epochs"),
        ("num_train_epochs", "trainer.total_epochs"),
        ("trainer.epochs", "trainer.total_epochs"),
        ("max_steps", "trainer.total_training_steps"),
        ("max_new_tokens", "data.max_response_length"),
        ("max_completion_length", "data.max_response_length"),
        ("generate_max_len", "data.max_response_length"),
        ("prompt_max_len", "data.max_prompt_length"),
        ("max_length", "data.max_prompt_length"),
        ("num_generations", f"{ROLLOUT}.n"),
        ("n_samples_per_prompt", f"{ROLLOUT}.n"),
        ("rollout.n", f"{ROLLOUT}.n"),
        ("model_name_or_path", f"{MODEL}.path"),
        ("pretrain", f"{MODEL}.path"),
        ("model.path", f"{MODEL}.path"),
        ("student.path", f"{MODEL}.path"),
        ("teacher_model_name_or_path", f"{TEACHER}.model_path"),
        ("distillation.teacher_model.model_path", f"{TEACHER}.model_path"),
        ("teacher.path", f"{TEACHER}.model_path"),
        ("distillation.teacher_path", f"{TEACHER}.model_path"),
        ("gpu_memory_utilization", f"{ROLLOUT}.gpu_memory_utilization"),
        ("vllm_gpu_memory_utilization", f"{ROLLOUT}.gpu_memory_utilization"),
        ("tensor_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size"),
        ("vllm_tensor_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size"),
        ("rollout.tp", f"{ROLLOUT}.tensor_model_parallel_size"),
        (f"{ROLLOUT}.tensor_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size"),
        ("teacher.tensor_parallel_size", f"{TEACHER}.inference.tensor_model_parallel_size"),
        (f"{TEACHER}.tensor_model_parallel_size", f"{TEACHER}.inference.tensor_model_parallel_size"),
        ("save_steps", "trainer.save_freq"),
        ("eval_steps", "trainer.test_freq"),
        ("report_to", "trainer.logger"),
        ("run_name", "trainer.experiment_name"),
        ("wandb_project", "trainer.project_name"),
        ("output_dir", "run_dir"),
        ("max_grad_norm", f"{ACTOR}.optim.clip_grad"),
        ("warmup_ratio", f"{ACTOR}.optim.lr_warmup_steps_ratio"),
        ("lr_scheduler_type", f"{ACTOR}.optim.lr_scheduler_type"),
        ("gradient_checkpointing", f"{MODEL}.enable_gradient_checkpointing"),
        ("distillation.topk", f"{LOSS}.topk"),
        ("distillation.loss_mode", f"{LOSS}.loss_mode"),
        ("distillation.loss.topk", f"{LOSS}.topk"),
        ("distillation.loss_max_clamp", f"{LOSS}.loss_max_clamp"),
        ("distillation.use_policy_gradient", f"{LOSS}.use_policy_gradient"),
        (f"{ACTOR}.fsdp_config.grad_offload", f"{ACTOR}.fsdp_config.param_offload"),
        (f"{ACTOR}.lr", f"{ACTOR}.optim.lr"),
        (f"{ACTOR}.fsdp_config.param_ofload", f"{ACTOR}.fsdp_config.param_offload"),
        (f"{ROLLOUT}.max_new_tokens", f"{ROLLOUT}.response_length"),
        ("algorithm.kl_coef", "algorithm.kl_ctrl.kl_coef"),
        (f"{ACTOR}.ppo_microbatch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        ("train_files", "data.train_files"),
        ("val_files", "data.val_files"),
        ("test_files", "data.val_files"),
        ("data.train_file", "data.train_files"),
        ("seed", "data.seed"),
        ("temperature", f"{ROLLOUT}.temperature"),
        ("beta", f"{ACTOR}.kl_loss_coef"),
        ("init_kl_coef", f"{ACTOR}.kl_loss_coef"),
    ],
)
def test_the_key_that_was_meant_is_among_the_first_two(typed, meant):
    assert meant in nearest_keys(typed, keys(), limit=2)


def test_names_that_look_alike():
    assert nearest("fspd2", ["fsdp", "fsdp2", "veomni"])[0] == "fsdp2"
    assert nearest("SGLang", ["vllm", "sglang"]) == ["sglang"]
    assert nearest("zzz", ["vllm", "sglang"]) == []


def test_keys_that_look_alike_prefer_shared_parts():
    known = ["topk", "distillation.distillation_loss.topk", f"{ROLLOUT}.top_k", "critic.optim.lr"]
    assert nearest_keys("distillation.topk", known, limit=1) == ["distillation.distillation_loss.topk"]
    assert nearest_keys("optim.lr", known) == []
    assert nearest_keys("critic.lr", known) == ["critic.optim.lr"]

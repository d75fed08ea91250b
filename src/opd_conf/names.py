"""Names that were meant: of options, rules and keys."""

import difflib
from collections.abc import Iterable

from opd_conf.view import ACTOR, ROLLOUT, TEACHERS

RARE = ("critic.", "reward.", "reward_model.", "hydra.")
"""Blocks that nobody means who does not name them: verl's own keys are there a second time."""

_MODEL = "actor_rollout_ref.model"
_TEACHER = f"{TEACHERS}.teacher_model"

HABITS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("learning_rate", "lr", "actor_learning_rate"): (f"{ACTOR}.optim.lr",),
    ("batch_size", "global_batch_size", "rollout_batch_size", "gen_batch_size"): ("data.train_batch_size",),
    ("mini_batch_size", "minibatch_size"): (f"{ACTOR}.ppo_mini_batch_size",),
    ("micro_batch_size", "micro_train_batch_size", "per_device_train_batch_size", "per_device_batch_size"): (
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    ),
    ("num_gpus", "n_gpus", "gpus", "num_gpus_per_node", "gpus_per_node", "actor_num_gpus_per_node", "num_processes"): (
        "trainer.n_gpus_per_node",
        "distillation.n_gpus_per_node",
    ),
    ("num_nodes", "n_nodes", "nodes", "num_machines", "actor_num_nodes"): ("trainer.nnodes", "distillation.nnodes"),
    ("num_epochs", "epochs", "num_train_epochs", "max_epochs", "num_episodes"): ("trainer.total_epochs",),
    ("max_steps", "num_steps", "total_steps", "num_train_steps"): ("trainer.total_training_steps",),
    ("max_new_tokens", "max_completion_length", "generate_max_len", "max_tokens", "response_len"): (
        "data.max_response_length",
        f"{ROLLOUT}.response_length",
    ),
    ("prompt_max_len", "max_prompt_len", "max_length", "max_seq_length", "max_input_length", "max_len"): (
        "data.max_prompt_length",
        f"{ROLLOUT}.prompt_length",
    ),
    ("num_generations", "n_samples_per_prompt", "num_samples", "num_return_sequences", "n_samples"): (f"{ROLLOUT}.n",),
    ("path", "model_path", "model_name_or_path", "pretrain", "model", "model_name", "hf_checkpoint"): (
        f"{_MODEL}.path",
        f"{_TEACHER}.model_path",
    ),
    ("tensor_parallel_size", "vllm_tensor_parallel_size", "tp", "tp_size", "tensor_model_parallel_size"): (
        f"{ROLLOUT}.tensor_model_parallel_size",
        f"{_TEACHER}.inference.tensor_model_parallel_size",
    ),
    ("gpu_memory_utilization", "vllm_gpu_memory_utilization", "mem_fraction_static"): (
        f"{ROLLOUT}.gpu_memory_utilization",
        f"{_TEACHER}.inference.gpu_memory_utilization",
    ),
    ("save_steps", "save_interval"): ("trainer.save_freq",),
    ("eval_steps", "eval_interval", "val_freq", "eval_freq"): ("trainer.test_freq",),
    ("report_to", "use_wandb", "log_with"): ("trainer.logger",),
    ("run_name", "wandb_run_name", "exp_name"): ("trainer.experiment_name",),
    ("wandb_project", "project"): ("trainer.project_name",),
    ("output_dir", "save_path", "ckpt_path", "save_dir"): ("run_dir", "trainer.default_local_dir"),
    ("max_grad_norm", "max_norm", "grad_clip", "clip_grad_norm"): (f"{ACTOR}.optim.clip_grad",),
    ("warmup_ratio", "lr_warmup_ratio"): (f"{ACTOR}.optim.lr_warmup_steps_ratio",),
    ("warmup_steps", "num_warmup_steps"): (f"{ACTOR}.optim.lr_warmup_steps",),
    ("gradient_checkpointing",): (f"{_MODEL}.enable_gradient_checkpointing",),
    ("beta", "kl_coef", "init_kl_coef", "kl_beta"): (f"{ACTOR}.kl_loss_coef", "algorithm.kl_ctrl.kl_coef"),
    ("test_files", "eval_files", "eval_dataset", "val_data"): ("data.val_files",),
    ("dataset", "train_data", "prompt_data", "dataset_name"): ("data.train_files",),
}
"""What other trainers, older versions of verl and people call something: names → keys here, the likeliest first."""

_MEANT = {name: keys for names, keys in HABITS.items() for name in names}


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names that look like a name, nearest first; none when nothing looks like it."""
    lowered = {candidate.lower(): candidate for candidate in known}
    return [lowered[found] for found in difflib.get_close_matches(name.lower(), lowered, limit, 0.6)]


def nearest_keys(key: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The dotted keys that may have been meant, the likeliest first.

    First those that other tools call so, then those whose last part is the key's, or looks like it. Parts that a
    candidate shares count most: `distillation.topk` → `distillation.distillation_loss.topk`.
    """
    *parents, last = key.lower().replace("-", "_").split(".")
    candidates = [name for name in known if not name.startswith(RARE) or key.startswith(RARE)]
    similar = difflib.get_close_matches(last, {name.rpartition(".")[2] for name in candidates}, 5, 0.75)

    def likeness(candidate: str) -> float:
        *above, name = candidate.split(".")
        return len(set(parents) & set(above)) + _ratio(last, name) + _ratio(key, candidate)

    alike = [name for name in candidates if name.rpartition(".")[2] in similar]
    meant = _meant(parents, last)
    found = [name for name in meant if name in candidates] + sorted(alike, key=likeness, reverse=True)
    return list(dict.fromkeys(found))[:limit]


def _meant(parents: list[str], last: str) -> list[str]:
    """The keys that are called so elsewhere; the teacher's only where one is named."""
    of_teacher = "teacher" in ".".join([*parents, last])
    last = last.replace("teacher_", "")
    keys = [key for key in _MEANT.get(last, ()) if of_teacher or not key.startswith(TEACHERS)]

    def shared(key: str) -> int:
        return len(set(parents) & set(key.split("."))) + 2 * (of_teacher and key.startswith(TEACHERS))

    return sorted(keys, key=shared, reverse=True)


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()

"""The trainer's modes: batches and pools beside those of student and teachers, once generation has its own pace."""

from collections.abc import Iterator

from opd_conf.checks.finding import Finding, error
from opd_conf.view import ACTOR, ROLLOUT, View, largest_divisor

MODE = "trainer.v1.trainer_mode"
SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"
BATCH, MINI = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"
REWARD = "reward.reward_model"


def _mode(run: View) -> str:
    return str(run.setting(MODE, "sync"))


def generated_in_whole_batches(run: View) -> Iterator[Finding]:
    """Prompts that are fetched at a time divide the batch.

    verl: trainer/ppo/v1/trainer_base.py:_next_train_batch; other modes than sync, and DAPO, fetch one by one.
    """
    size = run.number("data.gen_batch_size", 1)
    one_by_one = run.setting("algorithm.filter_groups.enable") or run.setting(
        "trainer.v1.sampler.sync_refill_failed_groups"
    )
    if _mode(run) == "sync" and not one_by_one and size > 0 and run.train_batch % size:
        yield error(
            "data.gen_batch_size",
            BATCH,
            message=f"data.gen_batch_size is {size}, which does not divide a batch of {run.train_batch} prompts.",
            fix=f"data.gen_batch_size={largest_divisor(run.train_batch, size)}",
        )


def separate_batches(run: View) -> Iterator[Finding]:
    """In separate_async a batch is as many mini-batches as there are updates from one exchange of weights to the next.

    verl: trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync.__init__.
    """
    steps = run.number(SYNC_STEP, 1)
    if _mode(run) == "separate_async" and run.train_batch != steps * run.mini_batch:
        batch = max(1, steps) * (run.train_batch // max(1, steps) if run.follows(MINI) else run.mini_batch)
        yield error(
            BATCH,
            MINI,
            SYNC_STEP,
            message=f"separate_async wants the batch to be parameter_sync_step x mini-batch = {steps} x "
            f"{run.mini_batch} = {steps * run.mini_batch} prompts, and it is {run.train_batch}.",
            fix=f"{BATCH}={batch} {MINI}={batch // max(1, steps)}",
        )


def separate_rollout(run: View) -> Iterator[Finding]:
    """In separate_async the servers have nodes of their own, and a way to get weights from other ones.

    verl: trainer/ppo/v1/trainer_separate_async.py:PPOTrainerSeparateAsync.__init__.
    """
    if _mode(run) != "separate_async":
        return
    nodes, backend = f"{ROLLOUT}.nnodes", f"{ROLLOUT}.checkpoint_engine.backend"
    if run.number(nodes, 0) < 1:
        message = f"{nodes} is {run.number(nodes, 0)}: separate_async generates on nodes of its own."
        yield error(nodes, f"{ROLLOUT}.n_gpus_per_node", message=message, fix=f"{nodes}=1")
    if run.setting(backend) == "naive":
        message = "checkpoint_engine.backend is naive, which brings weights to servers on the same accelerators alone."
        yield error(backend, message=message, fix=f"{backend}=nccl")


def reward_model_placed(run: View) -> Iterator[Finding]:
    """A reward model with a pool of its own has accelerators there, and in separate_async it has such a pool.

    verl: trainer/ppo/v1/trainer_base.py:_init_resource_pool_mgr, trainer_separate_async.py.
    """
    own = run.setting(f"{REWARD}.enable_resource_pool") is True
    sizes = {f"{REWARD}.{name}": run.number(f"{REWARD}.{name}", 0) for name in ("nnodes", "n_gpus_per_node")}
    if own and (lacking := [key for key, size in sizes.items() if size < 1]):
        message = f"The reward model is to have a pool of its own, and {' and '.join(lacking)} is 0."
        yield error(*lacking, message=message, fix=" ".join(f"{key}=1" for key in lacking))
    elif _mode(run) == "separate_async" and run.setting(f"{REWARD}.enable") is True and not own:
        yield error(
            f"{REWARD}.enable_resource_pool",
            message="In separate_async the servers never pause, so the reward model needs accelerators of its own.",
            fix=f"{REWARD}.enable_resource_pool=true {REWARD}.nnodes=1 {REWARD}.n_gpus_per_node=1",
        )


def more_pools_fit(run: View) -> Iterator[Finding]:
    """Pools of a reward model and of separate servers fit the cluster beside student and teacher.

    verl: single_controller/ray/base.py:_check_resource_available; servers' pools are made later, and wait for ever.
    """
    pools = {"student": run.student_world, "teacher": run.teacher_pool}
    if run.setting(f"{REWARD}.enable_resource_pool") is True:
        pools["reward model"] = run.number(f"{REWARD}.nnodes", 0) * run.number(f"{REWARD}.n_gpus_per_node", 0)
    if _mode(run) == "separate_async":
        pools["servers"] = run.number(f"{ROLLOUT}.nnodes", 0) * run.number(f"{ROLLOUT}.n_gpus_per_node", 0)
    total, there = sum(pools.values()), run.cluster_nodes * run.cluster_per_node
    if len(pools) > 2 and total > there:
        yield error(
            "cluster.nodes",
            f"{REWARD}.nnodes",
            f"{ROLLOUT}.nnodes",
            message=f"{', '.join(f'{name} {size}' for name, size in pools.items())} are {total} accelerators, and the "
            f"cluster has {run.cluster_nodes} x {run.cluster_per_node} = {there}.",
            fix=f"cluster.nodes={-(-total // run.cluster_per_node)}",
        )


def queue_holds_step(run: View) -> Iterator[Finding]:
    """TransferQueue has room for a step: each prompt and each answer takes a place.

    TransferQueue: storage/simple_storage.py:StorageUnitData.put_data.
    """
    key = "transfer_queue.backend.SimpleStorage.total_storage_size"
    needed = run.train_batch * (run.rollout_n + 1)
    simple = run.setting("transfer_queue.backend.storage_backend") == "SimpleStorage"
    if simple and (places := run.number(key, needed)) < needed:
        yield error(
            key,
            BATCH,
            f"{ROLLOUT}.n",
            message=f"TransferQueue has {places} places, and a step takes {run.train_batch} x (1 + {run.rollout_n}) = "
            f"{needed}, for prompts and answers.",
            fix=f"{key}={2 * needed}",
        )

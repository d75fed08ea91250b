"""How the student's answers are generated, and what holds for every server."""

from collections.abc import Iterator

from opd_conf import models
from opd_conf.checks.finding import Finding, error, warning
from opd_conf.names import nearest
from opd_conf.view import ROLLOUT, View, largest_divisor

BACKENDS = ("vllm", "sglang", "trtllm")
"""workers/rollout/base.py, the registry."""


def rollout_backend(run: View) -> Iterator[Finding]:
    """The student's server is one that verl has.

    verl: workers/rollout/base.py:get_rollout_class.
    """
    if run.rollout.backend not in BACKENDS:
        yield error(
            f"{ROLLOUT}.name",
            message=f"{ROLLOUT}.name is {run.rollout.backend}; verl has {', '.join(BACKENDS)}.",
            fix=f"{ROLLOUT}.name={(nearest(str(run.rollout.backend), BACKENDS) or ['vllm'])[0]}",
        )


def rollout_divides_world(run: View) -> Iterator[Finding]:
    """The student's accelerators are a whole number of replicas.

    verl: workers/engine_workers.py:ActorRolloutRefWorker.init_model.
    """
    server, world = run.rollout, run.student_world
    if world % server.accelerators:
        others = server.data_parallel * server.pipeline_parallel
        fits = world % others == 0
        sizes = {
            "tensor_model_parallel_size": largest_divisor(world // others if fits else world, server.tensor_parallel)
        }
        sizes |= {} if fits else {"data_parallel_size": 1, "pipeline_model_parallel_size": 1}
        yield error(
            f"{ROLLOUT}.tensor_model_parallel_size",
            f"{ROLLOUT}.data_parallel_size",
            f"{ROLLOUT}.pipeline_model_parallel_size",
            "trainer.n_gpus_per_node",
            message=f"A replica of the student takes {server.sizes} accelerators, which do not divide the student's "
            f"{world}.",
            fix=" ".join(run.set(f"{ROLLOUT}.{name}", size) for name, size in sizes.items()),
        )


def expert_parallel_fills_replica(run: View) -> Iterator[Finding]:
    """Experts are spread over the whole of a server's tensor and data parallel ranks, or not at all.

    verl: workers/config/rollout.py:RolloutConfig.__post_init__, for the teachers too, once accelerators are claimed.
    """
    for server in (run.rollout, *run.teachers):
        ranks = server.tensor_parallel * server.data_parallel
        if server.backend != "trtllm" and server.expert_parallel not in (1, ranks):
            key = f"{server.at}.expert_parallel_size"
            yield error(
                key,
                f"{server.at}.tensor_model_parallel_size",
                f"{server.at}.data_parallel_size",
                message=f"{key} is {server.expert_parallel}; it can be 1 or tensor x data = "
                f"{server.tensor_parallel} x {server.data_parallel} = {ranks}.",
                fix=run.set(key, ranks),
            )


def pipeline_unsupported(run: View) -> Iterator[Finding]:
    """No server is cut into pipeline stages: verl has that for none of them.

    verl: workers/config/rollout.py:RolloutConfig.__post_init__.
    """
    for server in (run.rollout, *run.teachers):
        if server.pipeline_parallel > 1:
            key = f"{server.at}.pipeline_model_parallel_size"
            yield error(
                key,
                message=f"{key} is {server.pipeline_parallel}; verl serves models without pipeline stages only.",
                fix=run.set(key, 1),
            )


def data_parallel_fits_nodes(run: View) -> Iterator[Finding]:
    """With data-parallel ranks in a replica, a node's part of it is a whole number of tensor-parallel groups.

    verl: workers/rollout/vllm_rollout/vllm_async_server.py:launch_server.
    """
    nodes = {run.rollout.at: run.student_per_node}
    for server in (run.rollout, *run.teachers):
        on_node = min(nodes.get(server.at, run.teacher_per_node), server.accelerators)
        if server.backend == "vllm" and server.data_parallel > 1 and on_node % server.tensor_parallel:
            key = f"{server.at}.tensor_model_parallel_size"
            size = largest_divisor(on_node, server.tensor_parallel)
            yield error(
                key,
                f"{server.at}.data_parallel_size",
                message=f"{key} is {server.tensor_parallel} with {server.data_parallel} data-parallel ranks: vLLM's "
                f"groups must lie within a node, whose part of the replica is {on_node} accelerators.",
                fix=run.set(key, size)
                + (
                    ""
                    if server.expert_parallel == 1
                    else f" {server.at}.expert_parallel_size={size * server.data_parallel}"
                ),
            )


def dense_replica_on_one_node(run: View) -> Iterator[Finding]:
    """Data-parallel ranks of a server of a dense model lie on one node; only those of a mixture of experts may spread.

    vLLM takes the second node's ranks for followers of the first and stops when it sets up its cache (verl issue 6856).

    verl: workers/rollout/vllm_rollout/vllm_async_server.py:launch_server.
    """
    pools = [(run.rollout, run.student_path, run.student_per_node)]
    pools += [(teacher, teacher.model_path, run.teacher_per_node) for teacher in run.teachers]
    for server, path, per_node in pools:
        spread = server.backend == "vllm" and server.data_parallel > 1 and server.accelerators > per_node
        model = models.facts(path, run.variable) if spread and path else None
        if model is not None and model.experts is None:
            key = f"{server.at}.data_parallel_size"
            yield warning(
                key,
                f"{server.at}.tensor_model_parallel_size",
                message=f"A replica of {path} takes {server.sizes} accelerators, of nodes with {per_node}: vLLM cannot "
                f"spread the {server.data_parallel} data-parallel ranks of a dense model over nodes.",
                fix=run.set(key, 1),
            )


def rollout_temperature(run: View) -> Iterator[Finding]:
    """The student samples at the teacher's temperature, 1: verl divides the student's logits by its own.

    verl: experimental/teacher_loop/teacher_manager.py:_get_teacher_sampling_params, which sets 1 whatever is asked.
    """
    key = f"{ROLLOUT}.temperature"
    temperature = run.setting(key, 1.0)
    if temperature != 1:
        yield warning(
            key,
            message=f"The student's temperature is {temperature} and the teacher's stays 1: two distributions are "
            "compared that differ also where the models agree.",
            fix=f"{key}=1.0",
        )


def rollout_context(run: View) -> Iterator[Finding]:
    """The student's server has room for prompt and response; verl cuts answers short without a word.

    verl: workers/rollout/vllm_rollout/vllm_async_server.py:generate, sglang_rollout/async_sglang_server.py:generate.
    """
    needed = run.sequence_length + _spare(run)
    limit = run.rollout.max_model_len
    if limit is not None and limit < needed:
        spare = " + 1 that SGLang keeps" if _spare(run) else ""
        yield error(
            f"{ROLLOUT}.max_model_len",
            "data.max_prompt_length",
            "data.max_response_length",
            message=f"The student's server holds {limit} tokens, and a sequence may have {run.prompt_length} + "
            f"{run.response_length}{spare} = {needed}: answers to long prompts would be cut off silently.",
            fix=f"{ROLLOUT}.max_model_len={run.sequence_length + 1}",
        )


def validation_samples(run: View) -> Iterator[Finding]:
    """Where validation is to sample, answers have a temperature.

    verl: utils/config.py:validate_config.
    """
    key = f"{ROLLOUT}.temperature"
    if run.setting(f"{ROLLOUT}.val_kwargs.do_sample") is True and run.setting(key) == 0:
        yield error(
            key,
            f"{ROLLOUT}.val_kwargs.do_sample",
            message=f"{key} is 0, and validation is to sample (val_kwargs.do_sample): verl stops.",
            fix=f"{key}=1.0",
        )


def _spare(run: View) -> int:
    """Tokens that a server keeps beside the sequence."""
    return 1 if run.rollout.backend == "sglang" else 0

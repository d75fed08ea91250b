"""Environment variables that hurt, as every process of the run will have them."""

import os
import re
import shlex
from collections.abc import Iterator

from opd_conf import nodes
from opd_conf.checks.finding import Finding, error, note, warning
from opd_conf.view import View

BLOCK = "platform.env"
PLUGINS = {"gpu": ("nvidia", "amd"), "npu": ("huawei",), "cpu": ("cpu",)}
"""verl's names of platforms (plugin/platform/platform_manager.py), by ours; `cpu` is opd_conf's own plugin."""


def _typed(name: str, value: str) -> str:
    """What to type to give a variable a value; `++` sets it whether or not the platform has it."""
    return shlex.quote(f'++{BLOCK}.{name}="{value}"')


def verl_platform_known(run: View) -> Iterator[Finding]:
    """VERL_PLATFORM is a name that verl knows, and the platform of this run.

    verl: plugin/platform/platform_manager.py, at import and in every process.
    """
    value, names = run.variable("VERL_PLATFORM"), PLUGINS.get(run.platform, ())
    if value is not None and names and value not in names:
        known = sorted({name for group in PLUGINS.values() for name in group})
        what = "another platform" if value in known else "no name that verl knows"
        yield error(
            f"{BLOCK}.VERL_PLATFORM",
            message=f"VERL_PLATFORM is {value}, {what}; with platform={run.platform} it is {' or '.join(names)}.",
            fix=f"{BLOCK}.VERL_PLATFORM={names[0]}",
        )


def connections_unlimited(run: View) -> Iterator[Finding]:
    """CUDA_DEVICE_MAX_CONNECTIONS is not 1 under FSDP: copies and products would wait for each other.

    verl: trainer/constants_ppo.py:get_ppo_ray_runtime_env sets it for Megatron only.
    """
    name, gpu = "CUDA_DEVICE_MAX_CONNECTIONS", run.platform == "gpu"
    if gpu and run.engine in ("fsdp_config", "veomni") and run.variable(name) == "1":
        yield warning(
            f"{BLOCK}.{name}",
            message=f"{name} is 1, which is for Megatron: FSDP's transfers then wait for its computation.",
            fix=f"++{BLOCK}.{name}=null",
        )


def npu_allocator(run: View) -> Iterator[Finding]:
    """PYTORCH_NPU_ALLOC_CONF leaves expandable segments to verl: not with a split size, nor with a sleeping server.

    torch_npu's documentation of the variable says so, and vllm-ascend's device_allocator/camem.py asserts it.

    verl: utils/device.py:set_expandable_segments, which switches them itself.
    """
    name = "PYTORCH_NPU_ALLOC_CONF"
    value = run.variable(name) or ""
    options = dict(option.strip().split(":", 1) for option in value.split(",") if ":" in option)
    if run.platform != "npu" or options.get("expandable_segments", "").lower() != "true":
        return
    kept = ",".join(f"{option}:{number}" for option, number in options.items() if option != "expandable_segments")
    split = "max_split_size_mb" in options
    why = "with max_split_size_mb beside it torch_npu refuses" if split else "vllm-ascend's sleep mode refuses"
    yield warning(
        f"{BLOCK}.{name}",
        message=f"{name} is {value}: {why} expandable_segments:True.",
        fix=_typed(name, kept) if kept else f"{BLOCK}.{name}=null",
    )


def npu_task_queue(run: View) -> Iterator[Finding]:
    """TASK_QUEUE_ENABLE=2 does not reach vllm-ascend, whose graphs it breaks.

    verl: pull request 6562.
    """
    own = "VLLM_ASCEND_TASK_QUEUE_ENABLE"
    served = run.rollout.backend == "vllm" and run.platform == "npu"
    if served and run.variable("TASK_QUEUE_ENABLE") == "2" and run.variable(own) != "1":
        yield warning(
            f"{BLOCK}.TASK_QUEUE_ENABLE",
            f"{BLOCK}.{own}",
            message=f"TASK_QUEUE_ENABLE is 2, which breaks vllm-ascend's graph mode unless {own} is 1.",
            fix=f"++{BLOCK}.{own}=1",
        )


def npu_weight_format(run: View) -> Iterator[Finding]:
    """VLLM_ASCEND_ENABLE_NZ is 0: servers cannot take new weights in the other format.

    A ValueError in vllm-ascend's worker.py at wake-up.

    verl: workers/rollout/vllm_rollout/utils.py, which sets 0 where nothing is set.
    """
    name = "VLLM_ASCEND_ENABLE_NZ"
    value = run.variable(name)
    if run.platform == "npu" and run.rollout.backend == "vllm" and value not in (None, "0"):
        yield error(
            f"{BLOCK}.{name}",
            message=f"{name} is {value}: vllm-ascend stops when it wakes up for the first new weights.",
            fix=f"{BLOCK}.{name}=0",
        )


PATIENCE = 600
"""Seconds for a link over several nodes, below which slow loaders are given up; verl's script has 1500."""


def hccl_patience(run: View) -> Iterator[Finding]:
    """HCCL_CONNECT_TIMEOUT gives ranks on several nodes the time to load, and is within HCCL's limits.

    120 to 7200 s, and 120 by default: HCCL's documentation.

    verl: utils/distributed.py:initialize_global_process_group_ray, where links are made.
    """
    name = "HCCL_CONNECT_TIMEOUT"
    value, nodes = run.variable(name), max(run.student_nodes, run.teacher_nodes, run.cluster_nodes)
    if run.platform != "npu":
        return
    seconds = int(value) if value and value.isdigit() else 120 if value is None else 0
    if not 120 <= seconds <= 7200:
        yield error(
            f"{BLOCK}.{name}", message=f"{name} is {value}; HCCL takes 120 to 7200 s.", fix=f"++{BLOCK}.{name}=1500"
        )
    elif nodes > 1 and seconds < PATIENCE:
        told = "is not set, so HCCL waits 120 s" if value is None else f"is {value} s"
        yield warning(
            f"{BLOCK}.{name}",
            message=f"{name} {told}, and there are {nodes} nodes: a rank that loads more slowly ends the run.",
            fix=f"++{BLOCK}.{name}=1500",
        )


PORT_RANGES = ("HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE")

SHARERS = 2
"""Processes that share a device of the student, each with ports of its own: the trainer and its server."""


def hccl_ports(run: View) -> Iterator[Finding]:
    """HCCL's ranges of ports are ranges, or `auto`, with a port for each process of a device.

    verl: trainer/constants_ppo.py:PPO_RAY_RUNTIME_ENV, which has `auto` where nothing is set.
    """
    for name in PORT_RANGES if run.platform == "npu" else ():
        value = run.variable(name)
        ports = None if value in (None, "", "auto") else _ports(str(value))
        fix = f"{BLOCK}.{name}=auto"
        if ports == 0:
            message = f"{name} is {value}; HCCL takes auto, or ranges of ports as 60000-60050."
            yield error(f"{BLOCK}.{name}", message=message, fix=fix)
        elif ports is not None and ports < SHARERS:
            yield warning(
                f"{BLOCK}.{name}",
                message=f"{name} is {value}, {ports} port, and {SHARERS} processes share a device (the student's "
                "trainer and server): the second cannot bind.",
                fix=fix,
            )


def _ports(text: str) -> int:
    """How many ports `a-b,c` has; 0 where it cannot be read."""
    ranges = [re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part) for part in text.split(",")]
    ends = [(int(found[1]), int(found[2] or found[1])) for found in ranges if found]
    readable = len(ends) == len(ranges) and all(0 < first <= last < 2**16 for first, last in ends)
    return sum(last - first + 1 for first, last in ends) if readable else 0


ON_EACH_NODE = (
    "NCCL_IB",
    "NCCL_NET",
    "NCCL_P2P",
    "NCCL_SOCKET",
    "NCCL_TOPO",
    "GLOO_",
    "HCCL_IF",
    "HCCL_SOCKET",
    "UCX_",
)
"""Beginnings of variables about a node's links, which verl does not pass on to others."""


def links_set_on_each_node(run: View) -> Iterator[Finding]:
    """With several nodes, variables about links are handed to all of them, not set in this shell alone.

    verl: trainer/constants_ppo.py:get_ppo_ray_runtime_env.
    """
    if run.cluster_nodes < 2 or run.action not in ("train", "check"):
        return
    here = sorted(name for name in os.environ if name.startswith(ON_EACH_NODE) and not run.has(f"{BLOCK}.{name}"))
    if here:
        yield note(
            BLOCK,
            message=f"{', '.join(here)} {'is' if len(here) == 1 else 'are'} set in this shell, and there are "
            f"{run.cluster_nodes} nodes: the others have what `ray start` had there.",
            fix=" ".join(shlex.quote(f"+{BLOCK}.{name}=${{oc.env:{name}}}") for name in here),
        )


RUNTIME_ENV = "ray_kwargs.ray_init.runtime_env"


def variables_are_texts(run: View) -> Iterator[Finding]:
    """Values of environment variables are texts or numbers, not lists.

    verl: trainer/main_ppo.py:run_ppo hands them to Ray, which takes texts; opd_conf makes texts of numbers.
    """
    for block in (BLOCK, f"{RUNTIME_ENV}.env_vars"):
        for name, value in (run.values.written(block) or {}).items():
            if isinstance(value, (list, dict)):
                text = ",".join(map(str, value))
                yield error(
                    f"{block}.{name}",
                    message=f"{name} is an environment variable, and its value a {type(value).__name__}: {value}.",
                    fix=shlex.quote(f'{block}.{name}="{text}"'),
                )


def launches_unblocked(run: View) -> Iterator[Finding]:
    """No variable makes every kernel wait for the one before; that is for finding faults.

    CUDA: CUDA_LAUNCH_BLOCKING; CANN: ASCEND_LAUNCH_BLOCKING.
    """
    for name in ("ASCEND_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING"):
        if name.startswith("ASCEND" if run.platform == "npu" else "CUDA") and run.variable(name) == "1":
            yield note(
                f"{BLOCK}.{name}",
                message=f"{name} is 1: every kernel waits for the one before. Good for stack traces, and slow.",
                fix=f"++{BLOCK}.{name}=null",
            )


def npu_versions_readable(run: View) -> Iterator[Finding]:
    """On a machine with NPUs, npu-smi and CANN tell their versions.

    verl: utils/device.py:get_npu_versions, a RuntimeError in each of the student's workers.
    """
    if run.platform != "npu" or run.action not in ("train", "check"):
        return
    names = ("PATH", "ASCEND_HOME_PATH", "ASCEND_VISIBLE_DEVICES")
    if reason := nodes.probe([], {}, {name: value for name in names if (value := run.variable(name))})["npu"]:
        yield error(
            "platform",
            message=f"verl's workers would stop: {reason}.",
            fix="source /usr/local/Ascend/ascend-toolkit/set_env.sh",
        )

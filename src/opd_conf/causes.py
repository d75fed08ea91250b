"""Known causes of death: what the end of train.log and the exit code say, and what to do about it."""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """Why a run ended. `line` is the line of the log that says so, empty where only the exit code does."""

    id: str
    reason: str
    fix: str
    line: str = ""


@dataclass(frozen=True)
class _Known:
    """A row of the table: what the log says, and what it means."""

    id: str
    pattern: re.Pattern[str]
    reason: str
    fix: str


def _known(id: str, pattern: str, reason: str, fix: str) -> _Known:
    return _Known(id, re.compile(pattern, re.IGNORECASE), reason, fix)


_MEMORY = re.compile(
    r"(?:CUDA|NPU|HIP)(?: error:)? out of memory|OutOfMemoryError|No available memory for the cache blocks"
    r"|Free memory on device .* is less than desired|error code is 207018|EL0004|To serve at least one request with",
    re.IGNORECASE,
)

_PHASES: tuple[tuple[str, str, str, str], ...] = (
    (
        r"To serve at least one request with|No available memory for the cache blocks",
        "server_cache",
        "a server has no room for one sequence beside its weights",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.6 (or the teacher's inference.gpu_memory_utilization), or "
        "shorter sequences",
    ),
    (
        r"Free memory on device .* is less than desired",
        "server_start",
        "a server found less free memory than gpu_memory_utilization asks for",
        "a smaller gpu_memory_utilization; and nvidia-smi / npu-smi: does an older process still hold memory?",
    ),
    (
        r"compute_topk|forward_kl_topk|distillation[/.]\w*losses|log_softmax|logsumexp|cross_entropy",
        "loss",
        "the loss: logits of a micro-batch and their gradients",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu at half its size (or ppo_micro_batch_size_per_gpu=1); with "
        "engine=veomni also actor_rollout_ref.model.use_fused_kernels=true",
    ),
    (
        r"compute_log_prob|old_log_prob|entropy_from_logits|infer_batch",
        "log_prob",
        "the student's log-probabilities",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu at half its size, or "
        "actor_rollout_ref.actor.fsdp_config.entropy_from_logits_with_chunking=true",
    ),
    (
        r"wake_up|update_weights|resume_memory|sync_weights|cumem|camem",
        "weight_sync",
        "new weights for the student's server, beside the trainer's",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true, or a smaller "
        "actor_rollout_ref.rollout.gpu_memory_utilization",
    ),
    (
        r"teacher|prompt_logprobs|_get_prompt_logprobs",
        "teacher",
        "the teacher's server",
        "the teacher's inference.gpu_memory_utilization=0.4 (room beside its cache), a smaller "
        "inference.max_num_batched_tokens, or a larger inference.tensor_model_parallel_size",
    ),
    (
        r"optimizer_step|optim\.step|adamw?\.py|update_actor|train_batch|train_mini_batch|backward",
        "update",
        "the student's update",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu at half its size (or ppo_micro_batch_size_per_gpu=1), or "
        "actor_rollout_ref.actor.fsdp_config.param_offload=true with optimizer_offload=true",
    ),
    (
        r"EngineCore|vllm|sglang|gpu_model_runner|capture_model|profile_run",
        "rollout",
        "the student's server",
        "a smaller actor_rollout_ref.rollout.gpu_memory_utilization or max_num_batched_tokens",
    ),
)
"""Who ran out of memory, by words near the error; the first that is found counts, nearest lines first."""

_TABLE: tuple[_Known, ...] = (
    _known(
        "gated_model",
        r"GatedRepoError|Cannot access gated repo|Access to model .* is restricted",
        "a model on the hub is gated, and this account has no access",
        "ask for access on the model's page, then: hf auth login (on every node), or give its folder as the path",
    ),
    _known(
        "not_on_hub",
        r"RepositoryNotFoundError|is not a local folder and is not a valid model identifier|401 Client Error"
        r"|Invalid username or password",
        "a model is not on the hub under this name, or only for those who are logged in",
        "look at the path for a misspelling, or: hf auth login",
    ),
    _known(
        "hub_unreachable",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|couldn't connect to 'https?://|We couldn't connect to"
        r"|(?:Max retries exceeded|Name or service not known|Temporary failure in name resolution).{0,200}"
        r"(?:huggingface|hf-mirror)|(?:huggingface|hf-mirror).{0,200}(?:Max retries exceeded|Name or service not known"
        r"|Temporary failure in name resolution)|Cannot find the requested files in the (?:disk|local) cache",
        "the Hugging Face hub cannot be reached from here",
        "hf download MODEL where there is a network, then give the folder as the path; or platform.env.HF_ENDPOINT, "
        "https_proxy",
    ),
    _known(
        "wandb_login",
        r"api_key not configured|wandb: ERROR|wandb\.errors.*(?:api[_ ]key|login)",
        "wandb has no key",
        "export WANDB_API_KEY=…, or 'trainer.logger=[console,file]'",
    ),
    _known(
        "disk_full",
        r"No space left on device|Errno 28|Disk quota exceeded|Errno 122|OutOfDiskError|over 95% full",
        "a disk is full, or a quota",
        "df -h (checkpoints in trainer.default_local_dir, Ray in /tmp); trainer.max_actor_ckpt_to_keep=2",
    ),
    _known(
        "shared_memory",
        r"/dev/shm.{0,120}(?:available|too small|bytes)|unable to (?:open|write to|allocate) shared memory"
        r"|bus error|SIGBUS|insufficient shared memory|Failed to (?:create|map) shared memory",
        "shared memory (/dev/shm) is too small",
        "start the container with --shm-size=64g or --ipc=host",
    ),
    _known(
        "host_memory",
        r"ray\.exceptions\.OutOfMemoryError|Task was killed due to the node running low on memory"
        r"|Cannot allocate memory|oom[-_ ]kill|Worker exit type: NODE_OUT_OF_MEMORY"
        r"|workers? \(tasks / actors\) killed due to memory pressure",
        "the host ran out of memory",
        "more memory a node, or less in it: actor_rollout_ref.actor.fsdp_config.optimizer_offload=false, fewer "
        "data.dataloader_num_workers",
    ),
    _known(
        "port_in_use",
        r"Address already in use|EADDRINUSE|errno: 98|HCCL.{0,80}bind|bind.{0,80}(?:16666|HCCL)|EJ0001|EI0019",
        "a port is in use, by an older process or by another run on this host",
        "end the older one (ray stop; ps aux | grep -E 'ray|vllm'); on NPU "
        "platform.env.HCCL_HOST_SOCKET_PORT_RANGE=auto and platform.env.HCCL_NPU_SOCKET_PORT_RANGE=auto",
    ),
    _known(
        "device_missing",
        r"No CUDA GPUs are available|CUDA driver version is insufficient|no NVIDIA driver|Failed to infer device type"
        r"|libatb\.so|no kernel image is available",
        "the accelerator, its driver or its libraries cannot be used here",
        "nvidia-smi or npu-smi info; on NPU source set_env.sh of CANN and of NNAL before the start",
    ),
    _known(
        "kernel_package",
        r"No module named '?(?P<package>flash_attn|flash_attn_interface|fla|causal_conv1d|liger_kernel|triton|torch_npu"
        r"|vllm_ascend|transfer_queue|veomni|sglang|vllm|flashinfer|tensordict|qwen_vl_utils|math_verify)\b"
        r"|(?P<needed>FlashAttention2) has been toggled on, but it cannot be used"
        r"|the package (?P<name>flash_attn) seems to be not installed",
        "a package is missing: {package}",
        "pip install it on every node (docs/install.md); without flash_attn: platform.attention=sdpa with "
        "actor_rollout_ref.model.use_remove_padding=false",
    ),
    _known(
        "placement",
        r"Total available [GN]PUs .* is less than total desired|placement group.{0,80}(?:infeasible|cannot be)",
        "Ray has too few accelerators or CPUs free for both pools",
        "ray status; cluster=… as the machines are; 3 CPUs an accelerator and about 12 more",
    ),
    _known(
        "nccl",
        r"nccl(?:System|Internal|UnhandledCuda|Remote)Error|NCCL WARN.{0,120}(?:fail|error|timeout)|NCCL error"
        r"|Watchdog caught collective operation timeout|ProcessGroupNCCL.{0,80}timeout|DistBackendError",
        "NCCL: the accelerators cannot talk to each other, or one of them stopped",
        "look for another process's error above; over nodes platform.env.NCCL_SOCKET_IFNAME=INTERFACE; more with "
        "platform.env.NCCL_DEBUG=INFO",
    ),
    _known(
        "hccl",
        r"HCCL.{0,120}(?:error|fail|timeout|timed out)|EI0006|EI0002|ERR02200|HcclCommInitRootInfo|hcclCommInit",
        "HCCL: the NPUs cannot talk to each other, or one of them stopped",
        "platform.env.HCCL_CONNECT_TIMEOUT=1500, HCCL_SOCKET_IFNAME=INTERFACE; look for another process's error above",
    ),
    _known(
        "all_samples_failed",
        r"selected terminal groups with no materializable trajectories",
        "every sample of a batch failed, in the rollout, at the teacher or in the reward",
        "look for the first Traceback of an AgentLoopWorker above; action=check looks into data and tokenizers",
    ),
    _known(
        "token_budget",
        r"max_token_len must be greater than the sequence length",
        "a sequence is longer than the token budget of a micro-batch",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu of at least prompt and response",
    ),
    _known(
        "transformers_too_old",
        r"Transformers does not recognize this architecture|does not recognize this (?:model|architecture)",
        "transformers does not know the model's type",
        "pip install transformers==5.9.0",
    ),
    _known(
        "veomni_transformers",
        r"create_causal_mask\(\) got an unexpected keyword argument 'cache_position'",
        "veomni 0.1.11 does not go with transformers 5.9",
        "pip install --no-deps veomni==0.1.12",
    ),
    _known(
        "device_assert",
        r"device-side assert triggered|index out of bounds|vectorized_gather_kernel",
        "an index beyond its table, most often a token that the other model lacks",
        "action=check compares tokenizers and vocabularies; platform.env.CUDA_LAUNCH_BLOCKING=1 shows the line",
    ),
)
"""The most telling first: a death has one cause and many followers (NCCL's complaints most of all come from others)."""

_WAITING = _known(
    "placement_pending",
    r"cannot be scheduled right now|No available node types can fulfill|placement group.{0,80}pending"
    r"|Insufficient resources",
    "Ray waited for accelerators or CPUs that no node has free",
    "ray status; cluster=… as the machines are; 3 CPUs an accelerator and about 12 more",
)
"""Told of a run that was ended while it waited; said in passing by many that go on."""

_LAST_LINES = 400
_NEAR = 60
"""Lines before an error that may tell who had it: a traceback, with Ray's prefixes."""

_QUIET = re.compile(r"\b(?:DEBUG|INFO)\b|retrying|will retry", re.IGNORECASE)
"""Lines that name trouble without being it."""


def cause(log_tail: str, exit_code: int) -> Cause | None:
    """The known cause of a run's end, from the end of its log and its exit code; None where nothing is recognised.

    Exit code 0 and an end by Ctrl-C have no cause.
    """
    if exit_code in (0, 130, -2):
        return None
    lines = log_tail.splitlines()[-_LAST_LINES:]
    for search in (_in_table, _out_of_memory, _waited):
        if found := search(lines):
            return found
    return _killed(exit_code)


def _in_table(lines: list[str]) -> Cause | None:
    memory = _last(lines, _MEMORY.search)
    for known in _TABLE:
        index = _last(lines, known.pattern.search)
        # Servers that lost their trainer, and NCCL's watchdog, complain after an accelerator ran out of memory.
        if index is None or (memory is not None and known.id in _FOLLOWERS and not _is_host(lines[memory])):
            continue
        match = known.pattern.search(lines[index])
        named = next((value for value in match.groupdict().values() if value), "") if match else ""
        return Cause(known.id, known.reason.format(package=named), known.fix, _clean(lines[index]))
    return None


_FOLLOWERS = ("nccl", "hccl", "placement", "all_samples_failed", "device_missing")


def _is_host(line: str) -> bool:
    return "ray.exceptions.OutOfMemoryError" in line


def _last(lines: list[str], says: Callable[[str], object]) -> int | None:
    """The number of the last line that says so, chatter aside."""
    return next((i for i in range(len(lines) - 1, -1, -1) if says(lines[i]) and not _QUIET.search(lines[i])), None)


def _out_of_memory(lines: list[str]) -> Cause | None:
    """An accelerator's end of memory, and whose: told by the words of the lines before it."""
    first = next((index for index, line in enumerate(lines) if _MEMORY.search(line)), None)
    if first is None:
        return None
    near = "\n".join(lines[max(0, first - _NEAR) : first + 1])
    for pattern, phase, reason, fix in _PHASES:
        if re.search(pattern, near, re.IGNORECASE):
            return Cause(f"out_of_memory_{phase}", f"out of memory: {reason}", fix, _clean(lines[first]))
    fix = "action=check shows the estimate; shorter sequences, smaller micro-batches, or offload"
    return Cause("out_of_memory", "an accelerator is out of memory", fix, _clean(lines[first]))


def _waited(lines: list[str]) -> Cause | None:
    """A run that never came to an error of its own: it waited for its places."""
    index = _last(lines, _WAITING.pattern.search)
    if index is None or any("Traceback (most recent call last)" in line for line in lines):
        return None
    return Cause(_WAITING.id, _WAITING.reason, _WAITING.fix, _clean(lines[index]))


def _killed(exit_code: int) -> Cause | None:
    """Ends that only the exit code tells: a signal, as 128 + n from a shell or -n from subprocess."""
    signal = exit_code - 128 if exit_code > 128 else -exit_code
    if signal == 9:
        return Cause(
            "killed",
            "killed from outside (signal 9), most often by the kernel because the host ran out of memory",
            "dmesg -T | grep -i -E 'killed process|oom'; ask for more memory a node, or less: fewer "
            "data.dataloader_num_workers, actor_rollout_ref.actor.fsdp_config.optimizer_offload=false",
        )
    if signal == 15:
        return Cause(
            "terminated",
            "ended from outside (signal 15): a time limit of the scheduler, or somebody",
            "sacct -j JOB --format=State,Elapsed,TimeLimit on Slurm; go on with launch.resume=true run_dir=…",
        )
    if signal == 7:
        return Cause(
            "shared_memory",
            "a bus error (signal 7): shared memory (/dev/shm) is too small",
            "start the container with --shm-size=64g or --ipc=host",
        )
    if signal == 11:
        return Cause(
            "crashed",
            "a crash in compiled code (signal 11)",
            "packages that do not go together: action=check compares versions; pip check",
        )
    return None


_PREFIX = re.compile(r"^\s*(?:[\d.]+\s+)?(?:\x1b\[\d+m)?\([^)]*pid=[^)]*\)(?:\x1b\[0m)?\s?|\x1b\[\d+m")


def _clean(line: str) -> str:
    """A line of the log without Ray's prefix and colours."""
    return _PREFIX.sub("", line).strip()[:300]

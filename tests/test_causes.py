"""Causes of death: lines as real logs have them, with Ray's prefixes, and what is made of them."""

import pytest

from opd_conf.causes import cause

RAY = "\x1b[36m(TaskRunnerV1 pid=9037)\x1b[0m "
WORKER = "\x1b[36m(WorkerDict pid=4711, ip=10.0.0.7)\x1b[0m "


@pytest.mark.parametrize(
    ("id", "line"),
    [
        (
            "gated_model",
            "huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo for url "
            "https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json.",
        ),
        (
            "not_on_hub",
            "OSError: Qwen/Qwen3.5-2BB is not a local folder and is not a valid model identifier listed on "
            "'https://huggingface.co/models'",
        ),
        (
            "hub_unreachable",
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
            "cached files.",
        ),
        (
            "hub_unreachable",
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries "
            "exceeded with url: /Qwen/Qwen2.5-0.5B/resolve/main/config.json",
        ),
        (
            "hub_unreachable",
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and "
            "outgoing traffic has been disabled.",
        ),
        ("wandb_login", "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[..])"),
        ("disk_full", "OSError: [Errno 28] No space left on device: '/data/ckpt/global_step_200/actor/model.pt'"),
        ("disk_full", "OSError: [Errno 122] Disk quota exceeded"),
        (
            "shared_memory",
            "RuntimeError: DataLoader worker (pid 93) is killed by signal: Bus error. It is possible that dataloader's "
            "workers are out of shared memory. Please try to raise your shared memory limit.",
        ),
        (
            "shared_memory",
            "RuntimeError: unable to open shared memory object </torch_99_1> in read-write mode: No space",
        ),
        (
            "host_memory",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        ),
        ("port_in_use", "OSError: [Errno 98] error while attempting to bind on address: Address already in use"),
        (
            "port_in_use",
            "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: "
            "false, code: -98, name: EADDRINUSE, message: address already in use",
        ),
        (
            "port_in_use",
            "EJ0001: [PID: 11] Failed to initialize the HCCP process. Reason: Maybe the last training is on.",
        ),
        ("port_in_use", "[ERROR] HCCL socket bind fail, ip[192.168.1.2] port[16666]"),
        ("device_missing", "RuntimeError: No CUDA GPUs are available"),
        ("device_missing", "ImportError: libatb.so: cannot open shared object file: No such file or directory"),
        ("kernel_package", "ModuleNotFoundError: No module named 'transfer_queue'"),
        (
            "kernel_package",
            "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the "
            "package flash_attn seems to be not installed.",
        ),
        ("placement", "ValueError: Total available GPUs 8 is less than total desired GPUs 16"),
        (
            "nccl",
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error",
        ),
        (
            "nccl",
            "[rank3]:[E1201 10:00:00.1 ProcessGroupNCCL.cpp:685] [Rank 3] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=600000)",
        ),
        (
            "hccl",
            "RuntimeError: [ERROR] 2026-03-01 createHCCLComm HCCL function error: HcclCommInitRootInfoConfig, error "
            "code is 4",
        ),
        ("hccl", "EI0006: [PID: 88] Getting socket times out. Reason: The remote does not initiate a connect request."),
        (
            "all_samples_failed",
            "RuntimeError: Sync replay buffer selected terminal groups with no materializable trajectories: 64",
        ),
        (
            "token_budget",
            "AssertionError: max_token_len must be greater than the sequence length. Got max_token_len=2048 and "
            "max_seq_len=tensor(3011)",
        ),
        (
            "transformers_too_old",
            "ValueError: The checkpoint you are trying to load has model type `qwen3_5` but Transformers does not "
            "recognize this architecture.",
        ),
        (
            "veomni_transformers",
            "TypeError: create_causal_mask() got an unexpected keyword argument 'cache_position'",
        ),
        ("device_assert", "RuntimeError: CUDA error: device-side assert triggered"),
        ("placement_pending", "(autoscaler) Error: No available node types can fulfill resource request {'GPU': 1.0}"),
    ],
)
def test_lines_of_real_logs(id, line):
    log = f"step:3 - actor/loss:0.1\n{RAY}something before\n{WORKER}{line}\n{RAY}something after\n"
    found = cause(log, 1)
    assert found is not None
    assert found.id == id
    assert found.line == line[:300].strip()
    assert found.fix
    assert found.reason


@pytest.mark.parametrize(
    ("phase", "lines"),
    [
        (
            "loss",
            [
                'File "verl/trainer/distillation/fsdp/losses.py", line 88, in compute_forward_kl_topk',
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.00 GiB. GPU 0 has 79 GiB",
            ],
        ),
        (
            "log_prob",
            [
                'File "verl/workers/engine_workers.py", line 700, in compute_log_prob',
                'File "verl/utils/torch_functional.py", line 90, in entropy_from_logits',
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB.",
            ],
        ),
        (
            "update",
            [
                'File "verl/workers/engine/fsdp/transformer_impl.py", line 640, in optimizer_step',
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            ],
        ),
        (
            "weight_sync",
            ['File "verl/workers/engine_workers.py", line 780, in update_weights', "RuntimeError: NPU out of memory."],
        ),
        (
            "rollout",
            ["(EngineCore_DP0 pid=77) File gpu_model_runner.py, in profile_run", "RuntimeError: CUDA out of memory."],
        ),
        (
            "teacher",
            [
                "(teacher_server_0 pid=9) File gpu_model_runner.py, in _get_prompt_logprobs_dict",
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.50 GiB.",
            ],
        ),
        (
            "server_cache",
            [
                "ValueError: To serve at least one request with the models's max seq len (3073), 1.2 GiB KV cache is "
                "needed, which is larger than the available KV cache memory (0.4 GiB)."
            ],
        ),
        (
            "server_start",
            [
                "ValueError: Free memory on device cuda:0 (20.1/79.1 GiB) on startup is less than desired GPU memory "
                "utilization (0.4, 31.6 GiB)."
            ],
        ),
    ],
)
def test_who_ran_out_of_memory(phase, lines):
    found = cause("\n".join([f"{RAY}step:1", *(f"{WORKER}{line}" for line in lines)]), 1)
    assert found is not None
    assert found.id == f"out_of_memory_{phase}"
    assert found.line == lines[-1][:300]


def test_followers_do_not_hide_the_end_of_memory():
    log = [
        f"{WORKER}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        f"{WORKER}[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote error",
    ]
    found = cause("\n".join(log), 1)
    assert found is not None
    assert found.id == "out_of_memory"


def test_the_most_telling_line_counts():
    log = [
        f"{WORKER}OSError: [Errno 28] No space left on device",
        f"{WORKER}[rank1] Watchdog caught collective operation timeout: WorkNCCL",
    ]
    found = cause("\n".join(log), 1)
    assert found is not None
    assert found.id == "disk_full"


def test_chatter_is_no_cause():
    log = [
        "INFO 12-01 10:00:00 [config.py:12] Address already in use, will retry with another port",
        "(autoscaler) Warning: The following resource request cannot be scheduled right now: {'GPU': 1.0}.",
        "Traceback (most recent call last):",
        "KeyError: 'values'",
    ]
    assert cause("\n".join(log), 1) is None


def test_names_of_packages():
    found = cause("ModuleNotFoundError: No module named 'fla'", 1)
    assert found is not None
    assert found.reason == "a package is missing: fla"
    assert cause("ModuleNotFoundError: No module named 'flask'", 1) is None


@pytest.mark.parametrize(
    ("code", "id"),
    [
        (137, "killed"),
        (-9, "killed"),
        (143, "terminated"),
        (-15, "terminated"),
        (-7, "shared_memory"),
        (139, "crashed"),
    ],
)
def test_signals(code, id):
    found = cause("step:1 - actor/loss:0.1", code)
    assert found is not None
    assert (found.id, found.line) == (id, "")


def test_a_line_says_more_than_a_signal():
    found = cause("RuntimeError: CUDA error: device-side assert triggered", -6)
    assert found is not None
    assert found.id == "device_assert"


@pytest.mark.parametrize("code", [0, 130, -2])
def test_ends_without_a_cause(code):
    assert cause("RuntimeError: CUDA out of memory.", code) is None


@pytest.mark.parametrize("log", ["", "\n\n", "Traceback (most recent call last):\nKeyError: 'x'", "\udcff\x00"])
def test_unknown_ends(log):
    assert cause(log, 1) is None


def test_only_the_end_of_a_log_is_read():
    assert cause("OSError: [Errno 28] No space left on device\n" + "step\n" * 500, 1) is None

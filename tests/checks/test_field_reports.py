"""What people ran into, as they would type it here: one row a report, named after its source.

The answer to a row is a finding with a fix, a refusal with what to type, or nothing. Left to the tests of their
subjects: reports about live clusters (CPUs that are short, other versions on other nodes), Slurm requests (memory asked
for twice, named GPU types, quoted host lists, tasks on a node) and sweeps (jobs that fail quietly, keys of one swept
choice, two starts in a second, cells that share a folder).
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opd_conf import checks, platforms, verl_tree
from opd_conf.app import command
from opd_conf.checks import packages
from opd_conf.checks.examples import composed
from opd_conf.compose import compose
from opd_conf.handoff import handoff

BASE = {"platform": "gpu", "student": "qwen3_5_2b", "teacher": "qwen3_5_35b_a3b", "cluster": "2x8"}
UNSEEN = {"data_files", "bytecode_there"}
"""What this machine has not made yet, which no report is about."""

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
STUDENT, TEACHERS = "actor_rollout_ref.model.path", "distillation.teacher_models"
TEACHER = f"{TEACHERS}.teacher_model"
ENV, RUNTIME_ENV = "platform.env", "ray_kwargs.ray_init.runtime_env"
HALVES = "trainer.nnodes=2 trainer.n_gpus_per_node=4 distillation.nnodes=2 distillation.n_gpus_per_node=4"


class Found(NamedTuple):
    """A finding: rule, severity, words of the message, and how the fix begins."""

    rule: str
    severity: str
    words: tuple[str, ...]
    fix: str


@dataclass(frozen=True)
class Refused:
    """Hydra refuses it: words of the message, one of them the key, and a line of what to type."""

    words: tuple[str, ...]
    typed: str


OK = None
Files = Callable[[Path], None]


@dataclass(frozen=True)
class Row:
    """A report: arguments as typed in a shell, FOLDER for the folder with its files; what is the answer."""

    source: str
    given: str
    answer: Found | Refused | None
    files: Files = field(default=lambda folder: None)
    installed: Mapping[str, str] | None = None


# Files

WORDS = {"<end>": 0, "<user>": 1, "a": 2, "b": 3, "c": 4, "d": 5}
VISION: dict[str, Any] = {"architectures": ["Qwen3VLForConditionalGeneration"], "vision_config": {"depth": 2}}


def model(folder: Path, tokens: Mapping[str, int] = WORDS, adds_start: bool = False, **config: Any) -> None:
    """A model's folder as Hugging Face writes it, with few tokens."""
    folder.mkdir()
    sizes = {"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 8, "num_key_value_heads": 8}
    sizes |= {"max_position_embeddings": 4096, "vocab_size": 8}
    marks = [{"id": number, "content": token, "special": True} for token, number in tokens.items() if token[0] == "<"]
    words = {token: number for token, number in tokens.items() if token[0] != "<"}
    tokenizer = {"added_tokens": marks, "model": {"type": "BPE", "vocab": words, "merges": []}}
    template = {"chat_template": "{{ messages }}", "add_bos_token": adds_start}
    for name, content in {"config": sizes | config, "tokenizer": tokenizer, "tokenizer_config": template}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def row(source: str, pictures: int = 0) -> dict[str, Any]:
    """A row of data as verl's examples write it."""
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": "<image>" * pictures + "1+1="}],
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "images": [{"bytes": b"", "path": "x.png"}] * pictures,
    }


def data(folder: Path, *rows: dict[str, Any]) -> None:
    """A file of data with enough rows for a batch."""
    pq.write_table(pa.Table.from_pylist(list(rows) * (256 // len(rows))), folder / "data.parquet")


def pair(**teacher: Any) -> Files:
    """Folders `student` and `teacher`; keywords change the teacher."""

    def write(folder: Path) -> None:
        model(folder / "student")
        model(folder / "teacher", **teacher)

    return write


def rows(*made: dict[str, Any]) -> Files:
    return lambda folder: data(folder, *made)


def text_student_seeing_teacher(folder: Path) -> None:
    pair(**VISION)(folder)
    data(folder, row("openai/gsm8k"))


def two_teachers(folder: Path) -> None:
    model(folder / "student", **VISION)
    model(folder / "text")
    model(folder / "seeing", **VISION)
    data(folder, row("openai/gsm8k"), row("hiyouga/geometry3k", pictures=1))


def longer_vocabulary(folder: Path) -> None:
    for name, size in {"student": 16, "teacher": 8}.items():
        model(folder / name, WORDS | {"e": 12}, vocab_size=size)


def checkpoint(folder: Path) -> None:
    (folder / "global_step_200").mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("200")


def weights(folder: Path) -> None:
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(3 * 2**30)  # a hole: takes no disk


DATA = "data.train_files=FOLDER/data.parquet data.val_files=FOLDER/data.parquet"
TEXT = "student=qwen2_5_0_5b teacher=qwen2_5_3b_instruct data=gsm8k"
PAIR = f"{STUDENT}=FOLDER/student {TEACHER}.model_path=FOLDER/teacher"
TWO_TEACHERS = (
    f"student=qwen2_5_0_5b ~teacher {DATA} {STUDENT}=FOLDER/student +teacher@{TEACHERS}.text=qwen2_5_3b_instruct "
    f"+teacher@{TEACHERS}.seeing=qwen2_5_3b_instruct {TEACHERS}.seeing.model_path=FOLDER/seeing "
    f"{TEACHERS}.text.model_path=FOLDER/text {TEACHERS}.seeing.inference.tensor_model_parallel_size=4 "
    f"{TEACHERS}.text.inference.tensor_model_parallel_size=4"
)
BARE = (
    f"~teacher +{TEACHERS}.math.key=openai/gsm8k +{TEACHERS}.math.model_path=Qwen/Qwen3.5-35B-A3B "
    f"+{TEACHERS}.math.num_replicas=1 +{TEACHERS}.math.inference.name=vllm "
    f"+{TEACHERS}.math.inference.tensor_model_parallel_size=8"
)

ROWS = [
    Row(
        "verl-7742",
        BARE,
        Found(
            *("teacher_load_format", "error", ("Teacher math", "random weights")),
            f"+{TEACHERS}.math.inference.load_format=auto",
        ),
    ),
    Row("verl-7742-group", f"~teacher +teacher@{TEACHERS}.math=qwen3_5_35b_a3b {TEACHERS}.math.key=openai/gsm8k", OK),
    Row(
        "verl-7597",
        f"{ACTOR}.strategy=fsdp {ACTOR}.fsdp_config.strategy=fsdp2",
        Found("fsdp2_on", "error", ("FSDP1 would run", "actor.strategy"), f"{ACTOR}.strategy=fsdp2"),
    ),
    Row(
        "verl-7540",
        f"{ACTOR}.strategy=fspd2",
        Found("strategy_known", "error", ("actor.strategy is fspd2", "fsdp2 or"), f"{ACTOR}.strategy=fsdp2"),
    ),
    Row(
        "trl-2215",
        PAIR,
        Found(
            *("vocabulary_rows", "error", ("The student has 16 vocabulary rows, the teacher 8", "token 12")),
            f"{TEACHER}.model_path=MODEL   # one with the student's vocabulary",
        ),
        longer_vocabulary,
    ),
    Row("trl-2215-padded", f"{TEXT} {PAIR}", OK, pair(vocab_size=24)),
    Row(
        "verl-6870",
        f"{DATA} distillation.distillation_loss.use_task_rewards=false",
        Found(
            *("reward_knows_source", "error", ("no reward for data_source my/own", "also when rewards are not")),
            "reward.custom_reward_function.path=FILE.py",
        ),
        rows(row("my/own")),
    ),
    Row(
        "verl-6870-own-reward",
        f"{DATA} reward.custom_reward_function.path=FOLDER/reward.py",
        OK,
        rows(row("my/own")),
    ),
    Row(
        "verl-2515",
        "cluster=1x8 trainer.n_gpus_per_node=16",
        Found(
            *("pools_fit", "error", ("asks for 16 accelerators of one node", "1 node x 8")),
            "trainer.nnodes=1 trainer.n_gpus_per_node=4 distillation.nnodes=1 distillation.n_gpus_per_node=4",
        ),
    ),
    Row(
        "verl-5954,6358",
        "trainer.nnodes=2 trainer.n_gpus_per_node=6 distillation.n_gpus_per_node=4 data.train_batch_size=96",
        Found(
            *("pools_fit", "error", ("16 of the 16 accelerators", "no node has 4 left", "wait for ever")),
            "trainer.nnodes=1 trainer.n_gpus_per_node=8 distillation.nnodes=1 distillation.n_gpus_per_node=8",
        ),
    ),
    Row(
        "verl-6741",
        f"platform=npu {ENV}.VERL_PLATFORM=npu",
        Found("verl_platform_known", "error", ("VERL_PLATFORM is npu", "huawei"), f"{ENV}.VERL_PLATFORM=huawei"),
    ),
    Row(
        "verl-6741-unnamed",
        f"{ENV}.VERL_PLATFORM=null",
        Found("platform_named", "warning", ("torch_npu 2.10.0", "no GPU"), f"{ENV}.VERL_PLATFORM=nvidia"),
        installed={"torch-npu": "2.10.0", "torch": "2.10.0"},
    ),
    Row(
        "verl-6051",
        f"+teacher@{TEACHERS}.geo=qwen3_5_35b_a3b {TEACHERS}.geo.key=hiyouga/geometry3k",
        Found(
            *("teacher_dropped", "error", ("drops teacher_model (Qwen/Qwen3.5-35B-A3B)", "~teacher")),
            f"{TEACHER}.model_path=null",
        ),
    ),
    Row(
        "verl-571,3088",
        f"{ACTOR}.use_dynamic_bsz=true {ACTOR}.ppo_max_token_len_per_gpu=2048",
        Found("token_budget", "error", ("2048", "1024 + 2048 = 3072"), f"{ACTOR}.ppo_max_token_len_per_gpu=3072"),
    ),
    Row(
        "verl-1442",
        f"+{ROLLOUT}.engine_kwargs.vllm_mm_processor_cache_gb=0",
        Found(
            *("engine_kwargs_backend", "error", ("engine_kwargs.vllm_mm_processor_cache_gb is ignored",)),
            f"+{ROLLOUT}.engine_kwargs.vllm.mm_processor_cache_gb=0",
        ),
    ),
    Row(
        "verl-3037",
        f"{ROLLOUT}.engine_kwargs.vllm_mm_processor_cache_gb=0",
        Refused(
            (f"verl ignores {ROLLOUT}.engine_kwargs.vllm_mm_processor_cache_gb",),
            f"+{ROLLOUT}.engine_kwargs.vllm.mm_processor_cache_gb=0",
        ),
    ),
    Row("verl-1080", "trainer.nodes=2", Refused(("There is no key trainer.nodes",), "trainer.nnodes=2")),
    Row(
        "verl-1080-plus",
        "+trainer.nodes=1",
        Found("unknown_key", "error", ("verl never reads trainer.nodes",), "trainer.nnodes=1"),
    ),
    Row(
        "verl-6792",
        "platform.device_memory_gib=16",
        Found(
            *("server_memory", "error", ("gives the teacher 6.4 GiB", "its weights take 8.2")),
            f"{TEACHER}.inference.gpu_memory_utilization",
        ),
    ),
    Row(
        "verl-6810",
        "platform.device_memory_gib=64 loss_mode=forward_kl_topk data.max_response_length=20000",
        Found("memory_fits", "error", ("student update", "of a device's 64.0", "logits"), f"{ACTOR}."),
    ),
    Row(
        "torchforge-631",
        "cluster=1x8 trainer.default_local_dir=FOLDER",
        Found(
            *("checkpoints_own", "warning", ("global_step_200 of another run", "resume_mode=auto")),
            "'trainer.default_local_dir=${run_dir}/checkpoints'",
        ),
        checkpoint,
    ),
    Row(
        "torchforge-631-meant",
        "cluster=1x8 trainer.default_local_dir=FOLDER trainer.resume_mode=disable",
        OK,
        checkpoint,
    ),
    Row(
        "verl-6293",
        "loss_mode=forward_kl_topk actor_rollout_ref.model.use_fused_kernels=true",
        Found(
            *("topk_fused_kernels", "error", ("forward_kl_topk", "VeOmni can (engine=veomni)")),
            "actor_rollout_ref.model.use_fused_kernels=false",
        ),
    ),
    Row(
        "verl-559",
        "data.train_batch_size=30",
        Found("batch_splits_over_world", "error", ("30 prompts x 1 answers", "8 student"), "data.train_batch_size=32"),
    ),
    Row(
        "verl-606",
        f"{ACTOR}.use_dynamic_bsz=true {ACTOR}.ppo_max_token_len_per_gpu=4096 data.train_batch_size=30",
        Found("mini_batch_splits_over_ranks", "error", ("30 sequences", "8 data-parallel"), "data.train_batch_size=32"),
    ),
    Row(
        "vllm-2652",
        PAIR,
        Found(
            *("heads_divide_tensor_parallel", "error", ("28 attention heads", "8 ranks")),
            f"{TEACHER}.inference.tensor_model_parallel_size=4 {TEACHER}.inference.expert_parallel_size=4",
        ),
        pair(num_attention_heads=28, num_key_value_heads=4),
    ),
    Row(
        "verl-7769",
        f"{ROLLOUT}.temperature=0.7",
        Found("rollout_temperature", "warning", ("temperature is 0.7", "stays 1"), f"{ROLLOUT}.temperature=1.0"),
    ),
    Row(
        "verl-7195",
        "platform=npu",
        Found("packages_together", "warning", ("torch-npu 2.9.0 is made for torch 2.9.0", "2.10.0"), "# take both"),
        installed={"torch-npu": "2.9.0", "torch": "2.10.0"},
    ),
    Row(
        "verl-6458",
        "platform=npu",
        Found("packages_together", "warning", ("vllm-ascend 0.23.0", "0.24.0 is installed"), "# take both"),
        installed={"torch": "2.10.0", "vllm": "0.24.0", "vllm-ascend": "0.23.0"},
    ),
    Row("vllm-ascend-11968-auto", f"platform=npu {ENV}.HCCL_NPU_SOCKET_PORT_RANGE=auto", OK),
    Row(
        "vllm-ascend-11968",
        f"platform=npu {ENV}.HCCL_NPU_SOCKET_PORT_RANGE=16666",
        Found(
            *("hccl_ports", "warning", ("is 16666, 1 port", "2 processes share a device")),
            f"{ENV}.HCCL_NPU_SOCKET_PORT_RANGE=auto",
        ),
    ),
    Row(
        "verl-6562",
        f"platform=npu {ENV}.TASK_QUEUE_ENABLE=2",
        Found(
            *("npu_task_queue", "warning", ("TASK_QUEUE_ENABLE is 2",)),
            f"++{ENV}.VLLM_ASCEND_TASK_QUEUE_ENABLE=1",
        ),
    ),
    *(
        Row(
            f"hydra-573,96-{value}",
            shlex.quote(f"{STUDENT}={value}"),
            Refused((f"The value of {STUDENT}", "must be quoted"), shlex.quote(f'{STUDENT}="{value}"')),
        )
        for value in ("/a/step=3", "/a/b(1)", "~/a")
    ),
    Row(
        "hydra-573,96-home",
        "'data.train_files=$HOME/a.parquet'",
        Found("data_files", "warning", ("$HOME/a.parquet", "the shell leaves $ as it is"), "data.train_files=FILE"),
    ),
    Row(
        "hydra-573,96-off",
        "distillation.enabled=off",
        Found("distillation_enabled", "error", ("is 'off'", "any text for true"), "distillation.enabled=true"),
    ),
    Row(
        "cloudai-557",
        f"+{RUNTIME_ENV}.env_vars.NCCL_IB_HCA=mlx5_0:1,mlx5_1:1",
        Refused(
            ("NCCL_IB_HCA is an environment variable", "mlx5_0:1,mlx5_1:1"),
            f"'+{RUNTIME_ENV}.env_vars.NCCL_IB_HCA=\"mlx5_0:1,mlx5_1:1\"'",
        ),
    ),
    Row(
        "cloudai-557-list",
        f"'+{ENV}.NCCL_IB_HCA=[mlx5_0:1,mlx5_1:1]'",
        Found(
            *("variables_are_texts", "error", ("NCCL_IB_HCA is an environment variable", "a list")),
            f"'{ENV}.NCCL_IB_HCA=\"mlx5_0:1,mlx5_1:1\"'",
        ),
    ),
    *(
        Row(
            source,
            f"trainer.experiment_name={value}",
            Refused(
                ("The value of trainer.experiment_name has characters that must be quoted", value),
                f"'trainer.experiment_name=\"{value}\"'",
            ),
        )
        for source, value in {"hydra-2705": "run#3", "hydra-2891": "第三次"}.items()
    ),
    Row(
        "lightning-hydra-629", "rollout=none", Refused(("rollout cannot be left out", "sglang, vllm"), "rollout=sglang")
    ),
    Row("lightning-hydra-629-empty", "rollout=''", Refused(("sglang, vllm",), "rollout=sglang")),
    Row(
        "verl-6856",
        f"{HALVES} {ROLLOUT}.tensor_model_parallel_size=4 {ROLLOUT}.data_parallel_size=2",
        Found(
            *("dense_replica_on_one_node", "warning", ("4 x 2 x 1 = 8 accelerators, of nodes with 4", "dense")),
            f"{ROLLOUT}.data_parallel_size=1",
        ),
    ),
    Row(
        "easyr1-207,175",
        "data.filter_overlong_prompts=False",
        Found(
            *("overlong_prompts_left_out", "warning", ("over 1024 tokens", "filter_overlong_prompts is false")),
            "data.filter_overlong_prompts=true",
        ),
    ),
    Row(
        "verl-4534",
        "trainer.save_freq=-1 trainer.total_epochs=30",
        Found("checkpoints_saved", "warning", ("save_freq is -1", "30 epochs", "last step"), "trainer.save_freq=200"),
    ),
    Row(
        "verl-1191,1785",
        f"trainer.n_gpus_per_node=1 {ROLLOUT}.tensor_model_parallel_size=2",
        Found(
            *("rollout_divides_world", "error", ("= 2 accelerators", "the student's 1")),
            f"{ROLLOUT}.tensor_model_parallel_size=1",
        ),
    ),
    Row(
        "verl-12",
        f"{ROLLOUT}.log_prob_micro_batch_size=4 {ROLLOUT}.log_prob_micro_batch_size_per_gpu=null",
        Found(
            *("micro_batch_set", "error", ("log_prob_micro_batch_size",)),
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=1",
        ),
    ),
    Row(
        "trl-4562",
        PAIR,
        Found(
            *("teachers_share_tokens", "error", ("'a' is 2 for the student", "has it as 3")),
            f"{TEACHER}.model_path=MODEL   # one with the student's tokenizer",
        ),
        pair(tokens=WORDS | {"a": 3, "b": 2}),
    ),
    Row("verl-5997", f"{TEXT} {PAIR} {DATA}", OK, text_student_seeing_teacher),
    Row(
        "verl-6056",
        f"{TWO_TEACHERS} {TEACHERS}.text.key=openai/gsm8k {TEACHERS}.seeing.key=hiyouga/geometry3k",
        OK,
        two_teachers,
    ),
    Row(
        "verl-6056-exchanged",
        f"{TWO_TEACHERS} {TEACHERS}.text.key=hiyouga/geometry3k {TEACHERS}.seeing.key=openai/gsm8k",
        Found(
            *("images_reach_vision_models", "error", ("rows with pictures for teacher text", "no vision part")),
            f"{TEACHERS}.text.model_path=MODEL   # one with vision",
        ),
        two_teachers,
    ),
    Row(
        "trl-5885",
        PAIR,
        Found("start_token_alike", "note", ("add_bos_token",), "nothing to do where the chat template"),
        pair(adds_start=True),
    ),
    Row(
        "verl-omni-227,vllm-ascend-168,2879",
        f"platform=npu {ENV}.RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES=1",
        OK,
    ),
    Row(
        "pytorch-123548,vllm-ascend-5855",
        f"platform=npu '{ENV}.PYTORCH_NPU_ALLOC_CONF=\"max_split_size_mb:1024,expandable_segments:True\"'",
        Found(
            *("npu_allocator", "warning", ("max_split_size_mb", "expandable_segments:True")),
            f"'++{ENV}.PYTORCH_NPU_ALLOC_CONF=\"max_split_size_mb:1024\"'",
        ),
    ),
    Row(
        "afd-plugin-229,vllm-ascend-9447",
        f"platform=npu {ENV}.HCCL_CONNECT_TIMEOUT=120",
        Found("hccl_patience", "warning", ("is 120 s", "2 nodes"), f"++{ENV}.HCCL_CONNECT_TIMEOUT=1500"),
    ),
    Row(
        "llamafactory-10219,automodel-1502",
        "",
        Found(
            *("transformers_knows_model", "warning", ("transformers 5.1.0", "of type qwen3_5")),
            "pip install transformers==5.9.0",
        ),
        installed={"transformers": "5.1.0"},
    ),
    Row(
        "verl-1535,4024",
        f"{HALVES} trainer.default_local_dir=checkpoints/a",
        Found(
            *("checkpoints_shared", "warning", ("default_local_dir=checkpoints/a is relative", "2 nodes")),
            "trainer.default_local_dir=FOLDER   # absolute, on a file system that all nodes share",
        ),
    ),
    Row(
        "verl-696,lmm-r1-81",
        f"+{RUNTIME_ENV}.working_dir=FOLDER",
        Found(
            *("working_folder_small", "warning", ("3,072 MiB", "model.safetensors", "refuses 512 MiB")),
            f"~{RUNTIME_ENV}.working_dir",
        ),
        weights,
    ),
]


def arguments(given: str) -> list[str]:
    """A row's arguments, after those of the base that it does not change."""
    typed = shlex.split(given)
    keys = {argument.strip("+~").partition("=")[0] for argument in typed}
    return [*(f"{group}={option}" for group, option in BASE.items() if group not in keys), *typed, "action=check"]


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch, tmp_path):
    for name in ("OPD_PLATFORM", "OPD_VERL_ROOT", "VERL_PLATFORM", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir("/")  # not a folder that a node has for itself


@pytest.mark.parametrize("report", [row for row in ROWS if isinstance(row.answer, Refused)], ids=lambda row: row.source)
def test_a_report_that_hydra_refuses(report: Row, capsys):
    assert isinstance(report.answer, Refused)
    assert command(arguments(report.given)) == 2
    said = capsys.readouterr().err
    assert f"  type: {report.answer.typed}" in said.splitlines()
    assert [words for words in report.answer.words if words not in said] == []
    compose(arguments(report.answer.typed))


@pytest.mark.parametrize(
    "report", [row for row in ROWS if not isinstance(row.answer, Refused)], ids=lambda row: row.source
)
def test_a_report(report: Row, monkeypatch, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    report.files(folder)
    if report.installed is not None:
        monkeypatch.setattr(packages, "installed", report.installed.get)
    found = checks.findings(composed(arguments(report.given.replace("FOLDER", str(folder)))))
    errors = [finding.id for finding in found if finding.severity == "error"]
    if report.answer is OK:
        assert [finding for finding in found if finding.severity != "note" and finding.id not in UNSEEN] == []
        return
    assert isinstance(report.answer, Found)
    rule, severity, words, fix = report.answer
    said = [finding for finding in found if finding.id == rule]
    assert said, found
    assert [text for text in words if text not in said[0].message] == [], said[0].message
    assert said[0].severity == severity
    assert said[0].fix.startswith(fix)
    assert errors == [] or severity == "error"


# Better defaults


def forwarded(*overrides: str) -> dict[str, str]:
    """What a run's workers get in their environment, on every node."""
    base = [f"{group}={option}" for group, option in BASE.items() if f"{group}=npu" not in overrides]
    handed = handoff(compose([*base, *overrides]).config, Path("/run"))
    found: dict[str, str] = handed.verl["ray_kwargs"]["ray_init"]["runtime_env"]["env_vars"]
    assert handed.environment.items() <= found.items()
    return found


@pytest.mark.parametrize("block", [ENV, f"{RUNTIME_ENV}.env_vars"])
def test_variables_reach_every_worker_as_texts(block):
    """Ray 2260, OpenRLHF 1138."""
    found = forwarded(f"+{block}.MY_NUMBER=1", f"+{block}.MY_FLAG=true")
    assert (found["MY_NUMBER"], found["MY_FLAG"]) == ("1", "true")
    assert {type(value) for value in found.values()} == {str}


def test_what_the_shell_has_of_verls_own_variables_reaches_every_worker(monkeypatch):
    """verl 3813: verl leaves out of what it forwards whatever the shell has."""
    constants = (verl_tree.package_folder() / "trainer" / "constants_ppo.py").read_text()
    block = constants.partition("PPO_RAY_RUNTIME_ENV = {")[2].partition("**_")[0]
    names = [part for part in block.split('"') if part.isupper() and "_" in part]
    assert {"VLLM_LOGGING_LEVEL", "NCCL_DEBUG", "HCCL_NPU_SOCKET_PORT_RANGE"} <= set(names)
    for name in names:
        monkeypatch.setenv(name, f"of the shell, {name}")
    found = forwarded("platform=npu")
    assert {name: found.get(name) for name in names} == {name: f"of the shell, {name}" for name in names}


def test_patience_of_the_platform_reaches_every_worker(monkeypatch):
    """afd-plugin 229, vllm-ascend 9447; ports of vllm-ascend 11968."""
    monkeypatch.delenv("HCCL_CONNECT_TIMEOUT", raising=False)
    found = forwarded("platform=npu", f"{ENV}.HCCL_NPU_SOCKET_PORT_RANGE=auto")
    assert (found["HCCL_CONNECT_TIMEOUT"], found["HCCL_NPU_SOCKET_PORT_RANGE"]) == ("1500", "auto")


def test_a_torch_npu_that_can_be_imported_is_no_npu(monkeypatch, tmp_path):
    """verl 6741: devices count, and verl is told the platform instead of looking for itself."""
    (tmp_path / "torch_npu.py").touch()
    (tmp_path / "nvidia0").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("OPD_PLATFORM", raising=False)
    assert platforms.detect(tmp_path)[0] == "gpu"
    assert forwarded()["VERL_PLATFORM"] == "nvidia"


def test_a_mistake_is_told_before_anything_is_imported():
    """verl 3182, NeMo-RL 2783: there, models were up before it was."""
    code = (
        "import sys; from opd_conf.app import command; code = command(sys.argv[1:]); "
        "print(code, {'torch', 'ray', 'verl', 'vllm', 'transformers'} & set(sys.modules))"
    )
    arguments = [*(f"{group}={option}" for group, option in BASE.items()), "data.train_batch_size=30"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.stdout.split("\n")[-2] == "2 set()", done.stderr


def test_a_run_keeps_what_tells_it_from_another(monkeypatch, tmp_path):
    """NeMo-RL 1527, verl 6904: resolved configuration, environment, versions and choices lie in the run's folder."""
    monkeypatch.chdir(tmp_path)
    arguments = [*(f"{group}={option}" for group, option in BASE.items()), "action=dry_run", "run_dir=kept"]
    assert command([*arguments, f"+{ENV}.MY_FLAG=1"]) == 0
    facts = json.loads((tmp_path / "kept" / "run.json").read_text())
    assert facts["choices"]["student"] == BASE["student"]
    assert {"versions", "git", "overrides", "python"} <= facts.keys()
    assert json.loads((tmp_path / "kept" / "env.json").read_text())["MY_FLAG"] == "1"
    assert "${" not in (tmp_path / "kept" / "verl.yaml").read_text()


def test_odd_names_that_were_quoted_start_a_run(monkeypatch, tmp_path):
    """Hydra 2705 and 2891, one step further: the folder is named after the experiment."""
    monkeypatch.chdir(tmp_path)
    base = [f"{group}={option}" for group, option in BASE.items()]
    for name in ("run#3", "第三次"):
        assert command([*base, "action=dry_run", f'trainer.experiment_name="{name}"']) == 0
        (folder,) = tmp_path.glob(f"outputs/*/*_{name}")
        subprocess.run(["bash", "-n", str(folder / "command.sh")], check=True)

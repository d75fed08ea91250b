"""What is installed here, and variables that hurt. Packages are asked for their versions only, never imported."""

import functools
import importlib.metadata
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from opd_conf import runner, verl_tree
from opd_conf.checks.finding import Finding, error, note, warning
from opd_conf.errors import UserError
from opd_conf.platforms import as_text
from opd_conf.view import ACTOR, ROLLOUT, View

BLOCK = "platform.env"
PLUGINS = {"gpu": ("nvidia", "amd"), "npu": ("huawei",), "cpu": ("cpu",)}
"""verl's names of platforms (plugin/platform/platform_manager.py), by ours; `cpu` is opd_conf's own plugin."""

_FROM_SHELL = re.compile(r"\$\{oc\.env:(\w+),\s*(.*)\}")


def setting(run: View, key: str) -> Any:
    """A key's value, None where there is none; a plain one without OmegaConf, which takes a hundred times as long."""
    node: Any = run.raw
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else node
    if "${" in str(node):
        return OmegaConf.select(run.config, key, throw_on_missing=False)
    return None if node == "???" else node


def variable(run: View, name: str) -> str | None:
    """An environment variable as the trainer will have it: of the platform's block, else of this shell."""
    block = run.raw.get("platform", {}).get("env", {})
    if name not in block:
        return os.environ.get(name) if setting(run, "action") in ("train", "check") else None
    value = block[name]
    if isinstance(value, str) and (found := _FROM_SHELL.fullmatch(value)):  # OmegaConf would take a millisecond
        plain = found[2].strip("'\"")
        return os.environ.get(found[1], None if plain == "null" else plain)
    if "${" in str(value):
        value = OmegaConf.select(run.config, f"{BLOCK}.{name}")
    return None if value is None else as_text(value)


def _typed(name: str, value: str) -> str:
    """What to type to give a variable a value; `++` sets it whether or not the platform has it."""
    return shlex.quote(f'++{BLOCK}.{name}="{value}"')


# Variables


def verl_platform_known(run: View) -> Iterator[Finding]:
    """VERL_PLATFORM is a name that verl knows, and the platform of this run.

    verl: plugin/platform/platform_manager.py, at import and in every process.
    """
    value, names = variable(run, "VERL_PLATFORM"), PLUGINS.get(str(setting(run, "platform.name")), ())
    if value is not None and names and value not in names:
        known = sorted({name for group in PLUGINS.values() for name in group})
        what = "another platform" if value in known else "no name that verl knows"
        yield error(
            f"{BLOCK}.VERL_PLATFORM",
            message=f"VERL_PLATFORM is {value}, {what}; with platform={setting(run, 'platform.name')} it is "
            f"{' or '.join(names)}.",
            fix=f"{BLOCK}.VERL_PLATFORM={names[0]}",
        )


def connections_unlimited(run: View) -> Iterator[Finding]:
    """CUDA_DEVICE_MAX_CONNECTIONS is not 1 under FSDP: copies and products would wait for each other.

    verl: trainer/constants_ppo.py:get_ppo_ray_runtime_env sets it for Megatron only.
    """
    name, gpu = "CUDA_DEVICE_MAX_CONNECTIONS", setting(run, "platform.name") == "gpu"
    if gpu and run.engine in ("fsdp_config", "veomni") and variable(run, name) == "1":
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
    value = variable(run, name) or ""
    options = dict(option.strip().split(":", 1) for option in value.split(",") if ":" in option)
    if setting(run, "platform.name") != "npu" or options.get("expandable_segments", "").lower() != "true":
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
    served = run.rollout.backend == "vllm" and setting(run, "platform.name") == "npu"
    if served and variable(run, "TASK_QUEUE_ENABLE") == "2" and variable(run, own) != "1":
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
    value = variable(run, name)
    if setting(run, "platform.name") == "npu" and run.rollout.backend == "vllm" and value not in (None, "0"):
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
    value, nodes = variable(run, name), max(run.student_nodes, run.teacher_nodes, run.cluster_nodes)
    if setting(run, "platform.name") != "npu":
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


def launches_unblocked(run: View) -> Iterator[Finding]:
    """No variable makes every kernel wait for the one before; that is for finding faults."""
    for name in ("ASCEND_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING"):
        if (
            name.startswith("ASCEND" if setting(run, "platform.name") == "npu" else "CUDA")
            and variable(run, name) == "1"
        ):
            yield note(
                f"{BLOCK}.{name}",
                message=f"{name} is 1: every kernel waits for the one before. Good for stack traces, and slow.",
                fix=f"++{BLOCK}.{name}=null",
            )


# Packages


@functools.cache
def installed(package: str) -> str | None:
    """The version of an installed package, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _runs_here(run: View) -> bool:
    """Whether a trainer started here would have this Python's packages, not those of uv."""
    try:
        return runner.choose(run.config).py_executable is None
    except UserError:
        return False


def _trains_here(run: View) -> bool:
    """Whether this Python is also one that was made for training: it has torch."""
    return installed("torch") is not None and _runs_here(run)


def _within(package: str, versions: str) -> bool:
    """Whether a package is installed in one of these versions."""
    found = installed(package)
    return found is not None and SpecifierSet(versions).contains(Version(found), prereleases=True)


def _outside(package: str, versions: str) -> bool:
    """Whether a package is installed in none of these versions."""
    return installed(package) is not None and not _within(package, versions)


def packages_for_verl(run: View) -> Iterator[Finding]:
    """What verl 0.9.1 needs is installed in versions that it works with; its wheel does not ask for all of it.

    verl: trainer/main_ppo.py (transfer_queue), utils/tensordict_utils.py, the wheel's METADATA.
    """
    if not _trains_here(run):
        return
    needs = {
        "TransferQueue": (">=0.1.10", "0.1.11", "verl's wheel forgets it, and the trainer imports it first"),
        "tensordict": ("==0.10.0", "0.10.0", "others fail an assertion in the agent loop, sample by sample"),
        "transformers": ("!=5.6.0,>=5.5.3,<5.11", "5.9.0", "verl's wheel asks for >=5.5.3,<5.11 without 5.6.0"),
        "numpy": (">=2.0.0", "2.3.5", "verl's wheel asks for >=2.0.0"),
    }
    for package, (versions, good, why) in needs.items():
        absent = installed(package) is None and package == "TransferQueue"
        if absent or _outside(package, versions):
            say = error if package in ("TransferQueue", "tensordict") and setting(run, "action") == "train" else warning
            yield say(
                "launch.runner",
                message=f"{package} {installed(package) or 'is not installed'}: {why}.",
                fix=f"pip install {package}=={good}",
            )


def packages_together(run: View) -> Iterator[Finding]:
    """Installed packages go together: VeOmni and transformers, torch_npu and torch, vllm-ascend and vllm.

    verl: pyproject's extras, docs/ascend_tutorial; see docs/install.md.
    """
    if not _trains_here(run):
        return
    npu = setting(run, "platform.name") == "npu"
    if run.engine == "veomni" and _within("veomni", "<0.1.12") and _within("transformers", ">=5.9"):
        say = error if setting(run, "action") == "train" else warning
        yield say(
            "engine",
            message=f"veomni {installed('veomni')} with transformers {installed('transformers')} fails at the first "
            "forward (create_causal_mask: cache_position).",
            fix="pip install --no-deps veomni==0.1.12",
        )
    for one, other in (("torch-npu", "torch"), ("vllm-ascend", "vllm")):
        versions = [Version(found).release for name in (one, other) if (found := installed(name))]
        if npu and len(versions) == 2 and versions[0] != versions[1]:
            yield warning(
                "platform",
                message=f"{one} {installed(one)} is made for {other} {'.'.join(map(str, versions[0]))}, and "
                f"{installed(other)} is installed.",
                fix="# take both from one of Ascend's images (docs/install.md)",
            )


KNOWS_QWEN3_5 = "5.5.3"
"""The first release of transformers with `qwen3_5` that verl 0.9.1 takes."""


def transformers_knows_model(run: View) -> Iterator[Finding]:
    """The installed transformers is new enough for the models.

    verl: the wheel's METADATA (transformers>=5.5.3); older releases do not know `qwen3_5`.
    """
    found = installed("transformers")
    if found is None or Version(found) >= Version(KNOWS_QWEN3_5) or not _runs_here(run):
        return
    for key, path in _paths(run).items():
        if is_qwen3_5(path):
            yield warning(
                key,
                message=f"transformers {found} is installed, and {path} is of type qwen3_5, which takes "
                f"{KNOWS_QWEN3_5} or newer.",
                fix="pip install transformers==5.9.0",
            )
            return


def is_qwen3_5(path: str) -> bool:
    """Whether a model's path is one of the Qwen3.5 family, by its name."""
    return re.search(r"qwen-?3[._]5", path, re.IGNORECASE) is not None


def _paths(run: View) -> Mapping[str, str]:
    """The models' paths by key."""
    key = "actor_rollout_ref.model.path"
    student = setting(run, key)
    teachers = {f"{teacher.prefix}.model_path": teacher.model_path for teacher in run.teachers}
    return {key: str(path) for key, path in {key: student, **teachers}.items() if path}


BYTECODE = {"verl": "trainer/main_ppo.py", "vllm": "engine/arg_utils.py", "sglang": "srt/server_args.py"}
"""A module of each package that every run imports, to see whether it was compiled."""


def bytecode_there(run: View) -> Iterator[Finding]:
    """Packages were compiled at installation: Ray starts workers with `python -B`, and nobody ever would.

    uv compiles nothing unless told. Measured: 8.9 s of imports in each process, 26.5 without.

    verl: trainer/main_ppo.py and whatever it imports, in about sixteen processes.
    """
    if os.environ.get("PYTHONPYCACHEPREFIX") or not _trains_here(run):
        return
    folders = [
        folder
        for package, module in BYTECODE.items()
        if package in ("verl", run.rollout.backend)
        and (folder := _folder(package))
        and (folder / module).is_file()
        and not _compiled(folder / module)
    ]
    if folders:
        names = ", ".join(folder.name for folder in folders)
        yield warning(
            "launch.runner",
            message=f"Without compiled bytecode: {names}. Each of Ray's processes "
            "compiles anew, and imports take three times as long.",
            fix=shlex.join([sys.executable, "-m", "compileall", "-q", *map(str, folders)]),
        )


@functools.cache
def _folder(package: str) -> Path | None:
    if package == "verl":
        try:
            return verl_tree.package_folder()
        except UserError:
            return None
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _compiled(module: Path) -> bool:
    return Path(importlib.util.cache_from_source(str(module))).is_file()


# Speed and kernels


def qwen3_5_on_veomni(run: View) -> Iterator[Finding]:
    """Qwen3.5 is trained with FSDP2 on NPUs: VeOmni 0.1.11 has no kernels for its linear attention there.

    verl: workers/config/engine.py:VeOmniEngineConfig.
    """
    if setting(run, "platform.name") != "npu" or run.engine != "veomni":
        return
    path = _paths(run).get("actor_rollout_ref.model.path", "")
    if is_qwen3_5(path):
        yield error(
            "engine",
            "actor_rollout_ref.model.path",
            message=f"{path} cannot be trained with VeOmni on an NPU: no kernels for its linear attention.",
            fix="engine=fsdp2",
        )


LONG = 8192
"""Tokens of a sequence from which one at a time fills an accelerator anyway."""


def micro_batch_of_one(run: View) -> Iterator[Finding]:
    """Short sequences are packed (use_dynamic_bsz), not updated one at a time.

    Measured on an H200, 64 x 768 tokens: 21 to 25 s an update with one sequence at a time, 2 to 3 s packed. verl's own
    Qwen3.5 scripts go one by one, so for these it is a note; on NPUs their packing is no quicker, and nothing is said.

    verl: workers/engine/utils.py:prepare_micro_batches.
    """
    packable = setting(run, "actor_rollout_ref.model.use_remove_padding") is True
    share = run.mini_batch * run.rollout_n // run.data_parallel
    if run.dynamic or run.micro_batch.per_gpu != 1 or not packable or share < 2 or run.sequence_length > LONG:
        return
    path = _paths(run).get("actor_rollout_ref.model.path", "")
    if setting(run, "platform.name") == "cpu" or (setting(run, "platform.name") == "npu" and is_qwen3_5(path)):
        return
    budget = max(2 * run.sequence_length, LONG)
    say = note if is_qwen3_5(path) else warning
    yield say(
        f"{ACTOR}.use_dynamic_bsz",
        f"{run.micro_batch.at}_per_gpu",
        message=f"Each update goes through {share} sequences an accelerator one by one; packed into {budget} tokens it "
        "takes a small part of the time.",
        fix=f"{ACTOR}.use_dynamic_bsz=true {ACTOR}.ppo_max_token_len_per_gpu={budget}"
        + ("" if run.follows(f"{ROLLOUT}.log_prob_use_dynamic_bsz") else f" {ROLLOUT}.log_prob_use_dynamic_bsz=true"),
    )

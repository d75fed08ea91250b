"""What is installed here. Packages are asked for their versions only, never imported."""

import functools
import importlib.metadata
import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from opd_conf import runner, verl_tree
from opd_conf.checks.finding import Finding, error, warning
from opd_conf.errors import UserError
from opd_conf.view import View, is_qwen3_5


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
        return runner.choose(run.values.config).py_executable is None
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
            say = error if package in ("TransferQueue", "tensordict") and run.action == "train" else warning
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
    npu = run.platform == "npu"
    if run.engine == "veomni" and _within("veomni", "<0.1.12") and _within("transformers", ">=5.9"):
        say = error if run.action == "train" else warning
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


def platform_named(run: View) -> Iterator[Finding]:
    """VERL_PLATFORM is set where torch_npu is installed without being meant: verl takes an NPU for there.

    verl: plugin/platform/platform_manager.py:_detect_platform_name, which looks at imports where no GPU answers.
    """
    key = "platform.env.VERL_PLATFORM"
    if run.platform == "gpu" and run.variable("VERL_PLATFORM") is None and installed("torch-npu") and _runs_here(run):
        yield warning(
            key,
            message=f"VERL_PLATFORM is left out, and torch_npu {installed('torch-npu')} is installed: where no "
            "GPU is seen, verl takes this for an NPU machine.",
            fix=f"{key}=nvidia",
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
    for key, path in run.model_paths.items():
        if is_qwen3_5(path):
            yield warning(
                key,
                message=f"transformers {found} is installed, and {path} is of type qwen3_5, which takes "
                f"{KNOWS_QWEN3_5} or newer.",
                fix="pip install transformers==5.9.0",
            )
            return


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
        and (folder := package_folder(package))
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
def package_folder(package: str) -> Path | None:
    if package == "verl":
        try:
            return verl_tree.package_folder()
        except UserError:
            return None
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _compiled(module: Path) -> bool:
    return Path(importlib.util.cache_from_source(str(module))).is_file()

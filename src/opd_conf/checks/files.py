"""What lies on disks. A file that cannot be seen from here (hdfs://, s3://) is left to verl."""

import fnmatch
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from opd_conf.checks.finding import Finding, error, warning
from opd_conf.view import View

RECIPES = ("gsm8k", "geo3k")
"""Folders of data that verl's examples/data_preprocess/NAME.py writes."""


def data_files(run: View) -> Iterator[Finding]:
    """Training and validation files are there; verl wants both, also when it never validates.

    A plan made elsewhere than on the cluster cannot see its files: then their absence is a warning.

    verl: trainer/ppo/v1/trainer_base.py:_init_dataloader.
    """
    fixes: dict[str, list[tuple[str, str]]] = {}
    for key, files in {"data.train_files": run.train_files, "data.val_files": run.val_files}.items():
        if not files:
            yield error(key, message=f"{key} names no file; verl reads it in any case.", fix=f"{key}=FILE.parquet")
        for file in files:
            if not _seen(file):
                fixes.setdefault(_fix(run, key, file), []).append((key, file))
    for fix, missing in fixes.items():
        keys = dict.fromkeys(key for key, _ in missing)
        say = error if run.action == "train" else warning
        yield say(*keys, message=_message(list(dict.fromkeys(file for _, file in missing))), fix=fix)


def _seen(file: str) -> bool:
    return "://" in file or Path(os.path.expanduser(file)).is_file()


def _message(missing: list[str]) -> str:
    paths = ", ".join(missing)
    relative = any(not Path(os.path.expanduser(file)).is_absolute() for file in missing)
    here = f" (looked for in {os.getcwd()})" if relative else ""
    literal = ". In single quotes the shell leaves $ as it is" if "$" in paths else ""
    return f"No such data: {paths}{here}{literal}."


def _fix(run: View, key: str, file: str) -> str:
    """The command that makes the file, where it is one of ours or of verl's examples; else the setting."""
    folder = Path(os.path.expanduser(file)).parent
    assets = Path(str(run.setting("assets")))
    if folder.is_relative_to(assets):
        return "python -m opd_conf.cpu.sums" + ("" if folder == _default_sums() else f" {folder}")
    if folder.name in RECIPES:
        return f"python examples/data_preprocess/{folder.name}.py --local_save_dir {folder}   # in a checkout of verl"
    return f"{key}=FILE"


def _default_sums() -> Path:
    """Where `python -m opd_conf.cpu.sums` writes when it is told nothing (cpu/sums.py:default_folder)."""
    return Path(os.environ.get("OPD_ASSETS") or Path.home() / ".cache" / "opd_conf") / "sums"


PACKED = 256 * 2**20
"""Bytes of a working folder at which Ray warns; it refuses twice that (its _private/runtime_env/packaging.py)."""

UNPACKED = (".git", ".venv", "venv", "__pycache__")
"""What Ray leaves out of a working folder by itself (its _private/ray_constants.py)."""


def working_folder_small(run: View) -> Iterator[Finding]:
    """The folder that Ray is told to pack for every node is one of code, without weights.

    verl: trainer/main_ppo.py:run_ppo hands ray_init.runtime_env to ray.init, which packs working_dir.
    """
    key = "ray_kwargs.ray_init.runtime_env.working_dir"
    folder = run.setting(key)
    if not isinstance(folder, str) or "://" in folder or not Path(folder).is_dir():
        return
    left_out = [str(pattern) for pattern in run.setting("ray_kwargs.ray_init.runtime_env.excludes") or []]
    size, largest, most = _packed(Path(folder), left_out)
    if size >= PACKED:
        yield warning(
            key,
            message=f"Ray would pack {folder} for every node, {size / 2**20:,.0f} MiB (the largest file: {largest}, "
            f"{most / 2**20:,.0f} MiB); it refuses {2 * PACKED / 2**20:.0f} MiB and more. Files that a .rayignore "
            "there names stay out.",
            fix=f"~{key}",
        )


def _packed(folder: Path, left_out: Sequence[str], seconds: float = 0.3) -> tuple[int, str, int]:
    """Bytes below a folder that Ray would pack, as far as the time allows; the largest file, and its bytes."""
    until = time.monotonic() + seconds
    total, largest, most = 0, "", 0
    patterns = [*UNPACKED, *left_out]
    for at, folders, files in os.walk(folder):
        patterns += _patterns(Path(at))
        folders[:] = [name for name in folders if not _matches(Path(at, name), folder, patterns)]
        for name in files:
            path = Path(at, name)
            if not _matches(path, folder, patterns) and path.is_file():
                size = path.stat().st_size
                total += size
                if size > most:
                    largest, most = str(path.relative_to(folder)), size
        if time.monotonic() > until:
            break
    return total, largest, most


def _patterns(folder: Path) -> list[str]:
    """Lines of a folder's .gitignore and .rayignore; those that take something back (`!`) are not looked at."""
    found = []
    for name in (".gitignore", ".rayignore"):
        if (folder / name).is_file():
            found += (folder / name).read_text(errors="replace").splitlines()
    return [line.strip() for line in found if line.strip() and line[0] not in "#!"]


def _matches(path: Path, top: Path, patterns: Sequence[str]) -> bool:
    """Whether a pattern names a file or folder, by its name or by its path."""
    return any(
        fnmatch.fnmatch(path.name, pattern.strip("/"))
        or fnmatch.fnmatch(str(path.relative_to(top)), pattern.strip("/"))
        for pattern in patterns
    )

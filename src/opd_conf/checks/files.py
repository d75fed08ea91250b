"""What lies on disks. A file that cannot be seen from here (hdfs://, s3://) is left to verl."""

import os
from collections.abc import Iterator
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
    return "://" in file or Path(file).expanduser().is_file()


def _message(missing: list[str]) -> str:
    paths = ", ".join(missing)
    relative = any(not Path(file).expanduser().is_absolute() for file in missing)
    here = f" (looked for in {os.getcwd()})" if relative else ""
    literal = ". In single quotes the shell leaves $ as it is" if "$" in paths else ""
    return f"No such data: {paths}{here}{literal}."


def _fix(run: View, key: str, file: str) -> str:
    """The command that makes the file, where it is one of ours or of verl's examples; else the setting."""
    folder = Path(file).expanduser().parent
    assets = Path(str(run.setting("assets")))
    if folder.is_relative_to(assets):
        return "python -m opd_conf.cpu.sums" + ("" if folder == _default_sums() else f" {folder}")
    if folder.name in RECIPES:
        return f"python examples/data_preprocess/{folder.name}.py --local_save_dir {folder}   # in a checkout of verl"
    return f"{key}=FILE"


def _default_sums() -> Path:
    """Where `python -m opd_conf.cpu.sums` writes when it is told nothing (cpu/sums.py:default_folder)."""
    return Path(os.environ.get("OPD_ASSETS") or Path.home() / ".cache" / "opd_conf") / "sums"

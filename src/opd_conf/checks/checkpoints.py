"""What is kept of a run: whether, where, and whose it is."""

from collections.abc import Iterator
from pathlib import Path

from opd_conf.checks.data import train_rows
from opd_conf.checks.finding import Finding, warning
from opd_conf.view import View

FOLDER = "trainer.default_local_dir"

LONG = 100
"""Steps after which a run without checkpoints is hardly meant."""

OF_A_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")
"""Folders that each node has for itself."""

TRACKER = "latest_checkpointed_iteration.txt"
"""utils/checkpoint/checkpoint_manager.py:get_checkpoint_tracker_filename."""


def checkpoints_saved(run: View) -> Iterator[Finding]:
    """A long run saves checkpoints: with save_freq=-1, verl's default, it never does, nor at the last step.

    verl: trainer/ppo/v1/trainer_base.py:fit.
    """
    frequency = run.setting("trainer.save_freq")
    if isinstance(frequency, int) and frequency <= 0 and (length := _length(run)):
        yield warning(
            "trainer.save_freq",
            message=f"trainer.save_freq is {frequency}: nothing of {length} is saved, not even the last step.",
            fix="trainer.save_freq=200",
        )


def _length(run: View) -> str:
    """How long a long run is, in words; nothing for a short one."""
    steps, epochs = run.setting("trainer.total_training_steps"), run.setting("trainer.total_epochs")
    if not isinstance(steps, int) and isinstance(epochs, int):
        rows = train_rows(run)
        steps = None if rows is None else rows // run.train_batch * epochs
    if isinstance(steps, int):
        return f"{steps} steps" if steps > LONG else ""
    return f"{epochs} epochs" if isinstance(epochs, int) and epochs > 1 else ""


def checkpoints_shared(run: View) -> Iterator[Finding]:
    """With several nodes, the folders of the run and of its checkpoints are ones that all nodes share.

    Each rank writes its own part, a relative folder is taken from where the worker runs, and the process that looks for
    the latest checkpoint runs on any node.

    verl: utils/checkpoint/fsdp_checkpoint_manager.py:save_checkpoint, trainer/ppo/v1/trainer_base.py:_load_checkpoint.
    """
    nodes = max(run.cluster_nodes, run.student_nodes)
    if nodes < 2:
        return
    in_run_folder = _in_run_folder(run)
    key = "run_dir" if in_run_folder else FOLDER
    folder = Path(str(run.setting(key, "."))).expanduser()
    relative = not in_run_folder and not folder.is_absolute()
    local = next((top for top in OF_A_NODE if folder.absolute().is_relative_to(top)), None)
    if "://" not in str(folder) and (relative or local):
        why = "is relative" if relative else f"is below {local}"
        yield warning(
            key,
            message=f"{key}={folder} {why}: each of the {nodes} nodes would have a folder of its own, with its part of "
            "the files.",
            fix=f"{key}=FOLDER   # absolute, on a file system that all nodes share",
        )


def checkpoints_own(run: View) -> Iterator[Finding]:
    """A new run does not begin with another one's checkpoint, which verl looks for by itself.

    verl: trainer/ppo/v1/trainer_base.py:_load_checkpoint, with resume_mode=auto.
    """
    if _in_run_folder(run) or run.setting("launch.resume") or run.setting("trainer.resume_mode") != "auto":
        return
    folder = Path(str(run.setting(FOLDER, ".")))
    if latest := _latest(folder):
        yield warning(
            FOLDER,
            "trainer.resume_mode",
            message=f"{folder} holds the checkpoint {latest} of another run, and resume_mode=auto goes on from it. "
            f"Where that is meant: trainer.resume_mode=resume_path trainer.resume_from_path={folder}/{latest}.",
            fix=f"'{FOLDER}=${{run_dir}}/checkpoints'",
        )


def _in_run_folder(run: View) -> bool:
    """Whether checkpoints lie in the folder of the run, which is new and made absolute before verl sees it."""
    return "${run_dir}" in str(run.values.written(FOLDER))


def _latest(folder: Path) -> str | None:
    """The checkpoint that verl would find (utils/checkpoint/checkpoint_manager.py:find_latest_ckpt_path)."""
    try:
        step = (folder / TRACKER).read_text().strip()
    except OSError:
        return None
    name = f"global_step_{step}"
    return name if step.isdigit() and (folder / name).exists() else None

"""The trainer around the steps: logging, saving, resuming."""

import netrc
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlparse

from opd_conf.checks.finding import Finding, error, warning
from opd_conf.names import nearest
from opd_conf.reader import texts
from opd_conf.typed import argument
from opd_conf.view import ACTOR, ROLLOUT, View

LOGGER = "trainer.logger"
LOGGERS = (
    *("console", "file", "tensorboard", "wandb", "mlflow", "swanlab", "clearml", "trackio", "vemlp_wandb"),
    *("rl_insight", "tracking"),
)
"""utils/tracking.py:Tracking.supported_backend, and `tracking`, an old name of wandb."""


def loggers_known(run: View) -> Iterator[Finding]:
    """Every logger is one that verl has; it looks at them when all models are loaded.

    verl: utils/tracking.py:Tracking.__init__.
    """
    wanted = _loggers(run)
    if unknown := [name for name in wanted if name not in LOGGERS]:
        meant = dict.fromkeys(
            (nearest(name, LOGGERS) or ["console"])[0] if name in unknown else name for name in wanted
        )
        yield error(
            LOGGER,
            message=f"trainer.logger has {', '.join(unknown)}; verl has {', '.join(LOGGERS)}.",
            fix=argument(LOGGER, list(meant)),
        )


def wandb_key_there(run: View) -> Iterator[Finding]:
    """Weights & Biases has a key to log in with: without one it stops the run once all models are loaded.

    A plan made elsewhere than on the cluster cannot see its key: then its absence is a warning.

    verl: utils/tracking.py:Tracking.__init__, wandb.init.
    """
    if not {"wandb", "tracking"} & set(_loggers(run)) or run.variable("WANDB_API_KEY"):
        return
    if run.variable("WANDB_MODE") in ("offline", "disabled", "dryrun") or _in_netrc(run):
        return
    rest = [name for name in _loggers(run) if name not in ("wandb", "tracking")] or ["console"]
    say = error if run.action == "train" and run.cluster_nodes == 1 else warning
    yield say(
        LOGGER,
        message="trainer.logger has wandb, and there is no key for it: neither WANDB_API_KEY nor one in ~/.netrc.",
        fix=f"export WANDB_API_KEY=…   # or: {argument(LOGGER, rest)}",
    )


def _loggers(run: View) -> list[str]:
    return list(texts(run.setting(LOGGER)))


def _in_netrc(run: View) -> bool:
    """Whether `wandb login` was run here."""
    host = urlparse(run.variable("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    try:
        return netrc.netrc(run.variable("NETRC")).authenticators(host or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def updates_from_the_start(run: View) -> Iterator[Finding]:
    """The student is updated from the first step: critic_warmup holds it back, and there is no critic.

    verl: trainer/ppo/v1/trainer_base.py:_step_once.
    """
    steps = run.number("trainer.critic_warmup", 0)
    if steps > 1:
        yield warning(
            "trainer.critic_warmup",
            message=f"trainer.critic_warmup is {steps}: the student is not updated before step {steps}, and no "
            "critic is warmed up.",
            fix="trainer.critic_warmup=0",
        )


def saved_to_resume(run: View) -> Iterator[Finding]:
    """What is saved can be resumed: with async_save, verl leaves it to Megatron to say which step was the last.

    verl: trainer/ppo/v1/trainer_base.py:_save_checkpoint.
    """
    key = f"{ACTOR}.checkpoint.async_save"
    if run.setting(key) is True and run.engine != "megatron" and run.number("trainer.save_freq", -1) > 0:
        yield warning(
            key,
            "trainer.resume_mode",
            message="async_save is for Megatron: with this engine latest_checkpointed_iteration.txt is never written, "
            "and no run resumes by itself.",
            fix=f"{key}=false",
        )


RESUME, SAVED = "trainer.resume_from_path", "trainer.default_local_dir"


def resume_path(run: View) -> Iterator[Finding]:
    """resume_mode=resume_path has a folder global_step_N to go on from.

    verl: trainer/ppo/v1/trainer_base.py:_load_checkpoint, once all models are loaded.
    """
    if run.setting("trainer.resume_mode") != "resume_path":
        return
    path = run.setting(RESUME)
    if not isinstance(path, str) or not re.search(r"global_step_\d+$", path):
        shown = "not set" if path is None else path
        step = re.match(r".*global_step_\d+", str(path))
        yield error(
            RESUME,
            "trainer.resume_mode",
            message=f"{RESUME} is {shown}; to resume, verl needs the path of a folder global_step_N, without a slash "
            "at its end.",
            fix=f"{RESUME}={step[0] if step else 'FOLDER/global_step_N'}",
        )


def resumed_by_as_many(run: View) -> Iterator[Finding]:
    """A checkpoint, where it can be seen, is resumed by as many ranks as have written it.

    verl: utils/checkpoint/fsdp_checkpoint_manager.py:load_checkpoint reads a file of its own for each rank.
    """
    folder = _checkpoint(run)
    if folder is None or run.engine not in ("fsdp_config", "veomni"):
        return
    sizes = {
        found[1] for file in folder.glob("actor/model_*") if (found := re.match(r"model_world_size_(\d+)_", file.name))
    }
    if sizes and str(run.student_world) not in sizes:
        yield error(
            "trainer.nnodes",
            "trainer.n_gpus_per_node",
            "trainer.resume_mode",
            message=f"{folder} was written by {' and '.join(sorted(sizes))} ranks, and the student has "
            f"{run.student_world}: each looks for a file of its own.",
            fix="trainer.resume_mode=disable",
        )


def _checkpoint(run: View) -> Path | None:
    """The folder global_step_N that verl would go on from, as far as it can be seen."""
    mode = run.setting("trainer.resume_mode")
    if mode == "resume_path":
        return Path(str(run.setting(RESUME)))
    new = run.follows(SAVED) and run.setting("launch.resume") is not True  # in a run folder that is yet to be made
    if mode != "auto" or new:
        return None
    folder = Path(str(run.setting(SAVED)))
    try:
        return folder / f"global_step_{(folder / 'latest_checkpointed_iteration.txt').read_text().strip()}"
    except (OSError, ValueError):
        return None


def statistics_for_monitoring(run: View) -> Iterator[Finding]:
    """Servers that are monitored keep statistics.

    verl: workers/rollout/llm_server.py:LLMServerManager._initialize_llm_servers.
    """
    monitors = {
        f"{ROLLOUT}.prometheus.enable": run.setting(f"{ROLLOUT}.prometheus.enable") is True,
        "VERL_RL_INSIGHT_ENABLE": run.variable("VERL_RL_INSIGHT_ENABLE") == "1",
    }
    key = f"{ROLLOUT}.disable_log_stats"
    if any(monitors.values()) and run.setting(key) is True:
        on = " and ".join(name for name, is_on in monitors.items() if is_on)
        yield error(
            key,
            *(name for name, is_on in monitors.items() if is_on and "." in name),
            message=f"{on} asks the servers for statistics, and disable_log_stats is true: verl stops when the "
            "student's servers have started.",
            fix=f"{key}=false",
        )

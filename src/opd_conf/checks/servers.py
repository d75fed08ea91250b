"""What servers are handed beside the model: arguments, settings of pictures, new weights."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from opd_conf import models
from opd_conf.checks.finding import Finding, error, note, warning
from opd_conf.checks.models import parts
from opd_conf.checks.packages import installed, package_folder
from opd_conf.names import nearest
from opd_conf.typed import argument
from opd_conf.view import ROLLOUT, View


def teacher_code_trusted(run: View) -> Iterator[Finding]:
    """Teachers need no code of their own: verl hands their servers the path alone, and trust_remote_code stays false.

    verl: experimental/teacher_loop/teacher_model.py:TeacherModelManager._initialize_llm_servers.
    """
    transformers = package_folder("transformers")
    for part in parts(run):
        kind = str(part.config.get("model_type"))
        known = transformers and (transformers / "models" / kind).is_dir()
        if part.server.at != ROLLOUT and "auto_map" in part.config and not known:
            yield warning(
                part.key,
                message=f"{part.path} brings its own code (auto_map in config.json) for its type {kind}, and verl "
                "never lets a teacher's server trust it.",
                fix=f"{part.key}=MODEL   # one that transformers knows",
            )


def media_settings_served(run: View) -> Iterator[Finding]:
    """Settings of the processor of pictures go to servers that take them: SGLang's refuses every sample that has them.

    verl: workers/rollout/sglang_rollout/async_sglang_server.py:generate, workers/rollout/llm_server.py.
    """
    key = "data.mm_processor_kwargs"
    servers = [server.at for server in (run.rollout, *run.teachers) if server.backend == "sglang"]
    if isinstance(run.setting(key), dict) and run.setting(key) and servers:
        yield error(
            key,
            *(f"{at}.name" for at in servers),
            message=f"{key} is passed on with every sample, and SGLang takes none of it: samples would "
            "fail one by one.",
            fix=" ".join(f"leave out {key}.{name}" for name in dict(run.setting(key))),
        )


def weights_fit_bucket(run: View) -> Iterator[Finding]:
    """On NPUs the student's largest tensor fits the bucket in which weights go to the server.

    Needed where the driver cannot share a device's memory between processes, which cannot be seen from here.

    verl: workers/rollout/vllm_rollout/bucketed_weight_transfer.py:async_send_weights.
    """
    key = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
    facts = models.facts(run.student_path, run.variable) if run.student_path else None
    if run.platform != "npu" or run.rollout.backend != "vllm" or facts is None:
        return
    size = 2 if str(run.setting("actor_rollout_ref.actor.fsdp_config.model_dtype")) in ("bf16", "bfloat16") else 4
    needed, bucket = -(-size * facts.embedding // 2**20), run.number(key, 2048)
    if bucket < needed:
        yield note(
            key,
            message=f"The student's embedding takes {needed} MiB, and the bucket for new weights holds {bucket}: "
            "enough only where processes share a device's memory (Ascend HDK 25.3.RC1 and CANN 8.3.RC1, or newer).",
            fix=f"{key}={needed}",
        )


ARGUMENTS = {
    "vllm": ("engine/arg_utils.py", "entrypoints/openai/cli_args.py"),
    "sglang": ("srt/server_args.py",),
}
"""Where the servers' packages say which arguments they take."""


def server_argument_known(run: View) -> Iterator[Finding]:
    """Arguments that are passed on to a server are among those of the release that is installed here.

    verl: workers/rollout/vllm_rollout/vllm_async_server.py:launch_server, and its siblings.
    """
    for server in (run.rollout, *run.teachers):
        key = f"{server.at}.engine_kwargs.{server.backend}"
        given = run.setting(key, {})
        folder = package_folder(server.backend) if given and server.backend in ARGUMENTS else None
        known = _arguments(folder, server.backend) if folder and server.backend and isinstance(given, dict) else None
        for name in given if known else ():
            if known and name not in known:
                near = nearest(str(name), known, limit=1)
                say = error if run.action == "train" else warning
                yield say(
                    f"{key}.{name}",
                    message=f"{server.backend} {installed(server.backend or '') or ''} as it is installed here has no "
                    f"argument {name}: the server would stop as it starts."
                    + (f" Did you mean {near[0]}?" if near else ""),
                    fix=f"+{argument(f'{key}.{near[0]}', given[name])}" if near else f"leave out +{key}.{name}",
                )


@functools.cache
def _arguments(folder: Path, backend: str) -> frozenset[str] | None:
    """The arguments of an installed server, read from its source; None when it is not here."""
    texts = [file.read_text() for name in ARGUMENTS[backend] if (file := folder / name).is_file()]
    return frozenset(re.findall(r"^    (\w+)\s*:", "\n".join(texts), re.M)) if texts else None

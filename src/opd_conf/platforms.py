"""Which accelerator is here, and the environment block that a run gets on every node."""

import os
from pathlib import Path

from omegaconf import DictConfig

from opd_conf.errors import UserError

PLATFORM_VARIABLE = "OPD_PLATFORM"

# One node a device, made by the driver: seen without importing torch_npu or loading a CUDA library.
DEVICE_NODES = {"npu": "davinci[0-9]*", "gpu": "nvidia[0-9]*"}


def device_nodes(dev: Path = Path("/dev")) -> dict[str, list[str]]:
    """Device nodes by platform, only platforms that have any: `{"gpu": ["/dev/nvidia0", …]}`."""
    found = {platform: sorted(map(str, dev.glob(pattern))) for platform, pattern in DEVICE_NODES.items()}
    return {platform: nodes for platform, nodes in found.items() if nodes}


def detect(dev: Path = Path("/dev")) -> tuple[str, str]:
    """The platform of a command without `platform=`, and why: from OPD_PLATFORM, else from the device nodes.

    Raises UserError when there are nodes of no kind or of several.
    """
    if chosen := os.environ.get(PLATFORM_VARIABLE):
        return chosen, f"{PLATFORM_VARIABLE} is set"
    found = device_nodes(dev)
    if len(found) == 1:
        platform, nodes = next(iter(found.items()))
        return platform, f"found {nodes[0]}" + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")
    seen = "; ".join(f"{', '.join(nodes)} ({platform})" for platform, nodes in found.items())
    raise UserError(
        (
            f"Accelerators of two kinds are here: {seen}."
            if found
            else f"No accelerator here: no {dev}/davinci*, no {dev}/nvidia*."
        )
        + "\nSay which platform: platform=gpu, platform=npu, or platform=cpu (tiny models; try experiment=smoke)."
        + f"\n{PLATFORM_VARIABLE}=… says it for every command of a shell."
    )


def require_device(platform: str, dev: Path = Path("/dev")) -> None:
    """Raises UserError when a run would start here and its platform's devices are not here."""
    if platform in DEVICE_NODES and platform not in device_nodes(dev):
        raise UserError(
            f"platform={platform} cannot train here: there is no {dev}/{DEVICE_NODES[platform]}.\n"
            "action=check, dry_run and script work without the device; platform=cpu trains tiny models."
        )


def environment(config: DictConfig) -> dict[str, str]:
    """The block `platform.env` as strings, without the names that are null (docs/environment.md has the order)."""
    return {str(name): as_text(value) for name, value in config.platform.env.items() if value is not None}


def as_text(value: object) -> str:
    """A value of the command line as an environment variable's: what was typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)

"""Entry point `verl.plugins`: turns verl's processes into CPU processes when VERL_PLATFORM=cpu, else does nothing.

verl loads entry points at the end of its own import (verl/__init__.py), in each process of the environment: driver,
Ray workers, vLLM's engine. It loads but does not call them, so importing this module is what registers.
"""

import logging
import os


def register() -> None:
    """Give verl the platform `cpu`, and patch the modules that a CPU needs patched as they are imported.

    Calling it again changes nothing. Without VERL_PLATFORM=cpu nothing is imported: GPU and NPU runs of the same
    environment load this too.
    """
    if os.environ.get("VERL_PLATFORM", "").strip().lower() != "cpu":
        return
    try:
        from opd_conf.cpu.patches import install
        from opd_conf.cpu.platform import register_platform

        register_platform()
        install()
    except Exception:  # verl drops it, and complains later that it knows no platform "cpu"
        logging.getLogger(__name__).exception("verl's platform `cpu` could not be registered")
        raise


register()

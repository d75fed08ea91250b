"""How much memory a run takes, by phase and by part, before anything starts.

`inputs` reads what it is made from, `hardware` what there is; `formulas` have every coefficient with its source,
`levers` say what would take less, `display` shows it. Sizes are bytes of one device (of one node for host RAM).
"""

from opd_conf.memory.display import gib, table
from opd_conf.memory.formulas import HOST, PARTS, Estimate, Part, Phase, estimated, phases
from opd_conf.memory.hardware import GIB, Room
from opd_conf.memory.inputs import BLOCKS, Served, Settings, Student, settings, unknown
from opd_conf.memory.levers import Lever, relief, typed
from opd_conf.view import View

__all__ = [
    "BLOCKS",
    "GIB",
    "HOST",
    "PARTS",
    "Estimate",
    "Lever",
    "Part",
    "Phase",
    "Room",
    "Served",
    "Settings",
    "Student",
    "estimate",
    "estimated",
    "gib",
    "phases",
    "relief",
    "settings",
    "table",
    "typed",
    "unknown",
]


def estimate(run: View) -> Estimate | None:
    """The estimate for a run; None when a model's facts are unknown, or its engine is one without formulas."""
    given = settings(run)
    return None if given is None else estimated(given)

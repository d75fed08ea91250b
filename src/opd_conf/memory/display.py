"""The estimate for people."""

from typing import TYPE_CHECKING

from opd_conf.memory.formulas import PARTS, Estimate, Phase
from opd_conf.memory.hardware import GIB

if TYPE_CHECKING:
    from rich.table import Table


def gib(size: float) -> str:
    """Bytes as GiB."""
    return f"{size / GIB:.1f}"


def table(found: Estimate) -> "Table":
    """Parts down, phases across, in GiB, `+` before what is uncertain; last what there is, and who says so."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(
        title="Memory in GiB at the peak of each phase; + uncertain",
        caption=_sources(found),
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
    )
    made.add_column("", no_wrap=True)
    peaks = [peak for _, peak in found.peaks()]
    for peak in peaks:
        made.add_column(f"{peak.name}\n({peak.moment})" if peak.moment else peak.name, justify="right")
    for name in PARTS:
        made.add_row(name, *(_cell(peak, name) for peak in peaks))
    made.add_section()
    made.add_row("sum", *(_numbers(peak.size, peak.upper - peak.size) for peak in peaks))
    rooms = [found.room(peak.name) for peak in peaks]
    if any(rooms):
        made.add_row("there is", *(gib(room.size) if room else "" for room in rooms))
    return made


def _sources(found: Estimate) -> str:
    rooms = {"of a device": found.given.device, "of a node": found.given.host}
    return "; ".join(f"{gib(room.size)} {what}: {room.source}" for what, room in rooms.items() if room)


def _cell(phase: Phase, name: str) -> str:
    part = phase.part(name)
    return _numbers(part.size, part.uncertain) if part.size or part.uncertain else ""


def _numbers(size: float, uncertain: float) -> str:
    return gib(size) + (f" +{gib(uncertain)}" if uncertain >= 0.05 * GIB else "")

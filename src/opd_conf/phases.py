"""Where a start-up stands, read from train.log as verl 0.9.1 writes it (verl/trainer/ppo/v1/trainer_base.py)."""

import re
from collections.abc import Iterator

# Each phase ends with the first line that matches; the teacher's ends when the student's first server shows up.
ENDS: tuple[tuple[str, str], ...] = (
    ("verl", r"All configuration checks passed"),
    ("Ray", r"Started a local Ray instance|Connected to Ray cluster"),
    ("task runner", r"Using dataset class"),
    ("data", r"Total training steps: \d+"),
    ("student", r"actor and ref model engine initialized"),
    ("reward", r"reward loop manager initialized"),
    ("teacher", r""),
    ("rollout", r"checkpoint engine manager initialized"),
    ("weights", r"Creating file logger|step:0 -|step:1 -"),
    ("first step", r"step:1 -"),
)

_SERVER = re.compile(r"\((\w*HttpServer) (pid=\d+[^)]*)\)")
_TOTAL = re.compile(r"Total training steps: (\d+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class StartUp:
    """Follows the phases; `total_steps` is known from the end of `data` on."""

    def __init__(self, teacher_servers: int) -> None:
        self.teacher_servers = teacher_servers
        self.total_steps: int | None = None
        self._next = 0
        self._servers: set[str] = set()

    @property
    def current(self) -> str | None:
        """The phase under way; None after the last."""
        return ENDS[self._next][0] if self._next < len(ENDS) else None

    def ended_by(self, line: str) -> Iterator[str]:
        """Names of the phases that this line ends, in order (a later mark ends the earlier phases too)."""
        line = _COLOUR.sub("", line)
        if total := _TOTAL.search(line):
            self.total_steps = int(total.group(1))
        if server := _SERVER.search(line):
            self._servers.add(server.group(2))
        reached = max((n for n in range(self._next, len(ENDS)) if self._ends(n, line)), default=None)
        while reached is not None and self._next <= reached:
            yield ENDS[self._next][0]
            self._next += 1

    def _ends(self, number: int, line: str) -> bool:
        name, mark = ENDS[number]
        if name == "teacher":
            return self._next == number and len(self._servers) > self.teacher_servers
        return re.search(mark, line) is not None

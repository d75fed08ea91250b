"""The phases of a start-up, from lines that a real run on a CPU printed (shortened)."""

from pathlib import Path

from opd_conf.phases import ENDS, StartUp

LINES = (Path(__file__).parent / "data" / "start_up.log").read_text().splitlines()


def test_each_phase_ends_once_in_order():
    start = StartUp(teacher_servers=1)
    ended = [name for line in LINES for name in start.ended_by(line)]
    assert ended == [name for name, _ in ENDS]
    assert start.current is None
    assert start.total_steps == 3


def test_the_teacher_ends_with_the_students_first_server():
    start = StartUp(teacher_servers=1)
    servers = [line for line in LINES if "HttpServer" in line]
    before = LINES[: LINES.index(servers[0])]
    for line in before:
        list(start.ended_by(line))
    assert start.current == "teacher"
    assert list(start.ended_by(servers[0])) == []
    assert list(start.ended_by(servers[0].replace("pid=", "pid=9"))) == ["teacher"]


def test_two_teacher_servers_are_waited_for():
    start = StartUp(teacher_servers=2)
    for line in LINES[: next(n for n, line in enumerate(LINES) if "HttpServer" in line)]:
        list(start.ended_by(line))
    assert [list(start.ended_by(f"(vLLMHttpServer pid={n}) x")) for n in (1, 2, 1, 3)] == [[], [], [], ["teacher"]]


def test_a_later_mark_ends_what_went_unseen():
    start = StartUp(teacher_servers=1)
    assert list(start.ended_by("Connected to Ray cluster")) == ["verl", "Ray"]
    assert list(start.ended_by("(TaskRunnerV1 pid=1) step:1 - loss:0.1"))[-1] == "first step"

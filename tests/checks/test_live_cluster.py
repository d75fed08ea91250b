"""Rules about a Ray cluster that runs: two nodes of a real one with made-up GPUs, and documents of others."""

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.util.placement_group import placement_group, remove_placement_group

from opd_conf import live
from opd_conf.checks import RULES, cluster, placement
from opd_conf.live import Cluster, Facts, LiveNode, Silence

GPU = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "cluster=2x8")
ADDRESS = "ray_kwargs.ray_init.address"
OF_CLUSTER = [rule for rule in RULES.values() if rule.__module__ == cluster.__name__]


def sizes(student: tuple[int, int], teacher: tuple[int, int]) -> dict[str, int]:
    return dict(zip(placement.KEYS, (*student, *teacher), strict=True))


# A real cluster


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    """The address of a cluster of `a` (8 GPUs, 64 CPUs) and `b` (8 GPUs, 24 CPUs), with this process as a driver."""
    head = {"num_cpus": 64, "num_gpus": 8, "node_name": "a", "resources": {"at_a": 1000}, "include_dashboard": False}
    nodes = RayCluster(initialize_head=True, head_node_args=head)
    try:
        nodes.add_node(num_cpus=24, num_gpus=8, node_name="b", resources={"at_b": 1000})
        nodes.wait_for_nodes()
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        yield nodes.address
    finally:
        ray.shutdown()
        nodes.shutdown()


@contextmanager
def held(node: str, gpus: int, cpus: int) -> Iterator[None]:
    """Resources of a node taken by somebody else."""
    wanted = {"GPU": gpus, "CPU": cpus, f"at_{node}": 1}
    group = placement_group([{name: amount for name, amount in wanted.items() if amount}])
    assert group.wait(20)
    yield
    remove_placement_group(group)
    _until_free(f"at_{node}")


def _until_free(resource: str, amount: float = 1000) -> None:
    deadline = time.monotonic() + 20
    while ray.available_resources().get(resource, 0) < amount:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def placed_by_ray(gpus: int, *pools: tuple[str, int, int]) -> str | None:
    """The pool that waits in vain when groups are made as verl makes them, while so many GPUs are free."""
    groups = []
    try:
        for pool, entries, size in pools:
            mine = [placement_group([{"CPU": 3, "GPU": 1}] * size, strategy="STRICT_PACK") for _ in range(entries)]
            groups += mine
            if not all(group.wait(1.5) for group in mine):
                return pool
        return None
    finally:
        for group in groups:
            remove_placement_group(group)
        _until_free("GPU", gpus)


@pytest.mark.parametrize(
    ("student", "teacher", "taken", "pool"),
    [
        ((1, 8), (1, 6), {}, None),
        ((1, 8), (2, 3), {}, None),
        ((2, 4), (1, 8), {}, "teacher"),
        ((2, 4), (2, 2), {}, None),
        ((1, 4), (2, 8), {}, "teacher"),
        ((1, 16), (1, 1), {}, "student"),
        ((1, 8), (1, 8), {}, "teacher"),
        ((2, 8), (1, 1), {}, "student"),
        ((1, 4), (1, 4), {"a": (4, 20)}, None),
        ((1, 8), (1, 4), {"a": (1, 0)}, "student"),
        ((4, 2), (1, 6), {}, "teacher"),
        ((3, 3), (1, 4), {}, "teacher"),
    ],
)
def test_ray_places_as_computed(two_nodes, view_of, student, teacher, taken, pool):
    """Both ways, with five and four CPUs for TransferQueue's actors."""
    run = view_of(sizes(student, teacher), GPU)
    there = {"a": (8, 64), "b": (8, 24)}
    left = {
        name: [all_ - gone for all_, gone in zip(there[name], taken.get(name, (0, 0)), strict=True)] for name in there
    }
    computed = placement.misfit(run, [placement.Node(name, *rest) for name, rest in left.items()])
    assert (computed and computed.pool) == pool
    gone = {name: taken.get(name, (0, 0)) for name in there}
    with held("a", gone["a"][0], gone["a"][1] + 5), held("b", gone["b"][0], gone["b"][1] + 4):
        assert placed_by_ray(16 - gone["a"][0], ("student", *student), ("teacher", *teacher)) == pool


def found(view_of, address: str, settings: dict[str, object], *rules: object) -> list[tuple[str, str, str]]:
    run = view_of({ADDRESS: address, **settings}, GPU)
    return [(say.severity, say.message, say.fix) for rule in rules for say in rule(run)]


def test_a_cluster_that_has_room(two_nodes, view_of, capsys):
    run = view_of({ADDRESS: two_nodes, **sizes((1, 8), (1, 6))}, GPU)
    assert [finding for rule in OF_CLUSTER for finding in rule(run)] == []
    answer = cluster._answer(run)
    assert isinstance(answer, Cluster)
    assert {node.name: (node.total["GPU"], node.free["CPU"]) for node in answer.nodes} == {"a": (8, 64), "b": (8, 24)}
    assert [node.facts for node in answer.nodes] == [answer.here] * 2
    assert answer.here.python == ".".join(map(str, sys.version_info[:3]))
    assert answer.here.versions["ray"] == ray.__version__
    assert answer.here.memory_gib > 1


def test_what_a_node_lacks_or_others_hold(two_nodes, view_of):
    """CPUs of `b`; then GPUs of `a`, which somebody holds, with the actor of another run."""
    [(severity, message, fix)] = found(view_of, two_nodes, sizes((1, 8), (1, 8)), cluster.pools_fit_live_nodes)
    assert severity == "error"
    assert "the teacher needs 8 accelerators of one node and 3 CPUs for each" in message
    assert "node b: 8 accelerators, 20 of 24 CPUs" in message or "node b: 8 accelerators, 19 of 24 CPUs" in message
    assert fix.startswith("ray start --num-cpus=29 ")

    @ray.remote(num_cpus=0)
    class Controller:
        def ready(self) -> bool:
            return True

    queue = Controller.options(name="TransferQueueController", namespace="transfer_queue").remote()
    assert ray.get(queue.ready.remote())
    with held("a", 4, 0):
        rules = (cluster.pools_fit_live_nodes, cluster.one_run_per_cluster)
        pools, other = found(view_of, two_nodes, {"action": "train", **sizes((1, 8), (1, 6))}, *rules)
    ray.kill(queue)
    assert (pools[0], other[0]) == ("error", "error")
    assert "Others hold a part; free are, on node a: 4 of 8 GPU and 64 of 64 CPUs." in pools[1]
    assert "Another run is in the Ray cluster" in other[1]


# Answers of other clusters

FACTS = Facts("3.11.7", {"ray": "2.60.0", "verl": "0.9.1", "torch": "2.11.0"}, (), 2000.0, (), None)
NODES = tuple(
    LiveNode(name, {"GPU": 8.0, "CPU": 64.0}, {"GPU": 8.0, "CPU": 64.0}, FACTS) for name in ("10.0.0.1", "10.0.0.2")
)


@pytest.fixture
def cluster_says(view_of, monkeypatch):
    """What a rule of cluster.py finds when the cluster at the address answers so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def say(rule, answer, settings=(), groups=GPU):
            monkeypatch.setattr(live, "ask", lambda *_: answer)
            return list(rule(view_of({ADDRESS: address, **dict(settings)}, groups)))

        yield say


def answer(nodes=NODES, queue=False) -> Cluster:
    return Cluster("10.0.0.1:6379", tuple(nodes), queue, FACTS)


def with_facts(**changed) -> Cluster:
    return answer((NODES[0], replace(NODES[1], facts=replace(FACTS, **changed))))


def test_everything_in_order(cluster_says):
    for rule in OF_CLUSTER:
        assert cluster_says(rule, answer()) == []


def test_other_versions_of_ray_or_python(cluster_says):
    silence = Silence("10.0.0.1:6379", "version", "", (("2.60.0", "3.10.12"), ("2.60.0", "3.10.13")))
    [finding] = cluster_says(cluster.cluster_answers, silence)
    assert finding.severity == "error"
    assert "runs Ray 2.60.0 and Python 3.10.12, here are Ray 2.60.0 and Python 3.10.13" in finding.message
    assert finding.fix == "uv venv --python 3.10.12   # as on the cluster"


@pytest.mark.parametrize(
    ("problem", "message", "severity"),
    [
        ("refused", "lets nobody in from here: no such node", "error"),
        ("late", "are not looked into: no such node", "note"),
        ("no_ray", "are not looked into: Ray is not installed here", "note"),
    ],
)
def test_a_cluster_that_tells_nothing(cluster_says, problem, message, severity):
    silence = Silence("10.0.0.1:6379", problem, "Traceback\nno such node")
    silence = replace(silence, message="no such node") if problem == "late" else silence
    [finding] = cluster_says(cluster.cluster_answers, silence, {"action": "train"})
    assert (finding.severity, message in finding.message) == (severity, True)


@pytest.mark.parametrize(("action", "severity"), [("train", "error"), ("check", "note"), ("dry_run", "note")])
def test_no_cluster_at_the_address(view_of, action, severity):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings = {ADDRESS: f"127.0.0.1:{port}", "action": action}
    [finding] = cluster.cluster_answers(view_of(settings, GPU))
    assert (finding.severity, finding.fix.startswith("ray start --head")) == (severity, True)
    assert f"No Ray cluster answers at 127.0.0.1:{port}" in finding.message
    [finding] = cluster.cluster_answers(view_of(settings, (*GPU[:3], "cluster=1x8")))
    assert finding.fix == f"{ADDRESS}=local"


def test_scripts_and_a_ray_of_our_own_ask_nobody(view_of, monkeypatch):
    monkeypatch.setattr(live, "reachable", lambda *_: pytest.fail("asked"))
    assert list(cluster.cluster_answers(view_of({"action": "script"}, GPU))) == []
    assert list(cluster.cluster_answers(view_of({ADDRESS: "local", "action": "train"}, GPU))) == []


def test_a_dry_run_asks_no_node(cluster_says):
    wrong = answer((replace(NODES[0], free={}, total={}),))
    assert cluster_says(cluster.pools_fit_live_nodes, wrong, {"action": "dry_run"}) == []
    assert len(cluster_says(cluster.pools_fit_live_nodes, wrong)) == 1


def test_sizes_of_a_cluster_are_its_own(one, quiet):
    settings = {"ray_kwargs.ray_init.num_cpus": 64, "ray_kwargs.ray_init.num_gpus": 8}
    severity, message, fix = one(cluster.cluster_keeps_its_sizes, settings, GPU)
    assert (severity, "refuses num_cpus, num_gpus" in message) == ("error", True)
    assert fix == "ray_kwargs.ray_init.num_cpus=null ray_kwargs.ray_init.num_gpus=null"
    quiet("cluster_keeps_its_sizes", "ray_kwargs.ray_init.num_cpus=64")


def test_nodes_of_another_platform(cluster_says):
    npus = answer([replace(node, total={"NPU": 16.0, "CPU": 64.0}) for node in NODES])
    [finding] = cluster_says(cluster.cluster_has_platform, npus)
    assert (finding.fix, "offer NPU and no GPU" in finding.message) == ("platform=npu", True)
    assert cluster_says(cluster.pools_fit_live_nodes, npus) == []


def test_accelerators_held_now_may_be_free_later(cluster_says):
    busy = answer((replace(NODES[0], free={"GPU": 0.0, "CPU": 40.0}), NODES[1]))
    [finding] = cluster_says(cluster.pools_fit_live_nodes, busy, {"action": "check"})
    assert (finding.severity, finding.fix.startswith("ray status")) == ("warning", True)
    assert "free are, on node 10.0.0.1: 0 of 8 GPU and 40 of 64 CPUs" in finding.message


def test_a_head_without_cpus(cluster_says):
    """A common way to keep work off the head; TransferQueue's storage is dealt out to it all the same."""
    head = replace(NODES[0], name="head", total={"CPU": 0.0}, free={})
    [finding] = cluster_says(cluster.pools_fit_live_nodes, answer((head, *NODES)))
    assert "no CPU is left on node head for TransferQueue" in finding.message


def test_another_run_in_the_cluster(cluster_says):
    [finding] = cluster_says(cluster.one_run_per_cluster, answer(queue=True), {"action": "check"})
    assert finding.severity == "warning"


def test_a_node_that_does_not_answer(cluster_says):
    [finding] = cluster_says(cluster.nodes_answer, answer((NODES[0], replace(NODES[1], facts=None))))
    assert "from 10.0.0.2" in finding.message


def test_nodes_with_other_packages(cluster_says):
    older = with_facts(versions={**FACTS.versions, "torch": "2.10.0", "verl": None})
    verl, torch = cluster_says(cluster.nodes_alike, older, {"action": "train"})
    assert (verl.severity, torch.severity) == ("error", "warning")
    assert verl.message == "verl is not installed on 10.0.0.2, here 0.9.1."
    assert torch.fix == "pip install torch==2.11.0   # on 10.0.0.2"
    own = {"ray_kwargs.ray_init.runtime_env.py_executable": "uv run"}
    assert cluster_says(cluster.nodes_alike, older, own) == []  # workers have another Python than ray start


def test_nodes_without_bytecode(cluster_says):
    [finding] = cluster_says(cluster.bytecode_on_nodes, with_facts(uncompiled=("/opt/verl",)))
    assert finding.fix == "python -m compileall -q /opt/verl   # on 10.0.0.2"


def test_npus_that_tell_no_version(cluster_says):
    npu = ("platform=npu", *GPU[1:])
    [finding] = cluster_says(cluster.npus_readable_on_nodes, with_facts(npu="npu-smi is broken"), (), npu)
    assert finding.message == "verl stops on 10.0.0.2: npu-smi is broken."
    assert cluster_says(cluster.npus_readable_on_nodes, with_facts(npu=""), (), npu) == []


def test_devices_and_nodes_smaller_than_said(cluster_says):
    said = {"platform.device_memory_gib": 80, "cluster.host_memory_gib": 1000}
    device, host = cluster_says(cluster.nodes_have_memory, with_facts(devices_gib=(79.6, 39.6), memory_gib=500.0), said)
    assert (device.fix, host.fix) == ("platform.device_memory_gib=39.6", "cluster.host_memory_gib=500")
    assert cluster_says(cluster.nodes_have_memory, with_facts(devices_gib=(79.6,)), said) == []


# Asking


def test_an_answer_that_does_not_come(capsys, monkeypatch):
    monkeypatch.setattr(live, "QUIET", 0.1)
    slow = [sys.executable, "-c", "import time; time.sleep(60)"]
    silence = live.ask("10.0.0.1:6379", slow, {}, patience=0.3)
    assert (silence.problem, silence.message) == ("late", "no answer within 0.3 s")
    assert capsys.readouterr().err == "asking the nodes of the Ray cluster at 10.0.0.1:6379 …\n"


def test_a_python_that_says_nothing():
    silence = live.ask("10.0.0.1:6379", [sys.executable, "-c", "raise SystemExit(3)"], {})
    assert (silence.problem, silence.message.endswith("ended with exit code 3")) == ("refused", True)


def test_a_document_with_a_problem():
    document = json.loads(
        '{"problem": "version", "message": "x", "versions": {"cluster": ["1", "2"], "here": ["3", "4"]}}'
    )
    assert live.read(document, "h:1") == Silence("h:1", "version", "x", (("1", "2"), ("3", "4")))

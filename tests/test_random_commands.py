"""Random command lines, valid and broken, through the command's entry: exit code 0 or 2, never a traceback.

A command is made from its number alone, so a failure can be repeated: `-k 'command[17]'`. The first ones run always,
more of them with OPD_RANDOM_COMMANDS=2000.
"""

import os
import random
import shlex
import string
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opd_conf import verl_tree
from opd_conf.app import command
from opd_conf.compose import conf_folder

COMMANDS = int(os.environ.get("OPD_RANDOM_COMMANDS", "300"))

GROUPS = {
    folder.name: sorted(path.stem for path in folder.glob("[!_]*.yaml"))
    for folder in sorted(conf_folder().iterdir())
    if folder.is_dir() and folder.name != "local"
}

RUNS = (
    ["platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b"],
    ["platform=npu", "student=qwen3_5_4b", "teacher=qwen3_5_35b_a3b", "engine=veomni"],
    ["platform=gpu", "student=qwen2_5_0_5b", "teacher=qwen2_5_3b_instruct", "data=gsm8k", "loss_mode=forward_kl_topk"],
    ["experiment=smoke"],
    ["platform=cpu", "student=tiny", "teacher=tiny", "data=tiny", "cluster=cpu"],
    ["platform=npu", "experiment=qwen3_5_2b_geo3k"],
    ["platform=gpu", "engine=veomni", "rollout=sglang", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "cluster=2x8"],
    ["platform=gpu", "~teacher", "+teacher@distillation.teacher_models.a=qwen3_5_35b_a3b", "student=qwen3_5_2b"],
    ["platform=gpu"],
    [],
)

OURS = {
    "action": "check",
    "run_dir": "run",
    "topk": 64,
    "assets": "assets",
    "checks": {"ignore": [], "report": "text"},
    "launch": {"verl_root": None, "any_verl_version": False, "runner": "auto", "resume": False, "try_next": []},
    "cluster": {"nodes": 1, "accelerators_per_node": 8},
    "platform": {
        "name": "gpu",
        "torch_compile": True,
        "attention": "flash_attention_2",
        "device_memory_gib": 80,
        "mixed_precision": None,
        "env": {"VERL_PLATFORM": "nvidia", "HF_HOME": None, "NCCL_DEBUG": "INFO"},
    },
    "hydra": {"run": {"dir": "."}, "sweep": {"dir": "sweep"}, "job": {"chdir": False}, "verbose": False},
}


def _keys(block: dict, at: str = "") -> dict[str, object]:
    """All keys of a block, dotted, with their values."""
    found: dict[str, object] = {}
    for name, value in block.items():
        found[f"{at}{name}"] = value
        if isinstance(value, dict):
            found |= _keys(value, f"{at}{name}.")
    return found


KEYS = _keys(OURS) | _keys(verl_tree.read("ppo_trainer")) | _keys(verl_tree.read("ppo_veomni_trainer"))
COUNTED = [
    key for key in KEYS if key.endswith(("nodes", "_per_node", "_size", "_length", "_len", "_gpu", ".n", "topk"))
]
COMMON = [key for key in KEYS if key.startswith(("trainer.", "distillation", "data.", "actor_rollout_ref.", *OURS))]

ODD = (
    *("", "null", "None", "~", "off", "yes", "true", "maybe", "nan", "inf", "-inf", "???", "''", '""', "' '"),
    *("0", "-1", "1", "3", "7", "64.0", "1e-6x", "1e400", "0x10", "1_000", "1.5", "-0.0", "9" * 30, "1e30", str(2**63)),
    *(
        "[]",
        "[1",
        "1]",
        "[1,2]",
        "[null]",
        "[[1],[2]]",
        "[console,file]",
        "{}",
        "{a:1}",
        "{a:",
        "{a:{b:[c]}}",
        "[{a:1}]",
    ),
    *("a b", "a=b", "a,b", "run#3", "#", "(", "f(x)", ")", "$", "$HOME", "it's", '"half', "'half", "\\", "a\\", "a:b"),
    *(
        "实验",
        "é",
        "\N{PILE OF POO}",
        "\n",
        "a\nb",
        "\t",
        "%s",
        "{0}",
        "[/red]",
        "[bold]x",
        "<x>",
        "`x`",
        "!",
        "&",
        "|",
    ),
    *("${", "${}", "${x", "${nowhere}", "${nowhere.at.all}", "${oc.env:NOT_SET}", "${oc.env:HOME}", "${oc.env}"),
    *("${now:%Y}", "${add:1}", "${add:1,x}", "${no_resolver:1}", "${trainer.nnodes}", "${trainer}", "${data.}", "${.}"),
    *("${.nnodes}", "${..name}", "${oc.select:nowhere,3}", "${oc.decode:'['}", "${topk}", "${run_dir}", "\\${topk}"),
    *(
        "range(1,4)",
        "choice(1,2)",
        "interval(0,1)",
        "glob(*)",
        "1,2,3",
        "sort(3,1)",
        "shuffle(1,2)",
        "int(x)",
        "int(3.5)",
    ),
    *("/", "/nowhere/at/all", "~/x.parquet", "-", "--", "@", "a@b", ":", "=", "==", "a" * 300, "../..", "/dev/null"),
)

LISTS = {
    "rules": [
        "checks.ignore=[data_files]",
        "checks.ignore=[nope]",
        "checks.ignore=data_files",
        "checks.ignore=[1,null]",
    ],
    "deleted": [
        *("~trainer.nnodes", "~distillation", "~data", "~platform", "~trainer", "~actor_rollout_ref", "~cluster"),
        *("~action", "~run_dir", "~checks", "~launch", "~topk", "~student", "~teacher", "~engine", "~loss_mode"),
        *("~rollout", "~experiment", "~platform.env", "~platform.name", "~checks.ignore", "~checks.report"),
        *("~distillation.teacher_models", "~distillation.teacher_models.teacher_model", "~hydra", "~hydra.run"),
        *("~actor_rollout_ref.actor", "~actor_rollout_ref.rollout.n", "~algorithm", "~ray_kwargs", "~reward", "~"),
        *("~ray_kwargs.ray_init", "~actor_rollout_ref.actor.fsdp_config", "~data.train_files", "~trainer.nnodes=2"),
        *("~launch.runner", "~launch.any_verl_version", "~hydra.sweep", "~distillation.distillation_loss", "~critic"),
    ],
    "blocks": [
        *("data=5", "actor_rollout_ref.actor=null", "distillation=null", "trainer={}", "platform=null", "cluster=[1]"),
        *("platform.env=null", "platform.env=[]", "platform.env=5", "platform.env={A:b}", "checks=null", "launch=3"),
        *("distillation.teacher_models=null", "distillation.teacher_models={}", "distillation.teacher_models=[a]"),
        *("distillation.teacher_models.teacher_model=null", "distillation.teacher_models.teacher_model=x"),
        *("actor_rollout_ref=1", "actor_rollout_ref.rollout=[]", "ray_kwargs=null", "ray_kwargs.ray_init=x", "hydra=1"),
        *("hydra.run=null", "checks.ignore=null", "checks.ignore={a:1}", "distillation.distillation_loss=k1"),
        *("actor_rollout_ref.model=Qwen/Qwen3-8B", "teacher={a:1}", "student=[qwen3_5_2b]", "teacher=[a,b]"),
        *("+platform={name:gpu}", "++data={}", "+data.x.y.z=1", "+actor_rollout_ref.actor.optim.lr.x=1", "optim=null"),
    ],
    "flags": [
        *("-m", "--multirun", "--cfg=job", "--cfg", "--foo", "-x", "--resolve", "--info", "--package=data", "--run"),
        *("--config-dir=/nowhere", "--config-dir=.", "--config-name=x", "--config-path=/nowhere", "--version", "-h"),
        *("--hydra-help", "--info=all", "--info=defaults", "--shell-completion", "-sc", "--experimental-rerun=x", "-p"),
        *("--", "-", "---", "--cfg=nope", "-c", "--config-dir"),
    ],
    "launch": [
        *(
            "launch.runner=uv",
            "launch.runner=python",
            "launch.runner=slurm",
            "launch.runner=null",
            "launch.resume=maybe",
        ),
        *("launch.verl_root=/nowhere", "launch.verl_root=.", "launch.verl_root=", "launch.verl_root=[a]"),
        *("launch.any_verl_version=1", "launch.try_next=x", "launch.try_next=null", "launch.resume=true"),
    ],
    "reports": ["checks.report=json", "checks.report=yaml", "checks.report=null", "checks.report=[json]"],
    "folders": [
        *("run_dir=/nowhere/x", "run_dir=", "run_dir=null", "run_dir=.", "run_dir=a b", "run_dir='x;y'", "run_dir=[a]"),
        *("run_dir=/dev/null", "run_dir=/dev/null/x", "run_dir=5", "run_dir=${run_dir}", "run_dir=${nowhere}"),
        *("hydra.run.dir=x", "hydra.output_subdir=x", "hydra.sweep.dir=s", "hydra.job.chdir=true", "assets=null"),
    ],
    "places": [
        *("student@x=qwen3_5_2b", "+student@x=qwen3_5_2b", "+teacher@distillation.teacher_models.a=qwen3_5_35b_a3b"),
        *("+teacher@distillation.teacher_models.a=nope", "+teacher@=x", "@=x", "+=", "=", "=x", "++", "+", "a", "a:b"),
        *("hydra/launcher=submitit_slurm", "hydra/launcher=nope", "hydra/job_logging=default", "+experiment=smoke"),
        *("+local=x", "local=x", "verl=ppo_trainer", "+verl@x=ppo_trainer", "engine/x=y", "+engine@data=fsdp2", "a.b"),
        *(
            ".=1",
            "..=1",
            ".a=1",
            "a.=1",
            "a..b=1",
            "trainer..nnodes=1",
            "trainer.nnodes.=1",
            "0=1",
            "a-b=1",
            "a b=1",
            "",
        ),
        *(
            "trainer.logger.0=x",
            "trainer.logger[0]=x",
            "trainer[nnodes]=2",
            "data.train_files.0=x",
            "trainer.logger.x=1",
        ),
        *("HF_TOKEN=x", "platform.env.HF_TOKEN=x", "+platform.env.HF_TOKEN={a:1}", "platform.env={HF_TOKEN:x}"),
        *(
            "platform.env.A=[1]",
            "+platform.env.A={b:c}",
            "+platform.env.1=2",
            "+platform.env.A-B=x",
            "+platform.env.A=",
        ),
    ],
    "lengths": [
        *("cluster=1x1000", "cluster.nodes=1000000", f"trainer.n_gpus_per_node={10**12}", "trainer.nnodes=0"),
        *("data.max_prompt_length=999999999999", f"data.train_batch_size={10**30}", "actor_rollout_ref.rollout.n=-3"),
        *("topk=0", f"topk={10**40}", "topk=-1", "topk=1e3", "topk=null", "topk=x", "platform.device_memory_gib=-1"),
        *("platform.device_memory_gib=1e400", "platform.device_memory_gib=x", "platform.device_memory_gib=[80]"),
        *("data.max_prompt_length=${data.max_prompt_length}", "topk=${distillation.distillation_loss.topk}"),
        "actor_rollout_ref.rollout.gpu_memory_utilization=90",
    ],
}
"""Arguments as they stand."""


def _misspelt(name: str, chance: random.Random) -> str:
    """One letter lost, doubled, replaced or swapped; or a part of the key lost."""
    at = chance.randrange(len(name))
    return chance.choice(
        [
            name[:at] + name[at + 1 :],
            name[:at] + name[at] + name[at:],
            name[:at] + chance.choice(string.ascii_letters + "_-./") + name[at + 1 :],
            name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :],
            name.rpartition(".")[2],
            name.replace("_", "-"),
            name.upper(),
        ]
    )


def _plausible(value: object, chance: random.Random) -> str:
    """A value of the kind of a default, as it is typed."""
    if isinstance(value, bool):
        return chance.choice(["true", "false", "True"])
    if isinstance(value, int):
        return str(chance.choice([1, 2, 4, 8, 64, 1024, value]))
    if isinstance(value, float):
        return chance.choice(["0.5", "1e-6", "1", "0.0", str(value)])
    if isinstance(value, list):
        return chance.choice(["[]", "[a]", "[a.parquet,b.parquet]"])
    if isinstance(value, dict):
        return chance.choice(["{}", "{a:1}", "null"])
    return chance.choice(["null", "x", "fsdp2", "vllm", "/some/path", str(value)])


def _group(chance: random.Random) -> str:
    group = chance.choice([name for name in GROUPS])
    return f"{group}={chance.choice(GROUPS[group])}"


def _wrong_group(chance: random.Random) -> str:
    group, option = _group(chance).split("=")
    wrong = [f"{_misspelt(group, chance)}={option}", f"{group}={_misspelt(option, chance)}"]
    return chance.choice([*wrong, f"{group}={chance.choice(ODD)}", f"+{group}={option}", f"~{group}", f"++{group}=x"])


def _key(chance: random.Random) -> str:
    key = chance.choice(chance.choice([COMMON, list(KEYS)]))
    return f"{key}={_plausible(KEYS[key], chance)}"


def _wrong_key(chance: random.Random) -> str:
    key, _, value = _key(chance).partition("=")
    wrong = _misspelt(key, chance)
    signs = [f"{sign}{name}={value}" for sign in ("+", "++", "~") for name in (key, wrong)]
    return chance.choice([f"{wrong}={value}", f"{wrong}={value}", *signs, f"~{key}", f"~{wrong}", key, wrong])


def _wrong_value(chance: random.Random) -> str:
    key = chance.choice(chance.choice([COMMON, COUNTED]))
    sign = chance.choice(["", "", "", "+", "++"])
    return f"{sign}{key}={chance.choice(ODD)}"


def _letters(chance: random.Random) -> str:
    return "".join(chance.choices(string.printable + "实验${}[]()=.,+~", k=chance.randrange(12)))


def _standing(chance: random.Random) -> str:
    return chance.choice(LISTS[chance.choice(list(LISTS))])


KINDS: tuple[Callable[[random.Random], str], ...] = (
    *(_group, _wrong_group, _key, _wrong_key, _wrong_value, _standing),
    *(_wrong_value, _wrong_key, _standing, _letters),
)


def arguments_of(number: int) -> list[str]:
    """The command line of a number: a run, and up to five arguments that change or break it, in any order."""
    chance = random.Random(number)
    extra = [chance.choice(KINDS)(chance) for _ in range(chance.choice([0, 1, 1, 1, 2, 2, 3, 5]))]
    if extra and chance.random() < 0.1:
        extra.append(chance.choice(extra))
    action = chance.choice(["action=check"] * 18 + ["action=dry_run", "action=script"])
    line = [*chance.choice(RUNS), *extra]
    if chance.random() < 0.1:
        chance.shuffle(line)
    return [argument for argument in line if not argument.startswith("action=")] + [action]


WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Watch:
    """Notes files outside of a folder that this process opens to be written, makes, moves or removes."""

    inside: Path | None = None
    outside: list[str]

    @classmethod
    def see(cls, event: str, given: tuple) -> None:
        if cls.inside is None or event not in ("open", "os.mkdir", "os.rename", "os.remove"):
            return
        if event == "open" and not (isinstance(given[2], int) and given[2] & WRITES):
            return
        path = os.path.abspath(os.fsdecode(given[0])) if isinstance(given[0], (str, bytes, Path)) else "/dev/null"
        unnamed = event == "open" and os.path.isdir(path)  # a file without a name: pytest's, for what is printed
        if not unnamed and not path.startswith((f"{cls.inside}/", "/dev/null")) and "__pycache__" not in path:
            cls.outside.append(path)


sys.addaudithook(Watch.see)


@pytest.fixture
def written(monkeypatch, tmp_path) -> Iterator[list[str]]:
    """A folder and an environment of its own for a command; the files that it writes outside of that folder."""
    before = dict(os.environ)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("OPD_PLATFORM", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody is there: a cluster on this host is not asked
    Watch.inside, Watch.outside = tmp_path, []
    yield Watch.outside
    Watch.inside = None
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("number", range(COMMANDS))
def test_command(number, capfd, written):
    arguments = arguments_of(number)
    typed = shlex.join(arguments)
    code = command(arguments)
    told = "".join(capfd.readouterr())
    assert "Traceback" not in told, typed
    assert code in (0, 2), typed
    if code == 2:
        keys = {argument.partition("=")[0].strip("+~") for argument in arguments} - {""}
        helps = "  type: " in told or "No accelerator here" in told or any(key in told for key in keys)
        assert helps, f"{typed}\n{told}"
    assert written == [], typed

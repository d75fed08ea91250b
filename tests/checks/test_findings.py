"""The frame: all rules at once, sorted, ignorable, reported, fast, and light."""

import inspect
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opd_conf import checks
from opd_conf.checks import Finding

RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
TESTS = Path(__file__).parent
WRONG = (
    "actor_rollout_ref.actor.strategy=fsdp",
    "data.train_batch_size=30",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=3",
    "+trainer.zzz=1",
)


def test_all_findings_come_at_once_errors_first(check):
    found = [(finding.severity, finding.id) for finding in check(*WRONG)]
    assert found == [
        ("error", "batch_splits_over_world"),
        ("error", "fsdp2_on"),
        ("error", "mini_batch_splits_over_ranks"),
        ("error", "rollout_divides_world"),
        ("warning", "unknown_key"),
    ]
    assert checks.has_errors(check(*WRONG))


def test_a_run_without_errors_may_start(check):
    assert not checks.has_errors(check("+trainer.zzz=1"))


def test_ignored_rules_are_left_out(check):
    found = check(*WRONG, "checks.ignore=[fsdp2_on,unknown_key]")
    assert {"fsdp2_on", "unknown_key"}.isdisjoint(finding.id for finding in found)
    assert len(found) == 3


def test_a_single_id_needs_no_list(check):
    assert check("actor_rollout_ref.actor.strategy=fsdp", "checks.ignore=fsdp2_on") == ()


def test_an_unknown_id_to_ignore_is_an_error_with_the_nearest(check):
    [finding] = check("checks.ignore=[unknown_key,pool_fit]")
    assert (finding.id, finding.severity) == ("unknown_rule", "error")
    assert "no rule is called so; nearest: pools_fit" in finding.message
    assert finding.fix == "'checks.ignore=[unknown_key,pools_fit]'"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train_batch_size=0", "data.train_batch_size is 0, not a whole number of at least 1."),
        ("data.max_prompt_length=long", 'data.max_prompt_length is the text "long", not a whole number'),
        ("actor_rollout_ref.actor.use_dynamic_bsz=off", 'is the text "off", neither true nor false'),
        ("actor_rollout_ref.rollout.n=null", "actor_rollout_ref.rollout.n is null, not a whole number"),
        ("trainer.nnodes=true", "trainer.nnodes is true, not a whole number"),
        ("data.train_batch_size=${nowhere}", "cannot be worked out: Interpolation key 'nowhere' not found"),
        ("trainer.nnodes=???", "trainer.nnodes has no value."),
    ],
)
def test_values_that_no_rule_can_count_with(check, override, message):
    [finding] = check(override)
    assert (finding.id, finding.severity, finding.keys) == ("wrong_value", "error", (override.partition("=")[0],))
    assert message in finding.message


def test_every_rule_says_in_one_line_what_holds_when_it_is_quiet():
    for name, rule in checks.RULES.items():
        first, *rest = inspect.getdoc(rule).split("\n\n")
        assert first.endswith("."), name
        assert "\n" not in first, name
        assert re.match(r"(verl|vLLM|CUDA|HCCL|VeOmni|TransferQueue|opd_conf): \S", rest[-1]), name


def test_every_rule_is_tested():
    text = "".join(path.read_text() for path in TESTS.glob("test_*.py") if path != Path(__file__))
    assert [name for name in checks.RULES if not re.search(rf'[".]{name}\b', text)] == []


def test_a_finding_as_json(compose, capsys):
    config = compose(
        *RUN,
        "checks.ignore=[data_files,models_seen,micro_batch_of_one,memory_fits]",
        "checks.report=json",
        "actor_rollout_ref.actor.strategy=fsdp",
    )
    checks.report(checks.findings(config), config)
    document = json.loads(capsys.readouterr().out)
    assert (document["errors"], document["warnings"], document["ignored"]) == (
        1,
        0,
        ["data_files", "models_seen", "micro_batch_of_one", "memory_fits"],
    )
    [finding] = document["findings"]
    assert list(finding) == ["id", "severity", "keys", "message", "fix"]
    assert finding["id"] == "fsdp2_on"
    assert "actor_rollout_ref.actor.strategy" in finding["keys"]


def test_findings_as_text(compose, capsys):
    config = compose(*RUN, "checks.ignore=[data_files]")
    long = Finding("error", ("a",), f"[bold]{'long ' * 50}end", "'trainer.logger=[console]'", "some_rule")
    checks.report([long, Finding("warning", ("b",), "Short.", "leave out +b", "other_rule")], config)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "error  some_rule",
        f"  [bold]{'long ' * 50}end",
        "  type: 'trainer.logger=[console]'",
        "warning  other_rule",
        "  Short.",
        "  leave out +b",
        "1 error, 1 warning. Left out: data_files.",
    ]


@pytest.mark.parametrize(("ignored", "shown"), [("[1,null]", "1, None"), ("data_files", "data_files")])
def test_what_was_ignored_is_shown_as_it_was_typed(compose, capsys, ignored, shown):
    checks.report([], compose(*RUN, f"checks.ignore={ignored}"))
    assert capsys.readouterr().err == f"No findings. Left out: {shown}.\n"


def test_nothing_found_is_said_to_a_check_alone(compose, capsys):
    checks.report([], compose(*RUN, "action=check"))
    assert capsys.readouterr().err == "No findings.\n"
    checks.report([], compose(*RUN, "action=train"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("override", "message", "fix"),
    [
        ("action=trian", 'action is the text "trian"; it can be train or check or dry_run or script.', "action=train"),
        ("checks.report=yaml", 'checks.report is the text "yaml"; it can be text or json.', "checks.report=text"),
        ("launch.runner=slurm", 'launch.runner is the text "slurm"; it can be auto or uv', "launch.runner=auto"),
        ("platform.attention=spda", "it can be eager or sdpa or flash_attention_2", "platform.attention=sdpa"),
        ("launch.resume=maybe", "neither true nor false", "launch.resume=false"),
        ("cluster.nodes=1000000", "is 1000000, and 4096 is the most that is counted with.", "cluster.nodes=NUMBER"),
        ("data.max_prompt_length=${data.max_prompt_length}", "Recursive inter", "data.max_prompt_length=VALUE"),
        ("run_dir=[a]", "run_dir is ['a'], not a name.", "run_dir=NAME"),
        ("+platform.env.A-B=x", "no name for an environment variable", "leave out +platform.env.A-B"),
        ("platform.env=5", "platform.env is 5, and every run needs the keys below it.", "leave out platform.env"),
        ("platform.env=null", "platform.env is null, and every run needs", "leave out platform.env"),
        ("trainer=5", "trainer is 5, and every run needs the keys below it.", "leave out trainer"),
        ("~trainer.nnodes", "trainer.nnodes was left out, and every run needs it.", "leave out ~trainer.nnodes"),
        ("~actor_rollout_ref.actor", "actor_rollout_ref.actor was left out", "leave out ~actor_rollout_ref.actor"),
        ("~launch", "launch was left out, and every run needs it.", "leave out ~launch"),
    ],
)  # fmt: skip
def test_a_key_of_ours_or_a_block_that_no_stage_can_use(compose, override, message, fix):
    found = checks.findings(compose(*RUN, override))
    assert {finding.id for finding in found} == {"wrong_value"}
    [finding] = [finding for finding in found if finding.fix == fix]
    assert message in finding.message


@pytest.mark.parametrize("run", [RUN, ("experiment=smoke",), ("platform=npu", *RUN[1:], "engine=veomni")])
def test_a_check_takes_less_than_30_milliseconds(compose, run):
    config = compose(*run)
    times = []
    for _ in range(5):
        start = time.process_time()
        checks.findings(config)
        times.append(time.process_time() - start)
    assert min(times) < 0.03, times


def test_checks_import_nothing_heavy():
    code = "import sys, opd_conf.checks, opd_conf.mistakes; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert {"torch", "verl", "ray", "transformers", "rich"}.isdisjoint(loaded)

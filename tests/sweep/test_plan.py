"""What a sweep will run: names, refused cells, equal cells."""

import pytest

from opd_conf.errors import UserError
from opd_conf.sweep.plan import cells_of

MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
BATCH = "data.train_batch_size"


def fates(cells) -> list[str]:
    return ["refused" if not cell.valid else f"as {cell.same}" if cell.same is not None else "runs" for cell in cells]


def test_cells_in_the_order_of_hydra_with_readable_names(plan):
    cells = plan("loss_mode=k1,forward_kl_topk", "topk=16,64")
    assert [cell.name for cell in cells] == [
        "loss_mode=k1,topk=16",
        "loss_mode=k1,topk=64",
        "loss_mode=forward_kl_topk,topk=16",
        "loss_mode=forward_kl_topk,topk=64",
    ]
    assert fates(cells) == ["runs", "as 0", "runs", "runs"]
    assert cells[1].why == "topk has no effect here"


def test_other_ways_to_write_the_same(plan):
    cells = plan(f"{MINI}=128,64,'${{{BATCH}}}'", f"{BATCH}=128,64")
    assert fates(cells) == ["runs", "refused", "runs", "runs", "as 0", "as 3"]


def test_a_default_spelled_out(plan):
    """The batch's own default, once as a number and once as the interpolation that stands there anyway."""
    assert fates(plan(f"{MINI}=128,'${{{BATCH}}}'", f"{BATCH}=128")) == ["runs", "as 0"]


def test_other_seeds_are_other_runs(plan):
    assert fates(plan("data.seed=1,2")) == ["runs", "runs"]


def test_a_cell_that_does_not_compose_is_named_and_the_others_run(plan):
    veomni = "actor_rollout_ref.actor.veomni.param_offload=true"
    cells = plan("engine=fsdp2,veomni", veomni)
    assert fates(cells) == ["refused", "runs"]
    assert "There is no key actor_rollout_ref.actor.veomni.param_offload" in (cells[0].problem or "")


def test_a_cell_with_an_error_keeps_its_findings(plan):
    cells = plan("actor_rollout_ref.actor.strategy=fsdp,fsdp2")
    assert fates(cells) == ["refused", "runs"]
    assert [finding.id for finding in cells[0].findings if finding.severity == "error"] == ["fsdp2_on"]


def test_a_value_of_the_wrong_kind_refuses_its_cell(plan):
    assert fates(plan("trainer.nnodes=0,1")) == ["refused", "runs"]


@pytest.mark.parametrize(
    ("sweep", "values"),
    [
        ("topk=range(1,4)", ["1", "2", "3"]),
        ("topk=choice(8,4)", ["8", "4"]),
        ("topk=sort(3,1,2)", ["1", "2", "3"]),
        ("loss_mode=glob(k*)", ["k1", "k2", "k3", "kl"]),
    ],
)
def test_hydras_grammar(plan, sweep, values):
    [key, _] = sweep.split("=")
    assert [cell.varied[key] for cell in plan(sweep, "loss_mode=k1" if key == "topk" else "topk=4")] == values


def test_an_interval_is_refused_with_what_to_type(plan):
    with pytest.raises(UserError, match=r"(?s)interval\(0,1\) has no end of values.*type: topk=choice\("):
        plan("topk=interval(0,1)")


def test_names_are_safe_short_and_different():
    combinations = [[f"data.train_files=/a/{'x' * 150}/{name}.parquet", "a.lr=1e-6"] for name in ("one", "two")]
    combinations += [["data.train_files=$(rm -r .)", "a.lr=1e-6"], ["data.train_files=§ x", "a.lr=1e-6"]]
    names = [cell.name for cell in cells_of(combinations)]
    assert len(set(names)) == 4
    assert all(len(name) < 120 and not set(name) & set(" $()§/") for name in names)


def test_keys_of_one_last_name_are_written_out():
    [first, *_] = cells_of([["a.lr=1", "b.lr=1"], ["a.lr=2", "b.lr=2"]])
    assert first.name == "a.lr=1,b.lr=1"

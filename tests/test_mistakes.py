"""Mistakes in arguments, as Hydra and OmegaConf really raise them, become messages that say what to type."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import InstantiationException
from omegaconf import OmegaConf

from opd_conf.errors import UserError
from opd_conf.mistakes import explain
from opd_conf.typed import argument

RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b")
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture
def told(compose):
    """What is said about the usual run with wrong arguments, or about other arguments alone."""

    def told(*arguments: str, run: tuple[str, ...] = RUN) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011 (which exception is Hydra's business)
            OmegaConf.to_container(compose(*run, *arguments), resolve=True)
        message = explain(caught.value, [*run, *arguments])
        assert message is not None, caught.value
        return message

    return told


def typed(message: str) -> list[str]:
    return [line.removeprefix("  type: ") for line in message.splitlines() if line.startswith("  type: ")]


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ("distillation.topk=16", "distillation.distillation_loss.topk=16"),
        ("trainer.nodes=2", "trainer.nnodes=2"),
        ("trainer.n_gpu_per_node=8", "trainer.n_gpus_per_node=8"),
        (f"{ROLLOUT}.tensor_model_paralell_size=2", f"{ROLLOUT}.tensor_model_parallel_size=2"),
        ("data.max_prompt_lenght=512", "data.max_prompt_length=512"),
        ("actor.optim.lr=1e-5", "actor_rollout_ref.actor.optim.lr=1e-5"),
        ("max_prompt_length=512", "data.max_prompt_length=512"),
        ("studnet=qwen3_5_2b", "student=qwen3_5_2b"),
        ("loss=k1", "loss_mode=k1"),
    ],
)
def test_an_unknown_key_is_answered_with_the_likeliest(told, given, first):
    message = told(given)
    assert given.partition("=")[0] in message
    assert typed(message)[0] == first


@pytest.mark.parametrize(
    ("value", "first"), [("veomni", "engine=veomni"), ("dp", "engine=fsdp2"), ("megatron", "engine=fsdp2")]
)
def test_verls_way_to_choose_the_engine(told, value, first):
    message = told(f"model_engine={value}")
    assert message.startswith("verl's model_engine is the group engine here. Choices: fsdp2, veomni.")
    assert typed(message)[0] == first
    assert ("/verl/ppo_megatron_trainer@_global_" in message) == (value == "megatron")


def test_a_key_like_no_other(told):
    assert told("qqqq=1").startswith("There is no key qqqq, and none that looks like it.")


@pytest.mark.parametrize(
    "given",
    [
        f"{ROLLOUT}.engine_kwargs.vllm.mm_processor_cache_gb=0",
        f"{ROLLOUT}.repetition_penalty=1.1",
        "distillation.distillation_loss.use_chunked_topk=true",
        "ray_kwargs.ray_init.runtime_env.env_vars=null",
        "platform.env.NCCL_IB_HCA=mlx5_0",
    ],
)
def test_a_key_that_is_only_new_needs_a_plus(told, given):
    assert typed(told(given)) == [f"+{given}"]


def test_an_argument_of_a_server_moves_below_its_name(told):
    message = told(f"{ROLLOUT}.engine_kwargs.vllm_mm_processor_cache_gb=0")
    assert typed(message) == [f"+{ROLLOUT}.engine_kwargs.vllm.mm_processor_cache_gb=0"]


def test_a_teacher_is_added_from_the_group_first(told):
    message = told("distillation.teacher_models.geo.key=a")
    assert typed(message) == [
        "+teacher@distillation.teacher_models.geo=NAME distillation.teacher_models.geo.key=a",
    ]


@pytest.mark.parametrize(
    ("given", "choices", "first"),
    [
        ("student=qwen3_5_3b", "qwen3_5_4b", "student=qwen3_5_4b"),
        ("engine=fsdp", "fsdp2, veomni", "engine=fsdp2"),
        ("loss_mode=forward_kl", "forward_kl_topk", "loss_mode=forward_kl_topk"),
        ("+teacher@distillation.teacher_models.geo=qwen3_5_35b", "qwen3_5_35b_a3b", "teacher=qwen3_5_35b_a3b"),
        ("hydra/launcher=submitit", "submitit_slurm", "hydra/launcher=submitit_slurm"),
    ],
)
def test_an_unknown_option_is_answered_with_the_choices_nearest_first(told, given, choices, first):
    message = told(given)
    assert choices in message
    assert typed(message)[0] == first


def test_parts_of_presets_are_no_choices(told):
    assert "_qwen3_5" not in told("student=nope")
    assert "_common" not in told("platform=nope")


def test_a_model_instead_of_a_preset_goes_to_the_models_key(told):
    message = told("student=Qwen/Qwen3.5-9B")
    assert any("actor_rollout_ref.model.path=Qwen/Qwen3.5-9B" in line for line in typed(message))


@pytest.mark.parametrize("given", ["rollout=none", "rollout=", "rollout=''", "rollout=off"])
def test_a_group_that_cannot_be_left_out(told, given):
    message = told(given)
    assert message.startswith("rollout cannot be left out: every run has one. Choices: sglang, vllm.")


def test_an_experiment_is_left_out_with_null(told):
    assert typed(told("experiment=none")) == ["experiment=null"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("teacher=[1,2]", "teacher=[1,2]: a group takes the name of one of its files."),
        ("engine=${trainer.nnodes}", "engine=${trainer.nnodes}: a group takes the name of one of its files."),
        ("data=5", "data=5: a group takes the name of one of its files."),
        ("trainer.logger.x=1", "Hydra cannot use trainer.logger.x=1: invalid literal for int()"),
    ],
)
def test_what_hydra_did_not_foresee_names_the_argument(told, given, reason):
    assert told(given, "topk=16").startswith(reason)


def test_a_group_set_to_null(told):
    message = told("rollout=null")
    assert message.startswith("rollout=null: a group takes the name of one of its files.")
    assert typed(message) == ["rollout=sglang"]


@pytest.mark.parametrize(
    ("run", "group", "question"),
    [
        (("platform=gpu", "teacher=qwen3_5_35b_a3b"), "student", "Who learns?"),
        (("platform=gpu", "student=qwen3_5_2b"), "teacher", "From whom?"),
        (RUN[1:], "platform", "On what?"),
    ],
)
def test_a_group_that_must_be_chosen(told, run, group, question):
    message = told(run=run)
    assert message.startswith(f"{question} No {group} is chosen. Choices: ")
    assert typed(message)[0].startswith(f"{group}=")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("student@distillation=qwen3_5_2b", "+student@distillation=qwen3_5_2b"),
        ("+studnet@distillation=qwen3_5_2b", "+student@distillation=qwen3_5_2b"),
        ("+trainer.nnodes=2", "trainer.nnodes=2"),
    ],
)
def test_plus_and_places(told, given, meant):
    assert typed(told(given)) == [meant]


@pytest.mark.parametrize("given", ["+cluster=1x2", "++cluster=1x2", "++student=x"])
def test_a_plus_before_a_group_that_every_run_has(told, given):
    group = given.strip("+").partition("=")[0]
    assert typed(told(given)) == [f"{group}=NAME"]


def test_nothing_behind_a_tilde(told):
    assert typed(told("~")) == ["~KEY"]


@pytest.mark.parametrize("given", ["~distillation.nope", "~nope"])
def test_nothing_to_leave_out(told, given):
    assert told(given).startswith(f"{given}: there is no {given[1:]} to leave out.")


NASTY = [
    "run#3",
    "run(3",
    "a=b",
    "实验",
    "it's#1",
    'a"b',
    "~/data/x.parquet",
    "run #3",
    "a\\#",
    "100%#",
    "a{b",
    "!#x",
    "a;b#",
    "$HOME/run#3",
    "a&b",
    "<x>",
    "`x`",
]


@pytest.mark.parametrize("value", NASTY)
def test_a_value_with_odd_characters_is_shown_quoted_and_the_quotes_are_right(told, value):
    try:
        OverridesParser.create().parse_overrides([f"trainer.experiment_name={value}"])
    except Exception as error:
        shown = typed(explain(error) or "")[0]
    else:
        shown = argument("trainer.experiment_name", value)
    [word] = shlex.split(shown)
    assert OverridesParser.create().parse_override(word).value() == value


def test_the_quoted_form_of_a_name_with_a_hash(told):
    message = told("trainer.experiment_name=run#3")
    assert "trainer.experiment_name" in message
    assert typed(message) == ["'trainer.experiment_name=\"run#3\"'"]


def test_a_quote_that_is_missing(told):
    assert typed(told('trainer.experiment_name="run#3')) == ["'trainer.experiment_name=\"run#3\"'"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("trainer.logger=[console", "'trainer.logger=[console]'"),
        ("data.val_files=[a.parquet,~/b.parquet]", "'data.val_files=[a.parquet,\"~/b.parquet\"]'"),
        ("trainer.logger", "trainer.logger=VALUE"),
        ("trainer.nnodes:3", "trainer.nnodes=3"),
    ],
)
def test_arguments_that_cannot_be_read(told, given, shown):
    assert typed(told(given)) == [shown]


def test_a_mapping_that_cannot_be_read(told):
    assert "cannot be read as a mapping" in told("platform.env={A:b#}")


def test_an_option_that_is_none(told):
    assert told("--foo").startswith("There is no option --foo")


def test_a_comma_can_mean_three_things(told):
    message = told("data.train_files=/a.parquet,/b.parquet")
    assert "one text: 'data.train_files=\"/a.parquet,/b.parquet\"'" in message
    assert "a list:   'data.train_files=[/a.parquet,/b.parquet]'" in message
    assert "a run each: -m data.train_files=/a.parquet,/b.parquet" in message


@pytest.mark.parametrize("block", ["+ray_kwargs.ray_init.runtime_env.env_vars", "+platform.env"])
def test_a_variable_with_a_comma_is_one_text(told, compose, block):
    message = told(f"{block}.NCCL_IB_HCA=mlx5_0:1,mlx5_1:1")
    assert "NCCL_IB_HCA is an environment variable" in message
    [line] = typed(message)
    assert line == f"'{block}.NCCL_IB_HCA=\"mlx5_0:1,mlx5_1:1\"'"
    compose(*RUN, *shlex.split(line))


@pytest.mark.parametrize("given", ["student=qwen3_5_2b,qwen3_5_4b", "topk=range(1,3)"])
def test_several_values_of_one_thing_are_a_sweep(told, given):
    message = told(given)
    assert "one run takes one" in message
    assert typed(message)[0].startswith("-m ")


def test_a_value_made_from_a_key_that_does_not_exist(told):
    message = told("run_dir=${trainer.experiment_nam}")
    assert message.startswith("run_dir: its value is made from ${trainer.experiment_nam}, and there is no key")
    assert typed(message)[0] == "'run_dir=${trainer.experiment_name}'"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${nowhere:1}", "Unsupported interpolation type nowhere"),
        ("${oc.env:NOT_SET_ANYWHERE}", "Environment variable 'NOT_SET_ANYWHERE' not found"),
    ],
)
def test_a_value_that_cannot_be_worked_out(told, value, message):
    assert message in told(f"run_dir={value}")


def test_a_value_of_the_wrong_type(told):
    message = told("hydra.job.chdir=maybe")
    assert message.startswith("hydra.job.chdir=maybe: hydra.job.chdir: Value 'maybe' is not a valid bool")


def test_a_file_that_is_no_yaml(told, tmp_path, monkeypatch):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "default.yaml").write_text("a: [1\nb: 2\n")
    message = told(f"hydra.searchpath=[verl://,file://{tmp_path}]")
    assert message.startswith("A configuration file is not valid YAML")
    assert "default.yaml" in message


def test_a_users_error_inside_hydras_is_told_as_it_is(told):
    OmegaConf.register_new_resolver("refuse", _refuse, replace=True)
    assert told("run_dir=${refuse:}") == "Say which one."


def _refuse() -> str:
    raise UserError("Say which one.")


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), ValueError("x"), RuntimeError("x"), AssertionError(), InstantiationException("x"), OSError("x")],
)
def test_faults_of_a_program_are_not_explained(error):
    assert explain(error) is None


def test_a_missing_key_in_our_own_code_is_not_explained(compose):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        compose(*RUN).trainer.no_such_key  # noqa: B018
    assert explain(caught.value) is None

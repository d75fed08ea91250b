"""Rules against verl's own code, run on the same configurations: what one refuses, the other refuses. Imports torch."""

import dataclasses
import importlib
import shlex

import pytest
from omegaconf import MISSING, DictConfig, OmegaConf

from opd_conf import checks
from opd_conf.checks import engine, keys, loss, rollout
from opd_conf.compose import compose
from opd_conf.view import SERVER_DEFAULTS, TEACHER_DEFAULTS

pytest.importorskip("torch")

from verl.trainer.distillation import losses
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.workers.config import DistillationTeacherModelConfig, FSDPEngineConfig, RolloutConfig

RUN = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "checks.ignore=[data_files]")
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LOSS = "distillation.distillation_loss"
SINGLE = "distillation.teacher_models.teacher_model"
NAMED = "+distillation.teacher_models.math"
COMPLETE = (
    f"~teacher {NAMED}.key=a {NAMED}.model_path=b {NAMED}.num_replicas=2 {NAMED}.inference.name=vllm "
    f"{NAMED}.inference.load_format=auto {NAMED}.inference.prompt_length=1024 {NAMED}.inference.response_length=2048"
)
OTHER = COMPLETE.removeprefix("~teacher ").replace("math", "geo")


def composed(overrides: str) -> DictConfig:
    """The usual run with overrides, resolved as verl gets it."""
    given = shlex.split(overrides)
    config = compose([*RUN, *given]).config
    resolved = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    assert isinstance(resolved, DictConfig)
    return resolved


def errors(overrides: str) -> set[str]:
    config = compose([*RUN, *shlex.split(overrides)]).config
    return {finding.id for finding in checks.findings(config) if finding.severity == "error"}


@pytest.mark.parametrize("overrides", ["", COMPLETE, "rollout=sglang loss_mode=forward_kl_topk"])
def test_distillation_configs_that_both_take(overrides):
    assert errors(overrides) == set()
    assert omega_conf_to_dataclass(composed(overrides).distillation).teacher_models


@pytest.mark.parametrize(
    ("overrides", "rule", "verl_says"),
    [
        (
            f"{SINGLE}.inference.tensor_model_parallel_size=3 {SINGLE}.inference.expert_parallel_size=1",
            "teacher_divides_pool",
            r"per_replica_world_size \(3\) must divide",
        ),
        (
            f"{COMPLETE} {NAMED}.inference.tensor_model_parallel_size=1",
            "teachers_fill_pool",
            r"\(2\) must match .*resource pool size",
        ),
        (COMPLETE.replace(f"{NAMED}.key=a ", ""), "teacher_key", "key must be specified"),
        (f"{COMPLETE} {OTHER}", "teacher_key", "Duplicate teacher key a"),
        (COMPLETE.replace(f"{NAMED}.model_path=b ", ""), "teacher_model_path", "model_path must be specified"),
        (COMPLETE.replace(f"{NAMED}.inference.name=vllm ", ""), "teacher_backend", "name"),
        (f"{SINGLE}.inference.max_model_len=3072", "teacher_context", "required_context_len=3073, max_model_len=3072"),
        (f"{COMPLETE} {NAMED}.inference.max_model_len=3072", "teacher_context", "required_context_len=3073"),
        (f"{LOSS}.loss_mode=k4", "loss_mode_known", "Unsupported loss mode: k4"),
        (f"{LOSS}.use_policy_gradient=false", "policy_gradient_for_k1", "backpropagating k1 loss is incorrect"),
        ("loss_mode=forward_kl_topk topk=null", "topk_size", "topk must be specified"),
        (
            f"loss_mode=forward_kl_topk +{SINGLE}.inference.engine_kwargs.vllm.max_logprobs=20",
            "topk_max_logprobs",
            r"max_logprobs \(20\) must be >= distillation_loss topk \(64\)",
        ),
        (
            f"loss_mode=forward_kl_topk {SINGLE}.inference.name=trtllm",
            "topk_backend",
            "does not support inference engine trtllm",
        ),
        ("+distillation.topk=3", "unknown_key", "unexpected keyword argument 'topk'"),
    ],
)
def test_distillation_configs_that_both_refuse(overrides, rule, verl_says):
    assert rule in errors(overrides)
    with pytest.raises(Exception, match=verl_says):
        omega_conf_to_dataclass(composed(overrides).distillation)


def test_verl_lets_kl_pass_without_a_policy_gradient():
    overrides = f"loss_mode=kl {LOSS}.use_policy_gradient=false"
    assert omega_conf_to_dataclass(composed(overrides).distillation)
    assert "policy_gradient_for_k1" in errors(overrides)


def test_verl_lets_random_weights_pass():
    overrides = COMPLETE.replace(f"{NAMED}.inference.load_format=auto ", "")
    [teacher] = omega_conf_to_dataclass(composed(overrides).distillation).teacher_models.values()
    assert teacher.inference.load_format == "dummy"
    assert errors(overrides) == {"teacher_load_format"}


def test_verl_drops_the_default_entry():
    overrides = COMPLETE.removeprefix("~teacher ")
    teachers = omega_conf_to_dataclass(composed(overrides).distillation).teacher_models
    assert [teacher.model_path for teacher in teachers.values()] == ["b"]
    assert errors(overrides) == {"teacher_dropped"}


def validate(overrides: str) -> None:
    config = composed(overrides)
    validate_config(config, need_reference_policy(config), need_critic(config))


@pytest.mark.filterwarnings("ignore:Disabled critic")
@pytest.mark.parametrize(
    "overrides",
    ["", f"{ACTOR}.use_dynamic_bsz=true", f"data.train_batch_size=30 {ROLLOUT}.n=2", "engine=veomni"],
)
def test_runs_that_both_take(overrides):
    assert errors(overrides) == set()
    validate(overrides)


@pytest.mark.filterwarnings("ignore:Disabled critic")
@pytest.mark.parametrize(
    ("overrides", "rule", "verl_says"),
    [
        (
            "data.train_batch_size=30",
            "batch_splits_over_world",
            r"real_train_batch_size \(30\) must be divisible .* \(4\)",
        ),
        (f"{ACTOR}.ppo_mini_batch_size=256", "mini_batch_divides_batch", r"\(128\) must be >= .* \(256\)"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=null", "micro_batch_set", "Please set at least one of"),
        (f"{ACTOR}.ppo_micro_batch_size=4", "micro_batch_set", "You have set both"),
        (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=null", "micro_batch_set", "Please set at least one of"),
        (f"{ROLLOUT}.log_prob_micro_batch_size=4", "micro_batch_set", "You have set both"),
        (f"{ACTOR}.use_kl_loss=true", "micro_batch_set", "actor_rollout_ref.ref"),
        (f"+{ACTOR}.foo=1", "unknown_key", "unexpected keyword argument 'foo'"),
        (f"+{ACTOR}.fsdp_config.foo=1", "unknown_key", "unexpected keyword argument 'foo'"),
        (f"engine=veomni +{ACTOR}.veomni.foo=1", "unknown_key", "unexpected keyword argument 'foo'"),
    ],
)
def test_runs_that_both_refuse(overrides, rule, verl_says):
    assert rule in errors(overrides)
    with pytest.raises(Exception, match=verl_says):
        validate(overrides)


@pytest.mark.filterwarnings("ignore:Disabled critic")
@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (
            f"data.train_batch_size=32 {ACTOR}.ppo_mini_batch_size=64 {ACTOR}.use_dynamic_bsz=true",
            "mini_batch_divides_batch",
        ),
        (f"{ACTOR}.ppo_mini_batch_size=2", "mini_batch_splits_over_ranks"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=3", "micro_batch_divides_mini_batch"),
        (f"{ACTOR}.strategy=fspd2", "strategy_known"),
        (f"{ROLLOUT}.tensor_model_parallel_size=3", "rollout_divides_world"),
        (f"{ROLLOUT}.log_prob_use_dynamic_bsz=true", "dynamic_batches_agree"),
    ],
)
def test_runs_that_verl_refuses_only_with_accelerators_claimed_or_never(overrides, rule):
    assert rule in errors(overrides)
    validate(overrides)


@pytest.mark.filterwarnings("ignore:Disabled critic")
def test_gae_needs_a_critic():
    assert need_critic(composed("algorithm.adv_estimator=gae"))
    assert not need_critic(composed(""))


@pytest.mark.parametrize(
    "override",
    [
        f"+{ROLLOUT}.enable_sleep_mode=false",
        f"+{ROLLOUT}.limit_images=4",
        f"+{ROLLOUT}.server.timeout=3",
        f"+{ACTOR}.fsdp_config.mixed_precision=null",
        f"+{ACTOR}.checkpoint.save_lora_only=true",
        f"+{LOSS}.use_chunked_topk=true",
        f"+{SINGLE}.inference.seed=1",
    ],
)
def test_keys_that_only_dataclasses_have_are_taken_by_them(override):
    config = composed(override)
    assert errors(override) == set()
    for block in (config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor, config.distillation):
        omega_conf_to_dataclass(block)


def test_defaults_of_named_teachers():
    def defaults(config: type) -> dict[str, object]:
        return {item.name: item.default for item in dataclasses.fields(config)}

    server = {name: None if name == "name" else value for name, value in SERVER_DEFAULTS.items()}
    found = defaults(RolloutConfig)
    assert found.pop("name") == MISSING
    assert {name: found.get(name) for name in server} == server
    assert {name: defaults(DistillationTeacherModelConfig)[name] for name in TEACHER_DEFAULTS} == TEACHER_DEFAULTS


def test_closed_sets():
    assert set(loss.LOSS_MODES) == set(losses.DISTILLATION_LOSS_REGISTRY)
    assert {name for name in loss.LOSS_MODES if losses.get_distillation_loss_settings(name).use_topk} == {
        "forward_kl_topk"
    }
    assert {*loss.ADV_ESTIMATORS, *loss.UNSERVED_ESTIMATORS} == {item.value for item in AdvantageEstimator}
    registry = importlib.import_module("verl.workers.rollout.base")._ROLLOUT_REGISTRY
    assert set(rollout.BACKENDS) == {name for name, _ in registry}


@pytest.mark.parametrize("strategy", engine.STRATEGIES["fsdp_config"])
def test_strategies_of_fsdp(strategy):
    assert FSDPEngineConfig(strategy=strategy).strategy == strategy
    with pytest.raises(AssertionError):
        FSDPEngineConfig(strategy="fspd2")


def test_dataclasses_are_read_as_python_reads_them():
    """Names of fields, for every dataclass that verl's packages of configuration export."""
    modules = ("verl.workers.config", "verl.trainer.config", "verl.utils.profiler.config", "verl.utils.qat")
    exported = {name: thing for module in modules for name, thing in vars(importlib.import_module(module)).items()}
    compared = [name for name in keys._dataclasses() if dataclasses.is_dataclass(exported.get(name))]
    for name in compared:
        assert set(keys.fields(name)) | {"_target_"} == {item.name for item in dataclasses.fields(exported[name])}, name
    assert len(compared) > 30


def test_fields_of_servers_that_our_files_set_are_verls():
    assert set(keys.OF_SERVERS) <= {item.name for item in dataclasses.fields(RolloutConfig)}

"""Rules about servers. The usual run: two replicas of two accelerators."""

import pytest

ROLLOUT = "actor_rollout_ref.rollout"
TENSOR = f"{ROLLOUT}.tensor_model_parallel_size"


@pytest.mark.parametrize(("name", "fix"), [("vlm", "vllm"), ("hf", "vllm"), ("SGLang", "sglang")])
def test_a_server_that_verl_lacks(fires, name, fix):
    fires("rollout_backend", f"{ROLLOUT}.name={name}", f"name is {name}", f"{ROLLOUT}.name={fix}")


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            f"{TENSOR}=3",
            "takes tensor x data x pipeline = 3 x 1 x 1 = 3 accelerators, which do not divide the student's 4",
            f"{TENSOR}=2",
        ),
        ("trainer.n_gpus_per_node=1", "2 x 1 x 1 = 2 accelerators, which do not divide the student's 1", f"{TENSOR}=1"),
        (f"{TENSOR}=2 {ROLLOUT}.data_parallel_size=4", "2 x 4 x 1 = 8", f"{TENSOR}=1"),
        (
            f"{ROLLOUT}.data_parallel_size=3",
            "2 x 3 x 1 = 6",
            f"{TENSOR}=2 {ROLLOUT}.data_parallel_size=1 {ROLLOUT}.pipeline_model_parallel_size=1",
        ),
    ],
)
def test_replicas_that_do_not_divide_the_world(fires, overrides, message, fix):
    finding = fires("rollout_divides_world", overrides, message, fix)
    assert TENSOR in finding.keys


@pytest.mark.parametrize("overrides", ["", f"{TENSOR}=1", f"{TENSOR}=4", f"{TENSOR}=2 {ROLLOUT}.data_parallel_size=2"])
def test_replicas_that_do(quiet, overrides):
    quiet("rollout_divides_world", overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (f"{ROLLOUT}.max_model_len=3071", "holds 3071 tokens, and a sequence may have 1024 + 2048 = 3072"),
        (f"rollout=sglang {ROLLOUT}.max_model_len=3072", "1024 + 2048 + 1 that SGLang keeps = 3073"),
        ("data.max_response_length=4096 actor_rollout_ref.rollout.max_model_len=3073", "1024 + 4096 = 5120"),
    ],
)
def test_a_server_without_room_for_the_sequence(check, overrides, message):
    [finding] = [f for f in check(*overrides.split()) if f.id == "rollout_context"]
    assert message in finding.message
    assert check(*overrides.split(), finding.fix) == tuple(
        f for f in check(*overrides.split()) if f.id != "rollout_context"
    )


@pytest.mark.parametrize("overrides", ["", f"{ROLLOUT}.max_model_len=3072", f"{ROLLOUT}.max_model_len=null"])
def test_a_server_with_room(quiet, overrides):
    quiet("rollout_context", overrides)


TEACHER = "distillation.teacher_models.teacher_model.inference"


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            f"{ROLLOUT}.expert_parallel_size=4",
            "is 4; it can be 1 or tensor x data = 2 x 1 = 2",
            f"{ROLLOUT}.expert_parallel_size=2",
        ),
        (
            f"{TEACHER}.expert_parallel_size=2",
            "is 2; it can be 1 or tensor x data = 4 x 1 = 4",
            f"{TEACHER}.expert_parallel_size=4",
        ),
    ],
)
def test_experts_over_a_part_of_a_replica(fires, overrides, message, fix):
    fires("expert_parallel_fills_replica", overrides, message, fix)


@pytest.mark.parametrize(
    "overrides",
    [
        "",
        f"{ROLLOUT}.expert_parallel_size=2",
        f"{TEACHER}.expert_parallel_size=4",
        f"{ROLLOUT}.name=trtllm {ROLLOUT}.expert_parallel_size=4",
    ],
)
def test_experts_over_whole_replicas(quiet, overrides):
    quiet("expert_parallel_fills_replica", overrides)


@pytest.mark.parametrize("at", [ROLLOUT, TEACHER])
def test_servers_in_pipeline_stages(fires, at):
    key = f"{at}.pipeline_model_parallel_size"
    plus = "" if at == ROLLOUT else "+"
    fires("pipeline_unsupported", f"{plus}{key}=2", f"{key} is 2; verl serves", f"{key}=1")


def test_servers_in_one_piece(quiet):
    quiet("pipeline_unsupported", f"{ROLLOUT}.pipeline_model_parallel_size=1")


@pytest.mark.parametrize(
    ("at", "pool"),
    [
        (ROLLOUT, "trainer.nnodes=4 trainer.n_gpus_per_node=4"),
        (TEACHER, "distillation.nnodes=4 distillation.n_gpus_per_node=4"),
    ],
)
def test_tensor_parallel_groups_over_nodes(fires, at, pool):
    overrides = f"cluster=2x8 cluster.nodes=5 {pool} {at}.data_parallel_size=2 {at}.tensor_model_parallel_size=8"
    experts = "" if at == ROLLOUT else f" {at}.expert_parallel_size=8"
    message = "is 8 with 2 data-parallel ranks: vLLM's groups must lie within a node, whose part of the replica is 4"
    fires(
        "data_parallel_fits_nodes",
        overrides + (f" {at}.expert_parallel_size=16" if experts else ""),
        message,
        f"{at}.tensor_model_parallel_size=4{experts}",
    )


@pytest.mark.parametrize(
    "overrides",
    [
        f"{ROLLOUT}.data_parallel_size=2",
        f"{ROLLOUT}.data_parallel_size=4 {ROLLOUT}.tensor_model_parallel_size=1",
        f"rollout=sglang trainer.nnodes=4 {ROLLOUT}.data_parallel_size=2 {ROLLOUT}.tensor_model_parallel_size=8",
        f"trainer.nnodes=2 {ROLLOUT}.tensor_model_parallel_size=8",
    ],
)
def test_tensor_parallel_groups_within_nodes(quiet, overrides):
    quiet("data_parallel_fits_nodes", overrides)


def test_validation_cannot_sample_at_no_temperature(fires, quiet):
    key, sampled = f"{ROLLOUT}.temperature", f"{ROLLOUT}.val_kwargs.do_sample=true"
    fires("validation_samples", f"{key}=0 {sampled}", "is 0, and validation is to sample", f"{key}=1.0")
    quiet("validation_samples", sampled)
    quiet("validation_samples", f"{key}=0")


def test_another_temperature_than_the_teachers(fires, quiet):
    key = "actor_rollout_ref.rollout.temperature"
    message = "The student's temperature is 0.6 and the teacher's stays 1"
    fires("rollout_temperature", f"{key}=0.6", message, f"{key}=1.0", "warning")
    quiet("rollout_temperature", f"{key}=1")


HALVES = "trainer.nnodes=2 trainer.n_gpus_per_node=4 distillation.nnodes=2 distillation.n_gpus_per_node=4 cluster=2x8"
SPREAD = f"{HALVES} {ROLLOUT}.tensor_model_parallel_size=4 {ROLLOUT}.data_parallel_size=2"


def test_a_dense_replica_over_two_nodes(fires, quiet):
    fires(
        "dense_replica_on_one_node",
        SPREAD,
        "A replica of Qwen/Qwen3.5-2B takes tensor x data x pipeline = 4 x 2 x 1 = 8 accelerators, of nodes with 4",
        f"{ROLLOUT}.data_parallel_size=1",
        "warning",
    )
    quiet("dense_replica_on_one_node", f"{SPREAD} actor_rollout_ref.model.path=someone/unknown")
    quiet("dense_replica_on_one_node", SPREAD.replace("tensor_model_parallel_size=4", "tensor_model_parallel_size=2"))
    experts = f"{TEACHER}.data_parallel_size=2 {TEACHER}.tensor_model_parallel_size=4 {TEACHER}.expert_parallel_size=8"
    quiet("dense_replica_on_one_node", f"{HALVES} {experts}")

"""Rules about teachers. The usual run has one, on a pool of 1 x 4, with a replica of 4."""

import pytest

MODELS = "distillation.teacher_models"
SINGLE = f"{MODELS}.teacher_model"


def named(entry: str, /, **values: object) -> str:
    """Overrides that add a complete teacher by name: two replicas of two accelerators, unless told otherwise."""
    keys = {
        "key": "openai/gsm8k",
        "model_path": "Qwen/Qwen3.5-9B",
        "num_replicas": 2,
        "name": "vllm",
        "tensor_model_parallel_size": 2,
        "load_format": "auto",
        "prompt_length": 1024,
        "response_length": 2048,
    } | values
    at = f"+{MODELS}.{entry}"
    own = ("key", "model_path", "num_replicas")
    return " ".join(
        f"{at}.{key}={value}" if key in own else f"{at}.inference.{key}={value}"
        for key, value in keys.items()
        if value is not None
    )


ALONE = f"~teacher {named('math')}"
PAIR = f"~teacher {named('math', num_replicas=1)} {named('geo', num_replicas=1, key='hiyouga/geometry3k')}"


@pytest.mark.parametrize("overrides", [ALONE, PAIR])
def test_complete_named_teachers_are_fine(check, overrides):
    assert check(*overrides.split()) == ()


def test_the_default_entry_is_dropped_beside_a_named_one(fires):
    finding = fires(
        "teacher_dropped",
        named("math"),
        "verl drops teacher_model (Qwen/Qwen3.5-35B-A3B) silently when there are others (math)",
        f"{SINGLE}.model_path=null",
    )
    assert finding.keys == (SINGLE, f"{MODELS}.math")


def test_a_teacher_has_a_model(check):
    [finding] = check("~teacher")
    assert (finding.id, finding.keys) == ("teacher_model_path", (f"{SINGLE}.model_path",))


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            f"~teacher {named('math', load_format=None)}",
            "Teacher math would have random weights, silently: load_format is not set, and verl's default is dummy",
            f"+{MODELS}.math.inference.load_format=auto",
        ),
        (
            f"{SINGLE}.inference.load_format=dummy",
            "Teacher teacher_model would have random weights, silently: load_format is set to dummy",
            f"{SINGLE}.inference.load_format=auto",
        ),
    ],
)
def test_a_teacher_with_random_weights_is_an_error(fires, overrides, message, fix):
    fires("teacher_load_format", overrides, message, fix)


def test_random_weights_that_are_meant_can_be_ignored(quiet):
    quiet("teacher_load_format", f"{SINGLE}.inference.load_format=dummy checks.ignore=[teacher_load_format]")


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            f"~teacher {named('math', name=None)}",
            "Teacher math is to be served by nothing",
            f"+{MODELS}.math.inference.name=vllm",
        ),
        (f"{SINGLE}.inference.name=sglan", "served by sglan", f"{SINGLE}.inference.name=sglang"),
    ],
)
def test_a_teacher_says_who_serves_it(fires, overrides, message, fix):
    fires("teacher_backend", overrides, message, fix)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (f"~teacher {named('math', key=None)}", "Teacher math has no key"),
        (
            f"~teacher {named('math', num_replicas=1)} {named('geo', num_replicas=1)}",
            "Teachers math and geo have the same key, openai/gsm8k",
        ),
    ],
)
def test_named_teachers_have_keys_of_their_own(check, overrides, message):
    [finding] = check(*overrides.split())
    assert finding.id == "teacher_key"
    assert message in finding.message
    assert finding.fix.endswith(".key=VALUE_IN_THE_DATA")


def test_named_teachers_know_the_lengths_of_the_data(fires):
    at = f"+{MODELS}.math.inference"
    fires(
        "teacher_lengths",
        f"~teacher {named('math', prompt_length=None, response_length=None)}",
        "Teacher math has lengths of 512 + 512 tokens, and the data has 1024 + 2048: verl checks its context for 1025 "
        "instead of 3073",
        f"{at}.prompt_length=1024 {at}.response_length=2048",
        severity="warning",
    )


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            f"{SINGLE}.inference.max_model_len=3072",
            "Teacher teacher_model holds 3072 tokens and needs 1024 + 2048 + 1 = 3073",
            f"{SINGLE}.inference.max_model_len=3073",
        ),
        (
            f"~teacher {named('math', max_model_len=1537, prompt_length=512, response_length=512)}",
            "holds 1537 tokens and needs 1024 + 2048 + 1 = 3073",
            f"{MODELS}.math.inference.max_model_len=3073",
        ),
        (
            f"~teacher {named('math', max_model_len=3073, prompt_length=2048)}",
            "needs 2048 + 2048 (its prompt_length and response_length) + 1 = 4097",
            f"{MODELS}.math.inference.max_model_len=4097",
        ),
    ],
)
def test_a_teacher_has_room_for_sequence_and_one_token(fires, overrides, message, fix):
    fires("teacher_context", overrides, message, fix)


@pytest.mark.parametrize("length", ["null", "3073", "8192"])
def test_contexts_that_suffice(quiet, length):
    quiet("teacher_context", f"{SINGLE}.inference.max_model_len={length}")


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            f"{SINGLE}.inference.tensor_model_parallel_size=8",
            "tensor x data x pipeline = 8 x 1 x 1 = 8 accelerators, which do not divide the teacher pool of 1 x 4",
            f"{SINGLE}.inference.tensor_model_parallel_size=4 {SINGLE}.inference.expert_parallel_size=4",
        ),
        (
            f"teacher=qwen2_5_3b_instruct {SINGLE}.inference.data_parallel_size=3",
            "1 x 3 x 1 = 3 accelerators",
            f"{SINGLE}.inference.tensor_model_parallel_size=1 {SINGLE}.inference.data_parallel_size=1 "
            f"+{SINGLE}.inference.pipeline_model_parallel_size=1",
        ),
    ],
)
def test_a_single_teachers_replica_divides_the_pool(fires, overrides, message, fix):
    fires("teacher_divides_pool", overrides, message, fix)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_replicas_that_divide_the_pool(quiet, size):
    quiet("teacher_divides_pool", f"{SINGLE}.inference.tensor_model_parallel_size={size}")


@pytest.mark.parametrize(
    ("overrides", "message", "fix"),
    [
        (
            f"~teacher {named('math', num_replicas=None)}",
            "take math 0 x 2 = 0 accelerators (replicas x size of one), and the teacher pool has 1 x 4 = 4",
            f"+{MODELS}.math.num_replicas=2",
        ),
        (
            f"~teacher {named('math', num_replicas=1)}",
            "take math 1 x 2 = 2 accelerators",
            f"{MODELS}.math.num_replicas=2",
        ),
        (
            f"~teacher {named('a', num_replicas=1)} "
            f"{named('b', num_replicas=1, key='b', tensor_model_parallel_size=1)}",
            "take a 1 x 2 + b 1 x 1 = 3 accelerators",
            f"{MODELS}.a.num_replicas=1 {MODELS}.b.num_replicas=1 distillation.nnodes=1 distillation.n_gpus_per_node=3",
        ),
    ],
)
def test_several_teachers_fill_the_pool(fires, overrides, message, fix):
    fires("teachers_fill_pool", overrides, message, fix)


def test_teachers_added_by_name_do_not_sleep_on_a_cpu(compose):
    teacher = "+teacher@distillation.teacher_models.digits=tiny"
    server = compose("experiment=smoke", "~teacher", teacher).distillation.teacher_models.digits.inference
    assert (server.free_cache_engine, server.enable_sleep_mode) == (False, False)

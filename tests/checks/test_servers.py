"""Rules about what servers are handed."""

import json

import pytest

from opd_conf.checks import servers

ROLLOUT = "actor_rollout_ref.rollout"
BUCKET = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
NPU = ("platform=npu", "student=qwen3_5_4b", "teacher=qwen3_5_35b_a3b")


@pytest.mark.parametrize(
    ("config", "fine"),
    [
        ({"model_type": "own", "auto_map": {}}, False),
        ({"model_type": "qwen3", "auto_map": {}}, True),
        ({"model_type": "own"}, True),
    ],
)
def test_teachers_with_code_of_their_own(say, tmp_path, monkeypatch, config, fine):
    (tmp_path / "models" / "qwen3").mkdir(parents=True)
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(servers, "package_folder", lambda name: tmp_path)
    key = "distillation.teacher_models.teacher_model.model_path"
    found = say(servers.teacher_code_trusted, {key: str(tmp_path)})
    assert [(finding.severity, *finding.keys) for finding in found] == ([] if fine else [("warning", key)])
    assert say(servers.teacher_code_trusted, {"actor_rollout_ref.model.path": str(tmp_path)}) == []


def test_settings_of_pictures_for_sglang(check, quiet):
    given = "+data.mm_processor_kwargs.fps=2"
    [finding] = [finding for finding in check("rollout=sglang", given) if finding.id == "media_settings_served"]
    assert "SGLang takes none of it" in finding.message
    assert (finding.severity, finding.fix) == ("error", "leave out data.mm_processor_kwargs.fps")
    quiet("media_settings_served", given)
    quiet("media_settings_served", "rollout=sglang")


def test_the_largest_tensor_fits_the_bucket(one, say):
    severity, message, fix = one(servers.weights_fit_bucket, {}, NPU)
    assert (severity, fix) == ("note", f"{BUCKET}=2425")
    assert "takes 2425 MiB, and the bucket for new weights holds 2048" in message
    assert say(servers.weights_fit_bucket, {}, ("platform=gpu", *NPU[1:])) == []
    assert say(servers.weights_fit_bucket, {}, (NPU[0], "student=qwen3_5_2b", NPU[2])) == []
    assert say(servers.weights_fit_bucket, {"actor_rollout_ref.actor.fsdp_config.model_dtype": "bf16"}, NPU) == []


@pytest.fixture
def vllm(monkeypatch, tmp_path):
    """A vLLM that has two arguments."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "arg_utils.py").write_text(
        "class EngineArgs:\n    max_num_seqs: int = 1\n    seed: int = 0\n"
    )
    monkeypatch.setattr(servers, "package_folder", lambda name: tmp_path if name == "vllm" else None)


@pytest.mark.parametrize(
    ("name", "fix"),
    [("max_num_seq", "+{}.max_num_seqs=8"), ("unheard_of", "leave out +{}.unheard_of")],
)
def test_arguments_that_the_server_lacks(say, vllm, name, fix):
    key = f"{ROLLOUT}.engine_kwargs.vllm"
    [finding] = say(servers.server_argument_known, {f"{key}.{name}": 8})
    assert (finding.severity, finding.fix) == ("error", fix.format(key))
    [finding] = say(servers.server_argument_known, {f"{key}.{name}": 8, "action": "check"})
    assert finding.severity == "warning"


def test_arguments_that_it_has(say, vllm):
    key = f"{ROLLOUT}.engine_kwargs"
    assert say(servers.server_argument_known, {f"{key}.vllm.seed": 8, f"{key}.sglang.unheard_of": 8}) == []
    sglang = ("platform=gpu", "student=qwen3_5_2b", "teacher=qwen3_5_35b_a3b", "rollout=sglang")
    assert say(servers.server_argument_known, {f"{key}.sglang.unheard_of": 8}, sglang) == []  # not installed here

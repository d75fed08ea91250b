"""Secrets are taken out of the arguments before anything could record them."""

import os

import pytest

from opd_conf import secret
from opd_conf.errors import UserError

NAMES = ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_secrets(name):
    assert secret.is_secret(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "HF_HOME", "HCCL_BUFFSIZE"])
def test_names_of_no_secrets(name):
    assert not secret.is_secret(name)


def test_an_address_with_a_password_is_a_secret():
    assert secret.is_secret("http_proxy", "http://me:pass@proxy:3128")
    assert not secret.is_secret("http_proxy", "http://proxy:3128")


@pytest.mark.parametrize("key", ["platform.env", "+platform.env", "++ray_kwargs.ray_init.runtime_env.env_vars"])
def test_a_secret_moves_to_the_environment_and_is_masked(key, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "before")
    rest, masked = secret.take(["student=tiny", f"{key}.WANDB_API_KEY=abc123"])
    assert rest == ["student=tiny"]
    assert masked == [f"{key}.WANDB_API_KEY=***"]
    assert os.environ["WANDB_API_KEY"] == "abc123"


def test_null_removes_a_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "abc")
    secret.take(["platform.env.HF_TOKEN=null"])
    assert "HF_TOKEN" not in os.environ


@pytest.mark.parametrize("argument", ["platform.env={HF_TOKEN:abc}", "+trainer.note='HF_TOKEN=abc'"])
def test_a_secret_inside_a_larger_value_is_refused(argument):
    with pytest.raises(UserError, match="HF_TOKEN"):
        secret.take([argument])


@pytest.mark.parametrize(
    "argument", ["distillation.teacher_key=data_source", "data.prompt_key=prompt", "data.image_key=images"]
)
def test_verls_own_keys_are_no_secrets(argument):
    assert secret.take([argument]) == ([argument], [])

"""Model facts: every published count is what the formula gives, and config.json, cache and table agree."""

import json
from dataclasses import replace

import pytest

from opd_conf.model_files import hub_cache
from opd_conf.models import facts, from_config, known

KNOWN = known()
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
QWEN3_5_2B = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "tie_word_embeddings": True,
    "text_config": {
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "intermediate_size": 6144,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 6,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 16,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
    },
    "vision_config": {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "out_hidden_size": 2048,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
    },
}


@pytest.mark.parametrize(
    ("name", "parameters", "without_embedding"),
    [
        ("Qwen2.5-0.5B", 494_032_768, 357_898_112),
        ("Qwen2.5-0.5B-Instruct", 494_032_768, 357_898_112),
        ("Qwen2.5-3B-Instruct", 3_085_938_688, 2_774_773_760),
        ("Qwen2.5-7B-Instruct", 7_615_616_512, 6_525_621_760),
        ("Qwen3-0.6B", 596_049_920, 440_467_456),
        ("Qwen3-1.7B", 1_720_574_976, 1_409_410_048),
        ("Qwen3-4B", 4_022_468_096, 3_633_511_936),
        ("Qwen3-8B", 8_190_735_360, 6_946_075_648),
        ("Qwen3-14B", 14_768_307_200, 13_212_482_560),
        ("Qwen3-32B", 32_762_123_264, 31_206_298_624),
        ("Qwen3-30B-A3B", 30_532_122_624, None),
        ("Qwen3-VL-8B-Instruct", 8_767_123_696, None),
        ("Qwen3-VL-32B-Instruct", 33_357_390_064, None),
        ("Qwen3.5-2B", 2_213_241_664, None),
        ("Qwen3.5-4B", 4_539_265_536, None),
        ("Qwen3.5-9B", 9_409_813_744, None),
        ("Qwen3.5-35B-A3B", 35_107_181_936, None),
    ],
)
def test_parameters(name, parameters, without_embedding):
    known = KNOWN[name]
    assert known.parameters == parameters
    assert without_embedding in (None, known.without_embedding)


@pytest.mark.parametrize(
    ("name", "active"), [("Qwen3-30B-A3B", 3_353_032_704), ("Qwen3.5-35B-A3B", 3_454_988_928), ("Qwen3-8B", None)]
)
def test_active_parameters(name, active):
    assert KNOWN[name].active_parameters == (active or KNOWN[name].parameters)


def test_active_parameters_without_embeddings():
    known = KNOWN["Qwen3-30B-A3B"]
    assert known.active_parameters - 2 * known.embedding == 2_730_702_848


@pytest.mark.parametrize(
    ("name", "text", "tower", "mtp", "file", "rows"),
    [
        ("Qwen3.5-2B", 1_881_825_088, 331_416_576, 60_828_160, 2_274_069_824, 508_559_360),
        ("Qwen3.5-4B", 4_205_751_296, 333_514_240, 120_599_552, 4_659_865_088, 635_699_200),
        ("Qwen3.5-9B", 8_953_803_264, 456_010_480, 243_290_624, 9_653_104_368, 1_017_118_720),
        ("Qwen3.5-35B-A3B", 34_660_610_688, 446_571_248, 844_640_768, 35_951_822_704, 508_559_360),
        ("Qwen3-VL-8B-Instruct", 8_190_735_360, 576_388_336, 0, 8_767_123_696, 622_329_856),
        ("Qwen3-VL-32B-Instruct", 32_762_123_264, 595_266_800, 0, 33_357_390_064, 777_912_320),
    ],
)
def test_parts_of_a_multimodal_model(name, text, tower, mtp, file, rows):
    known = KNOWN[name]
    assert (known.text_parameters, known.vision_parameters) == (text, tower)
    assert (known.mtp_parameters, known.parameters + known.mtp_parameters) == (mtp, file)
    assert known.embedding == rows


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("Qwen3.5-2B", 21_061_792),
        ("Qwen3.5-4B", 42_139_840),
        ("Qwen3.5-9B", 67_403_968),
        ("Qwen3.5-35B-A3B", 33_718_464),
    ],
)
def test_a_linear_attention_layer(name, layer):
    assert KNOWN[name].linear_attention == layer


@pytest.mark.parametrize(
    ("name", "kv"),
    [
        ("Qwen3-0.6B", 114_688),
        ("Qwen3-1.7B", 114_688),
        ("Qwen3-4B", 147_456),
        ("Qwen3-8B", 147_456),
        ("Qwen3-14B", 163_840),
        ("Qwen3-32B", 262_144),
        ("Qwen3-30B-A3B", 98_304),
        ("Qwen2.5-0.5B", 12_288),
        ("Qwen2.5-3B-Instruct", 36_864),
        ("Qwen2.5-7B-Instruct", 57_344),
        ("Qwen3.5-2B", 12_288),
        ("Qwen3.5-4B", 32_768),
        ("Qwen3.5-9B", 32_768),
        ("Qwen3.5-35B-A3B", 20_480),
    ],
)
def test_bytes_of_keys_and_values(name, kv):
    assert KNOWN[name].kv_bytes() == kv


def test_key_value_heads_are_repeated_on_more_ranks_than_heads():
    known = KNOWN["Qwen3.5-35B-A3B"]
    assert [known.kv_bytes(ranks) for ranks in (1, 2, 8)] == [20_480, 10_240, 10_240]


@pytest.mark.parametrize(
    ("name", "megabytes"), [("Qwen3.5-2B", 18.9), ("Qwen3.5-4B", 50.3), ("Qwen3.5-35B-A3B", 62.9), ("Qwen3-8B", 0)]
)
def test_recurrent_state(name, megabytes):
    assert round(KNOWN[name].state_bytes / 1e6, 1) == megabytes


@pytest.mark.parametrize(
    ("name", "mebibytes"), [("Qwen3.5-2B", 1940), ("Qwen3.5-4B", 2425), ("Qwen3.5-9B", 3880), ("Qwen3.5-35B-A3B", 2048)]
)
def test_the_largest_tensor_in_fp32(name, mebibytes):
    assert KNOWN[name].largest_tensor * 4 / 2**20 == mebibytes


def test_config_json_gives_what_the_table_has():
    assert from_config(QWEN3_MOE) == KNOWN["Qwen3-30B-A3B"]
    assert from_config(QWEN3_5_2B) == KNOWN["Qwen3.5-2B"]


def test_layer_types_may_be_an_interval():
    text = {key: value for key, value in QWEN3_5_2B["text_config"].items() if key != "layer_types"}
    assert from_config({**QWEN3_5_2B, "text_config": text}) == KNOWN["Qwen3.5-2B"]


def test_a_llama_is_known_by_its_dimensions():
    assert from_config(LLAMA_8B).parameters == 8_030_261_248


def test_biases_of_a_llama():
    biased = from_config({**LLAMA_8B, "attention_bias": True, "mlp_bias": True})
    assert biased.parameters - 8_030_261_248 == 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)


def test_mixtures_may_be_in_some_layers_only():
    assert from_config({**QWEN3_MOE, "decoder_sparse_step": 2}).experts.layers == 24
    some = from_config({**QWEN3_MOE, "mlp_only_layers": [0, 1]})
    assert some.experts.layers == 46
    dense, sparse = 3 * 2048 * 6144, 2048 * 128 + 128 * 3 * 2048 * 768
    assert KNOWN["Qwen3-30B-A3B"].parameters - some.parameters == 2 * (sparse - dense)


def write(folder, config):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))


def test_a_folder_comes_first(tmp_path, monkeypatch):
    write(tmp_path / "Qwen" / "Qwen3-8B", LLAMA_8B)
    monkeypatch.chdir(tmp_path)
    assert facts("Qwen/Qwen3-8B").architecture == "LlamaForCausalLM"
    assert facts(f"{tmp_path}/Qwen/Qwen3-8B").architecture == "LlamaForCausalLM"


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE"])
def test_then_the_cache(tmp_path, monkeypatch, variable):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    cache = tmp_path / "hub" if variable == "HF_HOME" else tmp_path
    model = cache / "models--meta-llama--Llama-3.1-8B"
    write(model / "snapshots" / "old", {**LLAMA_8B, "num_hidden_layers": 1})
    write(model / "snapshots" / "new", LLAMA_8B)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("new\n")
    monkeypatch.setenv(variable, str(tmp_path))
    assert facts("meta-llama/Llama-3.1-8B").layers == 32
    (model / "refs" / "main").write_text("old")
    assert facts("meta-llama/Llama-3.1-8B").layers == 1
    (model / "refs" / "main").unlink()
    assert facts("meta-llama/Llama-3.1-8B") is None  # nor would transformers find it


def test_then_the_table(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert facts("Qwen/Qwen3-8B") == KNOWN["Qwen3-8B"]
    assert facts("/cluster/models/Qwen3-8B") == KNOWN["Qwen3-8B"]
    assert facts("somebody/Qwen3-8B") is None
    assert facts("Qwen/Qwen9") is None


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("~/models/Qwen3-8B", "Qwen3-8B"),
        ("hdfs://a/b/Qwen3-8B", "Qwen3-8B"),
        ("Qwen/Qwen3-8B/", "Qwen3-8B"),
        ("./Qwen3-8B", "Qwen3-8B"),
        ("Qwen3-8B", ""),
        ("a\0b", ""),
        ("", ""),
    ],
)
def test_what_is_not_here_is_known_by_its_name(tmp_path, monkeypatch, path, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "models" / "Qwen3-8B", LLAMA_8B)  # nobody replaces ~
    assert facts(path, {"HF_HOME": str(tmp_path)}.get) == KNOWN.get(name)


def test_a_cache_with_only_a_tokenizer_says_nothing(tmp_path):
    model = tmp_path / "hub" / "models--Qwen--Qwen3-8B"
    (model / "snapshots" / "a").mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("a")
    assert facts("Qwen/Qwen3-8B", {"HF_HOME": str(tmp_path)}.get) == KNOWN["Qwen3-8B"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"architectures": ["GPT2LMHeadModel"]}', '"x"'])
def test_what_cannot_be_read_is_unknown(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert facts(str(tmp_path)) is None


def test_a_number_that_lacks_makes_it_unknown(tmp_path):
    write(tmp_path / "m", {key: value for key, value in LLAMA_8B.items() if key != "vocab_size"})
    assert facts(f"{tmp_path}/m") is None


def test_where_the_cache_is(tmp_path):
    assert str(hub_cache({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}.get)) == "/a"
    assert str(hub_cache({"HUGGINGFACE_HUB_CACHE": "/a"}.get)) == "/a"
    assert str(hub_cache({"HF_HOME": "/b"}.get)) == "/b/hub"
    assert str(hub_cache({"XDG_CACHE_HOME": "/c"}.get)) == "/c/huggingface/hub"
    assert hub_cache({}.get).parts[-3:] == (".cache", "huggingface", "hub")


def test_facts_are_values():
    assert replace(KNOWN["Qwen3-8B"]) == KNOWN["Qwen3-8B"]
    assert hash(KNOWN["Qwen3-8B"])

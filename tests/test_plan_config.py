"""Published models' config.json as the planner's transformer; without a framework."""

import json
import random

import pytest

from course_lib.errors import CourseError
from course_lib.planner.model_config import BEYOND, FAMILIES, read_config
from course_lib.planner.models_by_numbers import MODELS, read_model
from course_lib.planner.transformer import Transformer

GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}


def config(model_type, layers, hidden, heads, ffn, vocabulary, most, kv_heads=None, **others) -> dict:
    numbers = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    numbers |= {"intermediate_size": ffn, "vocab_size": vocabulary, "max_position_embeddings": most}
    grouped = {"num_key_value_heads": kv_heads} if kv_heads else {}
    return {"model_type": model_type, **numbers, **grouped, **others}


BERT = config("bert", 12, 768, 12, 3072, 30522, 512)
NEOX = config("gpt_neox", 44, 6144, 64, 24576, 50432, 2048)
OPT = config("opt", 32, 4096, 32, None, 50272, 2048, ffn_dim=16384, word_embed_proj_dim=4096)
ROBERTA = config("roberta", 12, 768, 12, 3072, 50265, 514)
LLAMA2 = config("llama", 32, 4096, 32, 11008, 32000, 4096, 32, tie_word_embeddings=False)
LLAMA3 = config("llama", 32, 4096, 32, 14336, 128256, 8192, 8, tie_word_embeddings=False)
MISTRAL = config("mistral", 32, 4096, 32, 14336, 32000, 32768, 8, sliding_window=4096)
MIXTRAL = config(
    "mixtral", 32, 4096, 32, 14336, 32000, 32768, 8, sliding_window=None, num_local_experts=8, num_experts_per_tok=2
)
QWEN2 = config("qwen2", 28, 3584, 28, 18944, 152064, 131072, 4, use_sliding_window=False, sliding_window=131072)
QWEN3 = config("qwen3", 36, 4096, 32, 12288, 151936, 40960, 8, head_dim=128, max_window_layers=36)
GEMMA = config("gemma", 18, 2048, 8, 16384, 256000, 8192, 1, head_dim=256)
GEMMA2 = config("gemma2", 26, 2304, 8, 9216, 256000, 8192, 4, head_dim=256, sliding_window=4096)
QWEN3_MOE = config("qwen3_moe", 48, 2048, 32, 6144, 151936, 40960, 4, head_dim=128, mlp_only_layers=[])
QWEN3_MOE |= {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1}
ALL = [GPT2, BERT, NEOX, OPT, ROBERTA, LLAMA2, MISTRAL, MIXTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, QWEN3_MOE]


@pytest.fixture
def read(tmp_path):
    def read(given, sequence_length=None) -> Transformer:
        path = tmp_path / "config.json"
        path.write_bytes(given if isinstance(given, bytes) else json.dumps(given).encode())
        return read_config(path, sequence_length)

    return read


@pytest.fixture
def refusal(read, tmp_path):
    """What read says of a file, after its name."""

    def refusal(given, sequence_length=None) -> str:
        with pytest.raises(CourseError) as caught:
            read(given, sequence_length)
        line = str(caught.value)
        assert line.startswith(f"{tmp_path / 'config.json'}") and "\n" not in line and len(line) < 500
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        return line.removeprefix(f"{tmp_path / 'config.json'}").removeprefix(": ")

    return refusal


@pytest.mark.parametrize(
    "given, parameters, within",  # GPT-2's 1024 positions, BERT's positions and pooler are left out
    [
        (GPT2, 124_439_808, 0.01),
        (BERT, 109_482_240, 0.02),
        (NEOX, 20_554_567_680, 0.01),
        (OPT, 6_658_473_984, 0.01),
        (LLAMA2, 6_738_415_616, 0.0001),
        (LLAMA3, 8_030_261_248, 0.0001),
        (MISTRAL, 7_241_732_096, 0.0001),
        (MIXTRAL, 46_702_792_704, 0.0001),
        (QWEN2, 7_615_616_512, 0.0001),
        (QWEN3, 8_190_735_360, 0.0001),
        (GEMMA, 2_506_172_416, 0.0001),
        (QWEN3_MOE, 30_532_122_624, 0.0001),
    ],
    ids=lambda given: given["model_type"] if isinstance(given, dict) else "",
)
def test_a_published_models_parameters(read, given, parameters, within):
    assert read(given).parameters == pytest.approx(parameters, rel=within)


def test_gemma_2s_parameters(read):
    """Its table is tied, each block has two norms more, and half of its layers see 4,096 tokens."""
    assert read(GEMMA2, 4096).parameters == pytest.approx(2_614_341_888, rel=0.0002)


def test_every_family_is_read():
    assert {one["model_type"] for one in ALL} == set(FAMILIES)


@pytest.mark.parametrize("given", ALL, ids=lambda given: given["model_type"])
def test_what_the_family_decides(read, given):
    plain = {"gpt2", "opt", "bert", "roberta", "gpt_neox"}
    tied = {"gpt2", "opt", "bert", "roberta", "gemma", "gemma2"}
    silent = {key: value for key, value in given.items() if key != "tie_word_embeddings"}
    model = read(silent, 512)
    assert (model.gated, model.tied) == (given["model_type"] not in plain, given["model_type"] in tied)
    assert read({**given, "tie_word_embeddings": not model.tied}, 512).tied is not model.tied


def test_every_number_arrives(read):
    assert read(MIXTRAL, 4096) == Transformer(
        32, 4096, 32, 32000, 4096, 14336, 8, experts=8, experts_per_token=2, gated=True, tied=False
    )
    assert read(QWEN3_MOE, 4096) == Transformer(
        48, 2048, 32, 151936, 4096, 768, 4, 128, experts=128, experts_per_token=8, gated=True, tied=False
    )
    assert [read(one, 512).head_size for one in (LLAMA2, GEMMA, GEMMA2, QWEN3)] == [None, None, 256, None]
    silent = {key: value for key, value in QWEN3.items() if key != "head_dim"}
    assert read({**silent, "hidden_size": 2560}).head_size == 128
    stated = {**LLAMA3, "num_attention_heads": 24, "head_dim": 128}  # 4096 / 24 is not whole
    assert read(stated).head_size == 128
    assert read(GPT2) == Transformer(12, 768, 12, 50257, 1024)
    assert read({**GPT2, "n_inner": 1000}).ffn == 1000 and read({**GPT2, "n_inner": None}).ffn == 3072
    assert read(OPT).ffn == 16384
    assert read({key: value for key, value in LLAMA2.items() if key != "num_key_value_heads"}) == read(LLAMA2)
    assert read(b"\xef\xbb\xbf" + json.dumps(GPT2).encode()) == read(GPT2)


def test_the_sequence_length_is_given_or_the_files_maximum(read):
    assert [read(one).sequence_length for one in (GPT2, ROBERTA, QWEN2)] == [1024, 512, 131072]
    assert read(QWEN2, 4096).sequence_length == 4096
    assert read({key: value for key, value in GPT2.items() if key != "n_positions"}, 64).sequence_length == 64


def test_a_length_after_a_files_name_is_there_before_its_windows_are_looked_at(read, tmp_path):
    """Gemma 2's layers attend to windows of 4,096 tokens or to all: the same for examples of 2,048."""
    with pytest.raises(CourseError, match="sliding_window"):
        read(GEMMA2)
    assert read_model(f"{tmp_path / 'config.json'},sequence_length=2048").sequence_length == 2048


ASKED = {"use_sliding_window": True, "sliding_window": 64}


@pytest.mark.parametrize(
    "given, window",  # None: all of the 512 tokens
    [
        ({**MISTRAL, "sliding_window": 64}, 64),
        ({**MISTRAL, "sliding_window": None}, None),
        ({**MIXTRAL, "sliding_window": 64}, 64),
        ({**LLAMA2, "sliding_window": 64}, None),
        ({**QWEN2, "sliding_window": 64}, None),
        ({**QWEN2, **ASKED}, None),  # its 28 layers all come before the first one with a window
        ({**QWEN2, **ASKED, "max_window_layers": 0}, 64),
        ({**QWEN2, **ASKED, "layer_types": ["sliding_attention"] * 28}, 64),
        ({**GEMMA2, "layer_types": ["full_attention"] * 26}, None),
    ],
)
def test_a_sliding_window(read, given, window):
    assert read(given, 512).window == window


def test_the_familys_own_window_and_one_as_long_as_the_example(read):
    silent = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}
    assert read(silent).window == 4096
    assert read(GEMMA2, 4096).window == 4096  # as long as the example: all layers are alike


@pytest.mark.parametrize(
    "given, said",
    [
        ({**QWEN2, **ASKED, "max_window_layers": 20}, "means 8 of 28 layers with a window of 64 tokens"),
        ({**QWEN2, **ASKED, "num_hidden_layers": 29}, "means 1 of 29 layers with a window of 64 tokens"),
        (GEMMA2, "means 13 of 26 layers with a window of 4,096 tokens"),
        ({**OPT, "word_embed_proj_dim": 512}, "word_embed_proj_dim means embeddings of another width, which"),
        ({**QWEN3_MOE, "decoder_sparse_step": 2}, "decoder_sparse_step means layers without experts, which"),
        ({**QWEN3_MOE, "mlp_only_layers": [0]}, "mlp_only_layers means layers without experts, which"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "kv_lora_rank means multi-head latent attention, which"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "is_encoder_decoder means an encoder and a decoder, which"),
        ({"model_type": "vit", "image_size": 224, "patch_size": 16}, "image_size means images, which"),
        ({"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632}, "means shared experts, which"),
        ({**BERT, "add_cross_attention": True}, "add_cross_attention means cross-attention, which"),
        (
            {"model_type": "mamba"},
            "does not know the model_type 'mamba'; give one of gpt2, opt, bert, roberta, gpt_neox",
        ),
        ({**GPT2, "model_type": "m" * 999}, "does not know the model_type 'mmm"),
        ({}, "does not know the model_type None; give one of gpt2,"),
        ({"model_type": ["gpt2"]}, "does not know the model_type ['gpt2']; give"),
        ({**GPT2, "n_head": 10}, "10 heads do not divide a hidden_size of 768: correct one, or state head_dim."),
        ({**LLAMA2, "hidden_size": 16}, "32 heads do not divide a hidden_size of 16: correct"),
        ({**LLAMA2, "num_key_value_heads": 5}, "5 heads of keys and values do not divide 32 heads"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "9 experts per token are more than the 8 of a layer"),
        ({**LLAMA2, "vocab_size": 10**12}, "Transformer.vocabulary must be a whole number between 1 and 100,000,000"),
        ({**LLAMA2, "tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, not 'no'."),
    ],
)
def test_what_a_transformer_does_not_have_is_refused_by_name(refusal, given, said):
    assert said in refusal(given)


@pytest.mark.parametrize("key", sorted({*BEYOND, "text_config", "n_shared_experts"}))
def test_a_key_is_refused_where_it_says_something(read, refusal, key):
    assert refusal({**LLAMA2, key: 1}).startswith(f"{key} means ")
    for nothing in (None, False, 0, []):
        assert read({**LLAMA2, key: nothing}) == read(LLAMA2)


@pytest.mark.parametrize(
    "given, key",
    [
        (GPT2, "n_layer"),
        (GPT2, "n_positions"),
        (BERT, "intermediate_size"),
        (OPT, "ffn_dim"),
        (LLAMA2, "vocab_size"),
        (MISTRAL, "num_key_value_heads"),
        (MIXTRAL, "num_local_experts"),
        (MIXTRAL, "num_experts_per_tok"),
        (QWEN3_MOE, "moe_intermediate_size"),
    ],
)
def test_a_missing_key_and_one_that_is_not_a_whole_number(refusal, given, key):
    line = refusal({name: value for name, value in given.items() if name != key})
    assert line.startswith("the key ") and key in line and "is missing; add it" in line
    for wrong in (0, -1, 12.0, 0.5, True, "12", [12], {}, float("nan"), "long\ntext" * 99):
        assert refusal({**given, key: wrong}).startswith(f"{key} must be a whole number of at least 1, not ")


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "it is not JSON in UTF-8"),
        (b"layers=12", "it is not JSON in UTF-8"),
        (json.dumps(GPT2).encode("utf-16"), "it is not JSON in UTF-8"),
        (b"\xff\xfe\x00", "it is not JSON in UTF-8"),
        (b"[" * 100_000, "it is not JSON in UTF-8"),
        (b'{"n_layer": ' + b"9" * 5000 + b"}", "it is not JSON in UTF-8"),
        (b"[1, 2]", "it is not a JSON object of at most 1,048,576 bytes"),
        (b"null", "it is not a JSON object of at most 1,048,576 bytes"),
        (b'{"model_type": "gpt2"}' + b" " * 2**20, "it is not a JSON object of at most 1,048,576 bytes"),
    ],
)
def test_a_file_that_cannot_be_read(refusal, content, said):
    assert refusal(content).startswith(f" cannot be read as a model's configuration: {said}")


def test_no_file_and_a_folder(tmp_path):
    for path, why in ((tmp_path / "none.json", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(CourseError, match=f"{path.name} cannot be read as a model's configuration: {why}. Give"):
            read_config(path)


def test_whatever_the_file_holds_it_is_a_transformer_or_one_line(read):
    """A published configuration with some values replaced, and now and then no configuration at all."""
    chance, read_at_all = random.Random(0), 0
    values = [None, True, False, 0, 1, 2, 3, 8, 64, 4096, -1, 10**30, 0.5, 1e308, "", "8", "a\nb", [], [1], {}]
    values += [float("nan"), ["sliding_attention"] * 3, list(FAMILIES)[chance.randrange(len(FAMILIES))]]
    keys = sorted({key for one in ALL for key in one} | {*BEYOND, "layer_types", "max_window_layers", "n_inner"})
    for _ in range(300):
        given = {
            **chance.choice(ALL),
            **{key: chance.choice(values) for key in chance.sample(keys, chance.randrange(3))},
        }
        if chance.random() < 0.1:
            given = chance.choice(values)
        try:
            model = read(given, chance.choice([None, None, 1, 512]))
            assert isinstance(model, Transformer) and model.parameters > 0
            read_at_all += 1
        except CourseError as error:
            assert "\n" not in str(error)
    assert 50 < read_at_all < 250


@pytest.mark.parametrize("given, size", [(GEMMA, 256), (GEMMA2, 256), (QWEN3, 128), (LLAMA2, None)])
def test_a_family_has_its_own_size_of_a_head(read, given, size):
    silent = {key: value for key, value in given.items() if key != "head_dim"}
    assert read({**silent, "num_attention_heads": 16, "num_key_value_heads": 16}, 512).head_size == size


def test_the_named_models_have_the_published_lengths():
    lengths = {"gpt2": 1024, "gpt3": 2048, "llama2": 4096, "llama3": 8192, "mistral": 8192, "mixtral": 8192}
    assert {name: model.sequence_length for name, model in MODELS.items()} == {
        name: lengths[name.partition("-")[0]] for name in MODELS
    }

"""A published model's config.json as the planner's Transformer. Standard library only; for `course plan`.

Keys and defaults are those of the configuration classes in Hugging Face's transformers, versions 4 and 5.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.planner.transformer import Transformer

LARGEST = 2**20  # bytes; published files have a few thousand
SIZES = (
    ("num_hidden_layers", "n_layer"),
    ("hidden_size", "n_embd"),
    ("num_attention_heads", "n_head"),
    ("vocab_size",),
)


@dataclass(frozen=True)
class Family:
    """What a model_type decides, and what transformers takes where the file says nothing."""

    gated: bool = True
    tied: bool = False
    ffn: str = "intermediate_size"  # its key
    head_dim: int | None = None  # hidden / heads by default
    windowed: str = "no"  # layers: all, every other one, or the last ones, if the file asks for them
    window: int | None = None  # tokens
    unused: int = 0  # positions that no token of an example takes
    experts: bool = False


PLAIN = Family(gated=False, tied=True)
QWEN = Family(windowed="last", window=4096)
FAMILIES = {
    "gpt2": replace(PLAIN, ffn="n_inner"),
    "opt": replace(PLAIN, ffn="ffn_dim"),
    "bert": PLAIN,
    "roberta": replace(PLAIN, unused=2),  # its positions start after the padding's
    "gpt_neox": Family(gated=False),
    "llama": Family(),
    "mistral": Family(windowed="all", window=4096),
    "mixtral": Family(windowed="all", experts=True),
    "qwen2": QWEN,
    "qwen3": replace(QWEN, head_dim=128),
    "qwen3_moe": replace(QWEN, ffn="moe_intermediate_size", experts=True),
    "gemma": Family(tied=True, head_dim=256),
    "gemma2": Family(tied=True, head_dim=256, windowed="every other", window=4096),
}
# Keys that, where they hold something, mean what a Transformer does not have.
BEYOND = {
    "text_config": "a text model inside a larger one",
    "image_size": "images",
    "is_encoder_decoder": "an encoder and a decoder",
    "add_cross_attention": "cross-attention",
    "kv_lora_rank": "multi-head latent attention",
    "n_shared_experts": "shared experts",
    "shared_expert_intermediate_size": "shared experts",
    "mlp_only_layers": "layers without experts",
}


def read_config(path: Path, sequence_length: int | None = None) -> Transformer:
    """The transformer that a config.json in Hugging Face's form describes, if its model_type is one of FAMILIES.

    sequence_length  tokens of one example; by default the file's own maximum, which is often far longer than the
                     examples that one trains with
    Raises           CourseError for a file that can't be read, for a key that is missing or holds something wrong, and
                     for a model that no Transformer describes
    Leaves out position and token type embeddings, an encoder's pooler, and the biases of gated families.
    """
    config = _read_object(path)
    try:
        return _transformer(config, sequence_length)
    except CourseError as error:
        raise CourseError(f"{path}: {error}") from None


def _read_object(path: Path) -> dict:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        config = None if len(content) > LARGEST else json.loads(content.decode("utf-8-sig"))
        if isinstance(config, dict):
            return config
        why = f"it is not a JSON object of at most {LARGEST:,} bytes"
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or f"it is not JSON in UTF-8 ({error})"
    raise CourseError(f"{path} cannot be read as a model's configuration: {why}. Give the model's own config.json.")


def _transformer(config: dict, sequence_length: int | None) -> Transformer:
    for key, meaning in BEYOND.items():
        if config.get(key):
            raise _beyond(key, meaning)
    name = config.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        known = ", ".join(FAMILIES)
        raise CourseError(f"the planner does not know the model_type {name!r:.40}; give one of {known}, or numbers.")
    layers, hidden, heads, vocabulary = (_whole(config, *keys) for keys in SIZES)
    if hidden % heads and not (config.get("head_dim") or family.head_dim):
        raise CourseError(f"{heads} heads do not divide a hidden_size of {hidden}: correct one, or state head_dim.")
    size = _whole(config, "head_dim", default=family.head_dim or hidden // heads)
    head_size = None if size * heads == hidden else size
    if _whole(config, "word_embed_proj_dim", default=hidden) != hidden:
        raise _beyond("word_embed_proj_dim", "embeddings of another width")
    if family.experts and _whole(config, "decoder_sparse_step", default=1) > 1:
        raise _beyond("decoder_sparse_step", "layers without experts")
    if sequence_length is None:
        sequence_length = _whole(config, "max_position_embeddings", "n_positions") - family.unused
    tied = config.get("tie_word_embeddings", family.tied)
    if not isinstance(tied, bool):
        raise CourseError(f"tie_word_embeddings must be true or false, not {tied!r:.40}.")
    ffn = _whole(config, family.ffn, default=4 * hidden if name == "gpt2" else None)
    kv_heads = _whole(config, "num_key_value_heads", default=heads if name == "llama" or not family.gated else None)
    window = _window(config, family, layers, sequence_length)
    sizes = (layers, hidden, heads, vocabulary, sequence_length, ffn, kv_heads, head_size, window)
    model = Transformer(*sizes, gated=family.gated, tied=tied)
    if not family.experts:
        return model
    experts, used = _whole(config, "num_local_experts", "num_experts"), _whole(config, "num_experts_per_tok")
    return replace(model, experts=experts, experts_per_token=used)


def _window(config: dict, family: Family, layers: int, length: int) -> int | None:
    """Tokens that a token attends to, in a model whose layers agree on that."""
    if family.windowed == "no" or config.get("sliding_window", family.window) is None:
        return None
    window, kinds = _whole(config, "sliding_window", default=family.window), config.get("layer_types")
    number = layers if family.windowed == "all" else (layers + 1) // 2
    if family.windowed == "last":
        first = _whole(config, "max_window_layers", default=28, least=0)
        number = max(0, layers - first) if config.get("use_sliding_window") else 0
    if isinstance(kinds, list):
        number = kinds.count("sliding_attention")
    if 0 < number < layers and window < length:
        raise _beyond("sliding_window", f"{number} of {layers} layers with a window of {window:,} tokens")
    return window if number else None


def _whole(config: dict, *keys: str, default: int | None = None, least: int = 1) -> int:
    """The number under the first of these keys that has one."""
    for key in keys:
        if (value := config.get(key)) is not None:
            if type(value) is not int or value < least:
                raise CourseError(f"{key} must be a whole number of at least {least}, not {value!r:.40}.")
            return value
    if default is None:
        raise CourseError(f"the key {' or '.join(keys)} is missing; add it, or give the model's own config.json.")
    return default


def _beyond(key: str, meaning: str) -> CourseError:
    return CourseError(f"{key} means {meaning}, which the planner does not model; describe a similar one by numbers.")

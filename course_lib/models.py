"""The course's few Keras models: functional, seeded, the same on every backend.

Needs Keras. Every model returns logits. Layer names are fixed, so a variable
has the same path in every run and two runs can be compared by path; each layer
draws its initial weights from the given seed alone, so they do not depend on
the strategy, the number of replicas or anything else that the program has drawn. (The
TensorFlow and JAX backends draw different numbers from one seed.)
"""

import itertools
from collections.abc import Callable

import keras

from course_lib.errors import CourseError

BATCH_NORMS = (None, "local", "synchronized")
BLOCK_KERNELS = 6  # query, key, value and output of the attention, and two of the feed-forward layer


def mlp(input_shape: tuple[int, ...], classes: int, width: int = 128, *, seed: int = 0) -> keras.Model:
    """One hidden layer, as in TensorFlow's beginner tutorial (without its dropout).

    input_shape  of one example, such as (8, 8, 1)
    width        units of the hidden layer
    Returns      images (b, *input_shape) float32 -> logits (b, classes)
    """
    draw = _seeds(seed)
    inputs = keras.Input(input_shape, name="image")
    x = keras.layers.Flatten(name="flatten")(inputs)
    x = _dense(width, draw, "hidden", activation="relu")(x)
    return keras.Model(inputs, _dense(classes, draw, "logits")(x), name="mlp")


def cnn(
    input_shape: tuple[int, int, int],
    classes: int,
    *,
    filters: tuple[int, ...] = (32, 64),
    width: int = 64,
    batch_norm: str | None = None,
    seed: int = 0,
) -> keras.Model:
    """Convolution and pooling, then one hidden layer, as in TensorFlow's CNN and distribution tutorials.

    input_shape  (h, w, c) of one image; each of the stages halves h and w
    filters      channels of each stage
    width        units of the hidden layer
    batch_norm   None; "local": each replica normalises with its own shard's
                 statistics; "synchronized": with those of the global batch
                 (on JAX both are the global batch's)
    Returns      images (b, h, w, c) float32 -> logits (b, classes)
    Raises       CourseError for another batch_norm, or an image too small for the stages
    """
    if batch_norm not in BATCH_NORMS:
        raise CourseError(f"cnn() has batch_norm None, 'local' or 'synchronized', not {batch_norm!r}.")
    if min(input_shape[:2]) < 2 ** len(filters):
        raise CourseError(
            f"{len(filters)} stages halve the image {len(filters)} times, so it needs {2 ** len(filters)} pixels "
            f"or more on each side; this one has {input_shape[0]} x {input_shape[1]}: pass fewer filters."
        )
    draw = _seeds(seed)
    x = inputs = keras.Input(input_shape, name="image")
    for stage, channels in enumerate(filters, 1):
        kernel = keras.initializers.GlorotUniform(seed=next(draw))
        # Normalisation subtracts the mean, and with it any bias, whose gradient would be rounding alone.
        x = keras.layers.Conv2D(
            channels, 3, padding="same", use_bias=not batch_norm, kernel_initializer=kernel, name=f"conv{stage}"
        )(x)
        if batch_norm:
            x = _batch_norm(batch_norm == "synchronized", f"norm{stage}")(x)
        x = keras.layers.ReLU(name=f"relu{stage}")(x)
        x = keras.layers.MaxPooling2D(name=f"pool{stage}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    x = _dense(width, draw, "hidden", activation="relu")(x)
    return keras.Model(inputs, _dense(classes, draw, "logits")(x), name="cnn")


def transformer(
    vocabulary: int,
    sequence_length: int,
    *,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    repeat: Callable | None = None,
    seed: int = 0,
) -> keras.Model:
    """A small causal language model: each position predicts the next token and sees none after itself.

    Pre-normalised blocks with learned positions, as in GPT-2 (Radford et al., 2019).

    vocabulary       number of tokens V
    sequence_length  tokens of one example, s
    layers           blocks of attention and a feed-forward layer of 4 * width units
    width            h; heads must divide it
    repeat           None writes the blocks out; otherwise repeat(make_block, times, name=...)
                     gives one layer for all of them, such as tpu.repeated.Repeated
    Returns          tokens (b, s) int32 -> logits (b, s, V)
    Raises           CourseError when heads does not divide width
    """
    if width % heads:
        raise CourseError(f"{heads} heads can't share a width of {width}: make the width a multiple of the heads.")
    draw = _seeds(seed)
    tokens = keras.Input((sequence_length,), dtype="int32", name="tokens")
    positions = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1
    x = _embedding(vocabulary, width, draw, "token_embedding")(tokens)
    x = x + _embedding(sequence_length, width, draw, "position_embedding")(positions)
    seeds, kind = [list(itertools.islice(draw, BLOCK_KERNELS)) for _ in range(layers)], x.dtype

    def make_block(number: int) -> keras.Model:
        one = keras.Input((sequence_length, width), dtype=kind, name="block_input")
        return keras.Model(one, _block(one, width, heads, iter(seeds[number]), "block"), name="block")

    if repeat is not None:
        x = repeat(make_block, layers, name="blocks")(x)
    for number, own in enumerate(seeds if repeat is None else [], 1):
        x = _block(x, width, heads, iter(own), f"block{number}")
    x = keras.layers.LayerNormalization(name="final_norm")(x)
    return keras.Model(tokens, _dense(vocabulary, draw, "logits")(x), name="transformer")


def _block(x, width: int, heads: int, draw, name: str):
    """(b, s, h) -> (b, s, h): attention, then the feed-forward layer, each added to its input."""
    normed = keras.layers.LayerNormalization(name=f"{name}_attention_norm")(x)
    # Four Dense layers, not MultiHeadAttention: it would start query, key and value equal from one seed.
    query, key, value = (
        keras.layers.Reshape((-1, heads, width // heads), name=f"{name}_{part}_heads")(
            _dense(width, draw, f"{name}_{part}")(normed)
        )
        for part in ("query", "key", "value")
    )  # (b, s, heads, h / heads)
    attended = keras.ops.dot_product_attention(query, key, value, is_causal=True)
    attended = keras.layers.Reshape((-1, width), name=f"{name}_join_heads")(attended)
    x = x + _dense(width, draw, f"{name}_attention_out")(attended)
    normed = keras.layers.LayerNormalization(name=f"{name}_mlp_norm")(x)
    wide = _dense(4 * width, draw, f"{name}_mlp_in", activation="gelu")(normed)
    return x + _dense(width, draw, f"{name}_mlp_out")(wide)


def _batch_norm(synchronized: bool, name: str) -> keras.layers.Layer:
    # Only TensorFlow's replicas keep separate statistics; on JAX a sharded batch is one batch.
    on_tensorflow = keras.backend.backend() == "tensorflow"
    return keras.layers.BatchNormalization(synchronized=synchronized and on_tensorflow, name=name)


def _dense(units: int, draw, name: str, activation: str | None = None) -> keras.layers.Layer:
    kernel = keras.initializers.GlorotUniform(seed=next(draw))
    return keras.layers.Dense(units, activation=activation, kernel_initializer=kernel, name=name)


def _embedding(rows: int, width: int, draw, name: str) -> keras.layers.Layer:
    table = keras.initializers.RandomNormal(stddev=0.02, seed=next(draw))
    return keras.layers.Embedding(rows, width, embeddings_initializer=table, name=name)


def _seeds(seed: int):
    """A different seed for each layer: two layers of one shape must not start equal."""
    return iter(range(1000 * seed, 1000 * seed + 1000))

"""Models and settings that the course does not use: what the training helpers must equal, or refuse.

A member says how its model, its compile() and its data are made, and nothing of what should come out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

ROWS, BATCH = 31, 8  # the last batch has 7 rows, which no number of replicas divides
WIDTH, CLASSES, TOKENS = 6, 4, 5


@dataclass(frozen=True)
class Member:
    """One model with its settings.

    make      (class) -> a model of that class, or of a class of its own that has it among its bases
    data      x, y, sample weights (or None), NumPy
    settings  () -> the arguments of compile() but the optimizer
    optimizer () -> an optimizer
    fit       further arguments of fit()
    """

    make: Callable
    data: tuple
    settings: Callable[[], dict]
    optimizer: Callable = lambda: keras.optimizers.SGD(0.1, momentum=0.9)
    fit: dict = field(default_factory=dict)


DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(ROWS, WIDTH)).astype("float32")
X2 = DRAW.normal(size=(ROWS, 3)).astype("float32")
Y = DRAW.integers(0, CLASSES, ROWS)
VALUES = DRAW.normal(size=(ROWS, 1)).astype("float32")
WEIGHTS = DRAW.uniform(0.2, 3, ROWS).astype("float32")
WORDS = np.where(DRAW.random((ROWS, TOKENS)) < 0.3, 0, DRAW.integers(1, 9, (ROWS, TOKENS)))
NEXT = DRAW.integers(0, 9, (ROWS, TOKENS))


def classify(**loss) -> Callable[[], dict]:
    return lambda: {
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True, **loss),
        "metrics": ["accuracy"],
    }


def chain(*parts, width=WIDTH) -> Callable:
    """A functional model: () -> layer for each part, on one input."""

    def make(kind):
        hidden = inputs = keras.Input((width,))
        for part in parts:
            hidden = part()(hidden)
        return kind(inputs, hidden)

    return make


def dense(units, **settings):
    return lambda: layers.Dense(units, kernel_initializer=keras.initializers.GlorotUniform(seed=units), **settings)


PLAIN = chain(dense(8, activation="relu"), dense(CLASSES))


def two_and_two(kind, names=("a", "b"), as_dict=False):
    one, other = keras.Input((WIDTH,), name="one"), keras.Input((3,), name="other")
    hidden = layers.Concatenate()([dense(7, activation="tanh")()(one), dense(5)()(other)])
    ends = [
        layers.Dense(units, name=name, kernel_initializer=keras.initializers.GlorotUniform(seed=9))(hidden)
        for name, units in zip(names, (CLASSES, 1))
    ]
    return kind([one, other], dict(zip(names, ends)) if as_dict else ends)


def shared(kind):
    one, other = keras.Input((WIDTH,)), keras.Input((WIDTH,))
    tower = dense(6, activation="relu")()
    return kind([one, other], dense(CLASSES)()(layers.Subtract()([tower(one), tower(other)])))


def frozen(kind):
    model = PLAIN(kind)
    model.layers[1].trainable = False
    return model


def words(end, mask_zero=True):
    def make(kind):
        inputs = keras.Input((TOKENS,), dtype="int32")
        start = keras.initializers.RandomUniform(seed=3)
        hidden = layers.Embedding(9, 6, mask_zero=mask_zero, embeddings_initializer=start)(inputs)
        return kind(inputs, end(hidden))

    return make


def every_word(hidden):
    return dense(9)()(hidden)


def recurrent(hidden):
    cell = layers.LSTM(6, kernel_initializer=keras.initializers.GlorotUniform(seed=4), recurrent_initializer="identity")
    return dense(CLASSES)()(cell(hidden))


class Penalty(layers.Layer):
    """Adds a mean over rows to the loss, and passes its input on."""

    def call(self, inputs):
        self.add_loss(0.3 * ops.mean(ops.square(inputs)))
        return inputs


def subclassed(kind):
    class Own(kind):
        def __init__(self):
            super().__init__()
            self.hidden, self.end = dense(8, activation="relu")(), dense(CLASSES)()

        def call(self, inputs):
            return self.end(self.hidden(inputs))

    model = Own()
    model(X[:2])
    return model


def own_metrics(kind):
    class Own(kind):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            self.mine = keras.metrics.Mean(name="mine")

        @property
        def metrics(self):
            return [self.mine, *super().metrics]

    return PLAIN(Own)


def unbuilt(kind):
    class Own(kind):
        def __init__(self):
            super().__init__(name="unbuilt")
            self.end = dense(CLASSES)()

        def call(self, inputs):
            return self.end(inputs)

    return Own()


SQUARES = {"loss": "mse"}
TWO = ([X, X2], [Y, VALUES], None)
TWO_LOSSES = [keras.losses.SparseCategoricalCrossentropy(from_logits=True), keras.losses.MeanSquaredError()]
NAMED = {"a": Y, "b": VALUES}

ZOO = {
    "plain": Member(PLAIN, (X, Y, None), classify()),
    "L1 and L2 regularizers": Member(
        chain(
            dense(8, activation="relu", kernel_regularizer=keras.regularizers.L1L2(0.01, 0.05)),
            dense(CLASSES, bias_regularizer=keras.regularizers.L2(0.1)),
        ),
        (X, Y, None),
        classify(),
    ),
    # A mean over rows since Keras 3.14 or 3.15; 3.13, which sums over rows, gives replicas another penalty.
    "an activity regularizer": Member(
        chain(dense(8), dense(CLASSES, activity_regularizer=keras.regularizers.L2(0.1))), (X, Y, None), classify()
    ),
    "add_loss in a layer": Member(chain(dense(8), Penalty, dense(CLASSES)), (X, Y, None), classify()),
    "add_loss without labels": Member(chain(dense(8), Penalty), (X, None, None), dict),
    "two inputs, two outputs, lists": Member(two_and_two, TWO, lambda: {"loss": list(TWO_LOSSES)}),
    "two outputs, dicts": Member(
        lambda kind: two_and_two(kind, as_dict=True),
        ([X, X2], NAMED, None),
        lambda: {"loss": dict(zip("ab", TWO_LOSSES)), "loss_weights": {"a": 1.0, "b": 0.3}},
    ),
    "an output without a loss": Member(
        lambda kind: two_and_two(kind, as_dict=True), ([X, X2], {"a": Y}, None), lambda: {"loss": {"a": TWO_LOSSES[0]}}
    ),
    "a shared layer": Member(shared, ([X, X[::-1]], Y, None), classify()),
    "frozen layers": Member(frozen, (X, Y, None), classify()),
    "a subclassed model": Member(subclassed, (X, Y, None), classify()),
    "a model that is not built": Member(unbuilt, (X, Y, None), classify()),
    "metrics of its own": Member(own_metrics, (X, Y, None), classify()),
    "a metric that is a vector": Member(
        chain(dense(CLASSES, activation="softmax")),
        (X, np.eye(CLASSES, dtype="float32")[Y], None),
        lambda: {"loss": "categorical_crossentropy", "metrics": [keras.metrics.F1Score(average=None)]},
    ),
    "sample weights": Member(PLAIN, (X, Y, WEIGHTS), classify()),
    "class weights": Member(PLAIN, (X, Y, None), classify(), fit={"class_weight": {0: 0.5, 1: 2.0, 2: 1.0, 3: 3.0}}),
    "a mean over sample weights": Member(PLAIN, (X, Y, WEIGHTS), classify(reduction="mean_with_sample_weight")),
    "a sum for a loss": Member(
        PLAIN, (X, Y, None), classify(reduction="sum"), optimizer=lambda: keras.optimizers.SGD(0.01)
    ),
    "tokens": Member(words(every_word, mask_zero=False), (WORDS, NEXT, None), classify()),
    "tokens with a mask": Member(words(every_word), (WORDS, NEXT, None), classify()),
    "an LSTM over a mask": Member(words(recurrent), (WORDS, Y, None), classify()),
    "synchronized batch normalization": Member(
        chain(dense(8, use_bias=False), lambda: layers.BatchNormalization(synchronized=True), dense(CLASSES)),
        (X, Y, None),
        classify(),
    ),
    "batch normalization": Member(
        chain(dense(8, use_bias=False), layers.BatchNormalization, dense(CLASSES)), (X, Y, None), classify()
    ),
    "group normalization": Member(
        chain(dense(8), lambda: layers.GroupNormalization(2), dense(CLASSES)), (X, Y, None), classify()
    ),
    "averages, decay and a schedule": Member(
        PLAIN,
        (X, Y, None),
        classify(),
        optimizer=lambda: keras.optimizers.AdamW(
            keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.7), weight_decay=0.1, use_ema=True, ema_momentum=0.5
        ),
    ),
    "clipping": Member(
        PLAIN, (X, Y, None), classify(), optimizer=lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05)
    ),
}


def batches(member: Member, size: int = BATCH) -> tf.data.Dataset:
    """Its rows in order, the last batch smaller."""
    x, y, weights = member.data
    parts = tuple(part if not isinstance(part, list) else tuple(part) for part in (x, y, weights) if part is not None)
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else (parts[0],)).batch(size)

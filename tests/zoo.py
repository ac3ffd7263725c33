"""Models and settings that the course does not use: what the training helpers must equal, or refuse.

A member says how its model, its compile() and its data are made, and nothing of what should come out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

ROWS, BATCH = 31, 8  # the last batch has 7 rows, which no number of replicas divides
WIDTH, CLASSES, TOKENS = 6, 4, 5


class Ragged(NamedTuple):
    """Rows of several lengths, before TensorFlow has started."""

    values: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class Member:
    """One model with its settings.

    make      (class) -> a model of that class, or of a class of its own that has it among its bases
    data      x, y, sample weights (or None), NumPy
    settings  () -> the arguments of compile() but the optimizer
    optimizer () -> an optimizer
    fit       further arguments of fit()
    relative  the tolerance of its weights and losses, as compare takes it
    prepare   what is done to the optimizer, wrapped or not, before it is built
    long      it takes a minute or more to trace: in the table alone, not in CI
    """

    make: Callable
    data: tuple
    settings: Callable[[], dict]
    optimizer: Callable = lambda: keras.optimizers.SGD(0.1, momentum=0.9)
    fit: dict = field(default_factory=dict)
    prepare: Callable = lambda optimizer: None
    long: bool = False
    relative: float = 2e-5

    def new_optimizer(self, wrap=lambda optimizer: optimizer):
        optimizer = wrap(self.optimizer())
        self.prepare(optimizer)
        return optimizer


DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(ROWS, WIDTH)).astype("float32")
X2 = DRAW.normal(size=(ROWS, 3)).astype("float32")
Y = DRAW.integers(0, CLASSES, ROWS)
VALUES = DRAW.normal(size=(ROWS, 1)).astype("float32")
WEIGHTS = DRAW.uniform(0.2, 3, ROWS).astype("float32")
WORDS = np.where(DRAW.random((ROWS, TOKENS)) < 0.3, 0, DRAW.integers(1, 9, (ROWS, TOKENS)))
NEXT = DRAW.integers(0, 9, (ROWS, TOKENS))
IMAGES = DRAW.normal(size=(ROWS, 32, 32, 3)).astype("float32")
LINES = DRAW.integers(0, 64, (ROWS, 24))
LENGTHS = DRAW.integers(1, 6, ROWS)


def classify(**loss) -> Callable[[], dict]:
    return lambda: {
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True, **loss),
        "metrics": ["accuracy"],
    }


def chain(*parts, shape=(WIDTH,)) -> Callable:
    """A functional model: () -> layer for each part, on one input."""

    def make(kind):
        hidden = inputs = keras.Input(shape)
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


def own_train_step(kind):
    class Own(kind):
        """Keras' guide "Customizing what happens in fit()", with a loss of its own."""

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = self.compute_loss(x, y, outputs) + 0.1 * ops.mean(ops.square(outputs))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            for metric in self.metrics:
                metric.update_state(*([loss] if metric.name == "loss" else [y, outputs]))
            return {metric.name: metric.result() for metric in self.metrics}

    return PLAIN(Own)


class Scaled(layers.Layer):
    """Holds a variable that is TensorFlow's, which Keras neither trains nor lists."""

    def build(self, shape):
        self.scale = tf.Variable(0.7, trainable=False)

    def call(self, inputs):
        return self.scale * inputs


def ragged(kind):
    inputs = keras.Input((None,), dtype="int32", ragged=True)
    start = keras.initializers.RandomUniform(seed=3)
    hidden = layers.Embedding(9, 6, embeddings_initializer=start)(inputs)
    return kind(inputs, dense(CLASSES)()(layers.Lambda(lambda rows: ops.mean(rows, axis=1))(hidden)))


def resnet(kind):
    """Its statistics are frozen, as in fine-tuning; those of a batch are another member."""
    net = keras.applications.ResNet50(weights=None, include_top=False, input_shape=IMAGES.shape[1:], pooling="avg")
    for layer in net.layers:
        layer.trainable = not isinstance(layer, layers.BatchNormalization)
    return kind(net.input, dense(CLASSES)()(net.output))


def transformer(kind, blocks=6, width=128, heads=8):
    """Six decoder blocks of width 128, where the lessons train two of 64; 1.2 million parameters."""
    inputs = keras.Input((LINES.shape[1],), dtype="int32")
    hidden = layers.Embedding(64, width)(inputs)
    for _ in range(blocks):
        normed = layers.LayerNormalization()(hidden)
        attention = layers.MultiHeadAttention(
            heads, width // heads, use_bias=False
        )  # a key's gradient would be rounding
        hidden = hidden + attention(normed, normed, use_causal_mask=True)
        wide = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(hidden))
        hidden = hidden + layers.Dense(width)(wide)
    return kind(inputs, layers.Dense(64)(layers.LayerNormalization()(hidden)))


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
    "spectral normalization": Member(
        chain(dense(8), lambda: layers.SpectralNormalization(dense(8)()), dense(CLASSES)), (X, Y, None), classify()
    ),
    "dropout": Member(
        chain(dense(8, activation="relu"), lambda: layers.Dropout(0.5, seed=1), dense(CLASSES)),
        (X, Y, None),
        classify(),
    ),
    "augmentation": Member(
        chain(
            lambda: layers.RandomTranslation(0.3, 0.3, seed=1), layers.Flatten, dense(CLASSES), shape=IMAGES.shape[1:]
        ),
        (IMAGES, Y, None),
        classify(),
        optimizer=lambda: keras.optimizers.SGD(0.001),
    ),
    "ragged input": Member(ragged, (Ragged(np.arange(LENGTHS.sum()) % 9, LENGTHS), Y, None), classify()),
    "a train_step of its own": Member(own_train_step, (X, Y, None), classify()),
    "a variable that is TensorFlow's": Member(chain(dense(8), Scaled, dense(CLASSES)), (X, Y, None), classify()),
    # Rounding turns a ReLU, and a bias of the last blocks moves by a hundredth. Uneven shards move them by a tenth.
    "ResNet50": Member(
        resnet, (IMAGES, Y, None), classify(), optimizer=lambda: keras.optimizers.SGD(0.001), long=True, relative=2e-2
    ),
    "a larger transformer": Member(
        transformer,
        (LINES, np.roll(LINES, -1, axis=1), None),
        classify(),
        optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        long=True,
    ),
    "averages, decay and a schedule": Member(
        PLAIN,
        (X, Y, None),
        classify(),
        optimizer=lambda: keras.optimizers.AdamW(
            keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.7), weight_decay=0.1, use_ema=True, ema_momentum=0.5
        ),
    ),
    "variables that do not decay": Member(
        PLAIN,
        (X, Y, None),
        classify(),
        optimizer=lambda: keras.optimizers.SGD(0.1, weight_decay=0.5),
        prepare=lambda optimizer: optimizer.exclude_from_weight_decay(var_names=["bias"]),
    ),
    "a loss scale": Member(
        PLAIN,
        (X, Y, None),
        classify(),
        optimizer=lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**10),
    ),
    "clipping": Member(
        PLAIN, (X, Y, None), classify(), optimizer=lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05)
    ),
}


def batches(member: Member, size: int = BATCH) -> tf.data.Dataset:
    """Its rows in order, the last batch smaller."""

    def as_tensors(part):
        part = tf.RaggedTensor.from_row_lengths(*part) if isinstance(part, Ragged) else part
        return tuple(part) if isinstance(part, list) else part

    parts = tuple(as_tensors(part) for part in member.data if part is not None)
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else (parts[0],)).batch(size)


@dataclass(frozen=True)
class Use:
    """What somebody does with a compiled model: do(model, its batches, a folder) -> the numbers that it shows."""

    do: Callable
    member: Member = ZOO["plain"]


def fit(model, rows, *callbacks, **settings) -> dict:
    return model.fit(rows, epochs=3, shuffle=False, verbose=0, callbacks=list(callbacks), **settings).history


def validated(model, rows, *callbacks) -> list:
    """The loss of each epoch and of its validation, whose batches are uneven too."""
    history = fit(model, rows, *callbacks, validation_data=rows.unbatch().skip(5).batch(BATCH))
    return [history["loss"], history["val_loss"], history["val_accuracy"]]


def evaluated(model, rows, folder):
    fit(model, rows)
    return [list(model.evaluate(rows, verbose=0, return_dict=True).values())]


def uneven_at_once(model, rows, folder):
    return [list(model.evaluate(rows.unbatch().take(9).batch(9), verbose=0, return_dict=True).values())]


def predicted(model, rows, folder):
    fit(model, rows)
    return [model.predict(rows.map(lambda x, y: x), verbose=0)]


def batch_by_batch(model, rows, folder):
    for x, y in rows.as_numpy_iterator():
        model.train_on_batch(x, y)
    return []


def best_again(model, rows, folder):
    """The weights of the first epoch, written by a callback, in the place of the last's."""
    path = str(folder / "first.weights.h5")
    fit(model, rows, keras.callbacks.ModelCheckpoint(path, save_weights_only=True, monitor="loss", mode="max"))
    model.load_weights(path)
    return []


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


def interrupted(model, rows, folder):
    backup = keras.callbacks.BackupAndRestore(str(folder))
    try:
        fit(model, rows, backup, Stop())
    except KeyboardInterrupt:
        model.set_weights([0 * value for value in model.get_weights()])
    return [fit(model, rows, keras.callbacks.BackupAndRestore(str(folder)))["loss"]]


def logged(model, rows, folder):
    losses = fit(model, rows, keras.callbacks.TensorBoard(str(folder)))["loss"]
    events = [event for file in folder.rglob("*train/*") for event in tf.compat.v1.train.summary_iterator(str(file))]
    values = [(event.step, value) for event in events for value in event.summary.value if value.tag == "epoch_loss"]
    return [losses, [float(tf.make_ndarray(value.tensor)) for _, value in sorted(values, key=lambda pair: pair[0])]]


def slowed(model, rows, folder):
    return [fit(model, rows, keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=9))["learning_rate"]]


def stopped_early(model, rows, folder):
    early = keras.callbacks.EarlyStopping("val_loss", min_delta=9, patience=1, restore_best_weights=True)
    return validated(model, rows, early)


def swapped(model, rows, folder):
    return validated(model, rows, keras.callbacks.SwapEMAWeights(swap_on_epoch=True))


USES = {
    "fit with validation": Use(lambda model, rows, folder: validated(model, rows)),
    "evaluate": Use(evaluated),
    "evaluate, an uneven first batch": Use(uneven_at_once),
    "predict": Use(predicted),
    "train_on_batch": Use(batch_by_batch),
    "fit with EarlyStopping": Use(stopped_early),
    "fit with ModelCheckpoint": Use(best_again),
    "fit with BackupAndRestore": Use(interrupted),
    "fit with TensorBoard": Use(logged),
    "fit with ReduceLROnPlateau": Use(slowed),
    "fit with SwapEMAWeights": Use(
        swapped,
        Member(PLAIN, (X, Y, None), classify(), lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)),
    ),
}

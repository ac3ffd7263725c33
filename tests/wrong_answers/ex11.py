"""Exercise 11, q4: trainings that miss the goal. Needs Keras on TensorFlow."""

import contextlib

import keras
import tensorflow as tf


def _train(in_scope=True, batch=128, epochs=1, rate=0.1, hidden=(), more_updates=0, change=lambda images: images):
    """A small classifier on the digits, with one thing wrong; more_updates are counted and, to be quick, not made.

    change  what is done to the images, and not by the model
    """

    def train(strategy, images, labels):
        keras.utils.set_random_seed(0)
        images = change(images)
        with strategy.scope() if in_scope else contextlib.nullcontext():
            layers = [
                keras.Input(images.shape[1:]),
                keras.layers.Flatten(),
                *(keras.layers.Dense(n, "relu") for n in hidden),
            ]
            model = keras.Sequential([*layers, keras.layers.Dense(10)])
            optimizer = keras.optimizers.SGD(rate, momentum=0.9)
            model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(images, labels, batch_size=batch, epochs=epochs, verbose=0)
        optimizer.iterations.assign_add(more_updates)
        return model

    return train


def _copied(compiled):
    """A mirrored model, compiled or not, gets the weights of another one, which was trained on one device."""

    def train(strategy, images, labels):
        trained = _train(in_scope=False)(strategy, images, labels)
        with strategy.scope():
            model = keras.Sequential.from_config(trained.get_config())
            if compiled:
                model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.set_weights(trained.get_weights())
        return model

    return train


def _not_summed(updates=60):
    """A loop whose optimizer updates each replica's copy by that replica's own gradients."""

    def train(strategy, images, labels):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential([keras.Input(images.shape[1:]), keras.layers.Flatten(), keras.layers.Dense(10)])
            optimizer = keras.optimizers.SGD(0.5)
            model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            optimizer.build(model.trainable_variables)
        optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars

        def replica_step(x, y):
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
                loss = tf.reduce_mean(losses)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        @tf.function(autograph=False)
        def step(batch):
            strategy.run(replica_step, args=batch)

        rows = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(128).take(updates)
        for batch in strategy.experimental_distribute_dataset(rows):
            step(batch)
        return model

    return train


WRONG = {
    ("q4", "outside the scope"): _train(in_scope=False),
    ("q4", "copies differ"): _not_summed(),
    ("q4", "over the budget"): _train(more_updates=700),
    ("q4", "diverged"): _train(rate=1e4, hidden=(16,)),
    ("q4", "learned by heart"): _train(batch=480, epochs=25, rate=0.3, hidden=(128,)),
    ("q4", "hardly trained"): _train(epochs=2, rate=0.03),
    ("q4", "not learned yet"): _train(epochs=16, rate=0.03),
    ("q4", "not compiled"): _copied(compiled=False),
    ("q4", "trained elsewhere"): _copied(compiled=True),
    ("q4", "other images"): _train(change=lambda images: images.repeat(2, axis=1).repeat(2, axis=2)),
}

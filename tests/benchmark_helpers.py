"""The library's helpers against the same thing written by hand in plain TensorFlow.

Prints ratios of medians, measured in turns in one run: `python tests/benchmark_helpers.py`.
A helper should cost at most 1.03 times the hand-written form.
"""

import keras
import numpy as np
import tensorflow as tf

from course_lib import data, devices, measure, models, training

GLOBAL_BATCH, REPEATS = 256, 200
NAMES = devices.simulate(4).names
per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def new_optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def by_hand_single(model, optimizer):
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(per_example_loss(y, model(x, training=True)))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    return step


def by_hand_replicated(strategy, model, optimizer):
    with strategy.scope():
        optimizer.build(model.trainable_variables)

    def replica_step(x, y):
        rows = tf.distribute.get_replica_context().all_reduce("SUM", tf.shape(y)[0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(per_example_loss(y, model(x, training=True))) / tf.cast(rows, tf.float32)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    return step


def by_hand_pipeline(images, labels):
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).cache().shuffle(len(images), seed=0)
    dataset = dataset.batch(GLOBAL_BATCH, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE)
    scale = lambda x, y: (tf.cast(x, tf.float32) / 255, y)  # noqa: E731
    return dataset.map(scale, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def steps() -> dict[str, tuple]:
    """Name to (by hand, helper)."""
    x, y = (part[:GLOBAL_BATCH] for part in data.arrays("digits", "train"))
    x, y = tf.constant(x), tf.constant(y)
    single = [
        make(models.cnn((8, 8, 1), 10), new_optimizer())
        for make in (
            by_hand_single,
            lambda model, optimizer: training.single_device_step(model, optimizer, per_example_loss),
        )
    ]
    strategy = tf.distribute.MirroredStrategy(NAMES)
    batch = next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors((x, y)))))
    with strategy.scope():
        made = [(models.cnn((8, 8, 1), 10), new_optimizer()) for _ in range(2)]
    replicated = (
        by_hand_replicated(strategy, *made[0]),
        training.replicated_step(strategy, *made[1], per_example_loss),
    )
    images, labels = np.zeros((4096, 8, 8, 1), "uint8"), np.zeros(4096, "int64")
    helper = data.input_pipeline(
        tf.data.Dataset.from_tensor_slices((images, labels)), GLOBAL_BATCH, shuffle_seed=0, say=lambda line: None
    )
    iterators = [iter(pipeline.repeat()) for pipeline in (by_hand_pipeline(images, labels), helper)]
    return {
        "single_device_step": tuple(lambda step=step: step(x, y) for step in single),
        "replicated_step": tuple(lambda step=step: step(batch) for step in replicated),
        "input_pipeline": tuple(lambda iterator=iterator: next(iterator) for iterator in iterators),
    }


if __name__ == "__main__":
    for name, (by_hand, helper) in steps().items():
        race = measure.side_by_side({"by hand": by_hand, name: helper}, warmup=20, repeats=REPEATS)
        print(f"{name}: {race.ratio(name, 'by hand'):.3f} times the step by hand (median of {REPEATS} pairs)")

"""Train a Keras model with fit on all GPUs of this machine.

By hand:     python train.py --data data.npz --folder run
Slurm:       srun --nodes=1 --gpus-per-node=4 python train.py --data data.npz --folder run
Kubernetes:  the same command in one pod, with nvidia.com/gpu: 4 among its limits
Colab:       !python train.py --data data.npz --folder run    (one GPU is one replica)
No GPUs:     --cpus 4 makes four devices of the CPU.

Run it again after an interruption, and it goes on after the last whole epoch, as if nothing had happened.
"""

import argparse
import os

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help=".npz with x (rows, 8, 8, 1) and y (rows,)")
parser.add_argument("--folder", required=True, help="where checkpoints and model.keras go")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--global-batch", type=int, default=64, help="rows of all replicas together")
parser.add_argument("--cpus", type=int, help="devices to make of the CPU, in place of GPUs")
arguments = parser.parse_args()
os.makedirs(arguments.folder, exist_ok=True)  # now, and not when there is a model to lose

names = None  # all GPUs, or one replica where there is none
if arguments.cpus:  # before anything else starts TensorFlow
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * arguments.cpus)
    names = [f"CPU:{place}" for place in range(arguments.cpus)]
strategy = tf.distribute.MirroredStrategy(names)
print(f"{strategy.num_replicas_in_sync} replicas")
if arguments.global_batch % strategy.num_replicas_in_sync:
    raise SystemExit("--global-batch must be a multiple of the replicas")


def new_model():
    """Yours goes here."""
    return keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )


with np.load(arguments.data) as data:
    x, y = tf.constant(data["x"]), tf.constant(data["y"])
steps = len(x) // arguments.global_batch  # an epoch, of full batches: all replicas get as many rows as the others


def batches(first):
    """All epochs from this one on, each in an order of its own, which is the same after an interruption."""
    epochs = range(first, max(first + 1, arguments.epochs))
    orders = [np.random.default_rng([0, epoch]).permutation(len(x)) for epoch in epochs]
    kept = np.concatenate([order[: steps * arguments.global_batch] for order in orders])
    at = tf.data.Dataset.from_tensor_slices(kept).batch(arguments.global_batch, drop_remainder=True)
    rows = at.map(lambda places: (tf.gather(x, places), tf.gather(y, places)), tf.data.AUTOTUNE)
    return rows.prefetch(tf.data.AUTOTUNE)


keras.utils.set_random_seed(0)
with strategy.scope():
    model = new_model()
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)  # so that its state is restored, too
checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
checkpoints = tf.train.CheckpointManager(checkpoint, os.path.join(arguments.folder, "checkpoint"), max_to_keep=2)
checkpoints.restore_or_initialize()
done = int(model.optimizer.iterations.numpy()) // steps  # epochs
save = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: checkpoints.save())
settings = dict(initial_epoch=done, epochs=arguments.epochs, steps_per_epoch=steps, callbacks=[save], shuffle=False)
model.fit(batches(done), verbose=2, **settings)
model.save(os.path.join(arguments.folder, "model.keras"))

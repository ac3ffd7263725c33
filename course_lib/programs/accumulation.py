"""Train with a batch larger than memory: every replica adds up the gradients of several micro-batches.

By hand:     python train.py --data data.npz --folder run
Slurm:       srun --nodes=1 --gpus-per-node=4 python train.py --data data.npz --folder run
Kubernetes:  the same command in one pod, with nvidia.com/gpu: 4 among its limits
Colab:       !python train.py --data data.npz --folder run    (one GPU is one replica)
No GPUs:     --cpus 4 makes four devices of the CPU.

Run it again after an interruption, and it goes on after the last checkpoint, as if nothing had happened.
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
parser.add_argument("--micro-batches", type=int, default=4, help="of a replica in a step; memory holds one")
parser.add_argument("--save-steps", type=int, default=10, help="steps between two checkpoints")
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
if arguments.global_batch % (strategy.num_replicas_in_sync * arguments.micro_batches):
    raise SystemExit("--global-batch must be a multiple of the replicas times --micro-batches")


def new_model():
    """Yours goes here."""
    return keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )


with np.load(arguments.data) as data:
    x, y = data["x"], data["y"]
steps = len(x) // arguments.global_batch  # an epoch


def batches(epoch, first):
    """The order depends on the epoch alone, so that a run which goes on takes the rows that are left."""
    order = np.random.default_rng([0, epoch]).permutation(len(x))
    rows = tf.data.Dataset.from_tensor_slices((x[order], y[order])).batch(arguments.global_batch, drop_remainder=True)
    return strategy.experimental_distribute_dataset(rows.skip(first).prefetch(tf.data.AUTOTUNE))


keras.utils.set_random_seed(0)
with strategy.scope():
    model, optimizer = new_model(), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)  # inside the step it would fail (Keras issue 23085)
per_row = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def step(batch):
    def on_a_replica(x, y):
        micro_batch = tf.shape(x)[0] // arguments.micro_batches
        sums = [tf.zeros_like(variable) for variable in model.trainable_variables]
        loss_sum = 0.0
        for place in tf.range(arguments.micro_batches):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)  # or ten would be in memory at once
            rows = slice(place * micro_batch, (place + 1) * micro_batch)
            with tf.GradientTape() as tape:
                losses = per_row(y[rows], model(x[rows], training=True))
                loss = tf.nn.compute_average_loss(losses, global_batch_size=arguments.global_batch)
                for penalty in model.losses:  # of regularizers: once a step
                    loss += tf.nn.scale_regularization_loss(penalty) / arguments.micro_batches
            gradients = tape.gradient(loss, model.trainable_variables)
            sums = [total + gradient for total, gradient in zip(sums, gradients)]
            loss_sum += loss
        optimizer.apply_gradients(zip(sums, model.trainable_variables))  # sums them over the replicas, once a step
        return loss_sum

    return strategy.reduce("SUM", strategy.run(on_a_replica, args=batch), axis=None)


checkpoints = tf.train.CheckpointManager(
    tf.train.Checkpoint(model=model, optimizer=optimizer), os.path.join(arguments.folder, "checkpoint"), max_to_keep=2
)
checkpoints.restore_or_initialize()
done = int(optimizer.iterations.numpy())
for epoch in range(done // steps, arguments.epochs):
    for batch in batches(epoch, first=done % steps):
        loss, done = step(batch), done + 1
        if done % arguments.save_steps == 0:
            checkpoints.save()
    print(f"epoch {epoch + 1}: step {done}, loss {float(loss):.4f}")
model.save(os.path.join(arguments.folder, "model.keras"))

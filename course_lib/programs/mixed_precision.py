"""Train in half precision with a loop of your own on all GPUs of this machine.

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
policies = ["mixed_bfloat16", "mixed_float16", "float32"]  # bfloat16 from the A100 on and TPUs, float16 on V100, T4
parser.add_argument("--policy", choices=policies, default="mixed_bfloat16")
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
if arguments.global_batch % strategy.num_replicas_in_sync:
    raise SystemExit("--global-batch must be a multiple of the replicas")


keras.config.set_dtype_policy(arguments.policy)  # before the model is made


def new_model():
    """Yours goes here; its last layer computes in float32, and rounds no logits."""
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu")]
    return keras.Sequential([*layers, keras.layers.Dense(10, dtype="float32")])


class LossScale(keras.optimizers.LossScaleOptimizer):
    """Keras asks one replica whether its gradients are finite (Keras pull 18691); here all skip a step together."""

    def check_finite(self, gradients):
        overflowed = tf.cast(tf.logical_not(super().check_finite(gradients)), tf.float32)
        return tf.equal(tf.distribute.get_replica_context().all_reduce("SUM", overflowed), 0.0)


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
    if arguments.policy == "mixed_float16":  # bfloat16 has float32's range and needs no scale
        optimizer = LossScale(optimizer)
    optimizer.build(model.trainable_variables)  # inside the step it would fail (Keras issue 23085)
per_row = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def step(batch):
    def on_a_replica(x, y):
        with tf.GradientTape() as tape:
            losses = per_row(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=arguments.global_batch)
            for penalty in model.losses:  # of regularizers: once, and not once a replica
                loss += tf.nn.scale_regularization_loss(penalty)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # unscales and sums them
        return loss

    return strategy.reduce("SUM", strategy.run(on_a_replica, args=batch), axis=None)


taken = tf.Variable(0)  # steps; the optimizer does not count those that it skips
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, taken=taken)
checkpoints = tf.train.CheckpointManager(checkpoint, os.path.join(arguments.folder, "checkpoint"), max_to_keep=2)
checkpoints.restore_or_initialize()
done = int(taken.numpy())
for epoch in range(done // steps, arguments.epochs):
    for batch in batches(epoch, first=done % steps):
        loss, done = step(batch), done + 1
        if done % arguments.save_steps == 0:
            taken.assign(done)
            checkpoints.save()
    print(f"epoch {epoch + 1}: step {done}, loss {float(loss):.4f}")
model.save(os.path.join(arguments.folder, "model.keras"))

"""Train asynchronously with parameter servers: one program for all tasks, each does what its task says.

By hand:     on each machine, with its own type (chief, worker, ps) and index:
             TF_CONFIG='{"cluster": {"chief": ["host0:12345"], "worker": ["host1:12345", "host2:12345"],
                                     "ps": ["host3:12345"]}, "task": {"type": "ps", "index": 0}}' \
               python train.py --data data.npz --folder /shared/run
Slurm:       a script that sets TF_CONFIG from SLURM_PROCID and SLURM_JOB_NODELIST before this command
Kubernetes:  the pods of a Kubeflow TFJob (Chief, Worker, PS), which sets TF_CONFIG
Colab:       not there: it is one machine

The chief ends with the training; workers and servers serve until they are ended. The chief and all servers see
--folder: each server writes its own part of a checkpoint. A lost worker's steps go to another; when a server is lost,
start all again, and they go on after the last checkpoint.
"""

import argparse
import os
import random

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help=".npz with x (rows, 8, 8, 1) and y (rows,); read by the chief")
parser.add_argument("--folder", required=True, help="where checkpoints and model.keras go, on a disk of all machines")
parser.add_argument("--steps", type=int, default=88, help="updates of all workers together")
parser.add_argument("--batch", type=int, default=32, help="rows of one update")
parser.add_argument("--save-steps", type=int, default=22, help="updates between two checkpoints")
arguments = parser.parse_args()
os.makedirs(arguments.folder, exist_ok=True)  # now, and not when there is a model to lose

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol=resolver.rpc_layer or "grpc"
    )
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)  # waits for the workers and servers
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


def new_model():
    """Yours goes here."""
    return keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )


random.seed(0)  # of the first weights; TensorFlow's own would give the same rows to all workers
with strategy.scope():
    model, optimizer = new_model(), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
# Keras reads the counter, adds one and assigns the sum, so that two workers may count once (Keras issue 18668).
optimizer.iterations.assign_add = optimizer.iterations.value.assign_add
per_row = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def rows_of_a_worker():
    """Traced on the chief, which sends what NumPy reads here; the graph runs on every worker, and has no seed."""
    with np.load(arguments.data) as data:
        rows = tf.data.Dataset.from_tensor_slices((data["x"], data["y"]))
    return rows.shuffle(10_000).repeat().batch(arguments.batch).prefetch(tf.data.AUTOTUNE)


@tf.function
def step(iterator):
    def on_a_worker(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(per_row(y, model(x, training=True)))
            loss += sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.run(on_a_worker, args=next(iterator))


checkpoints = tf.train.CheckpointManager(
    tf.train.Checkpoint(model=model, optimizer=optimizer), os.path.join(arguments.folder, "checkpoint"), max_to_keep=2
)
checkpoints.restore_or_initialize()
iterator = iter(coordinator.create_per_worker_dataset(rows_of_a_worker))
done = int(optimizer.iterations.numpy())
while done < arguments.steps:
    losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(arguments.save_steps)]
    coordinator.join()
    done += len(losses)
    checkpoints.save()
    print(f"update {done}: mean loss {np.mean([loss.fetch() for loss in losses]):.4f}", flush=True)
model.save(os.path.join(arguments.folder, "model.keras"))
os._exit(0)  # an orderly end would wait for TensorFlow's threads

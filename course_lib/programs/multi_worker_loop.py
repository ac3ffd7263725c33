"""Train with a loop of your own on several machines, each with the same program.

By hand:     on each machine, with its own index (worker 0 is the chief):
             TF_CONFIG='{"cluster": {"worker": ["host0:12345", "host1:12345"]},
                         "task": {"type": "worker", "index": 0}}' \
               python train.py --data data.npz --folder /shared/run
Slurm:       srun --ntasks-per-node=1 python train.py --data data.npz --folder /shared/run
Kubernetes:  the pods of a Kubeflow TFJob, which sets TF_CONFIG; /shared is a volume of all pods
Colab:       !python train.py --data data.npz --folder run    (without TF_CONFIG it is one worker)

All machines see --folder. They wait for each other at the start; at log level INFO, TensorFlow says once for whom.
When a worker is lost the others end with an error; start all again, and they go on after the last checkpoint.
"""

import argparse
import json
import os
import subprocess

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help=".npz with x (rows, 8, 8, 1) and y (rows,)")
parser.add_argument("--folder", required=True, help="where checkpoints and model.keras go, on a disk of all machines")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--global-batch", type=int, default=64, help="rows of all workers together")
parser.add_argument("--save-steps", type=int, default=10, help="steps between two checkpoints")
arguments = parser.parse_args()
os.makedirs(arguments.folder, exist_ok=True)  # now, and not when there is a model to lose

if "SLURM_PROCID" in os.environ and "TF_CONFIG" not in os.environ:  # one task on each node
    listing = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    nodes = subprocess.run(listing, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    addresses = [f"{node}:{12345 + place}" for place, node in enumerate(nodes)]
    task = {"type": "worker", "index": int(os.environ["SLURM_PROCID"])}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else starts TensorFlow
is_chief = (strategy.cluster_resolver.task_id or 0) == 0
print(f"{strategy.num_replicas_in_sync} replicas")
if arguments.global_batch % strategy.num_replicas_in_sync:
    raise SystemExit("--global-batch must be a multiple of the replicas")


def new_model():
    """Yours goes here."""
    return keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )


with np.load(arguments.data) as data:
    x, y = data["x"], data["y"]
steps = len(x) // arguments.global_batch  # an epoch
by_rows = tf.data.Options()  # each worker takes its rows of each batch
by_rows.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA


def batches(epoch, first):
    """The same order on all workers, by the epoch alone, so that a run which goes on takes the rows that are left."""
    order = np.random.default_rng([0, epoch]).permutation(len(x))
    rows = tf.data.Dataset.from_tensor_slices((x[order], y[order])).batch(arguments.global_batch, drop_remainder=True)
    return strategy.experimental_distribute_dataset(rows.skip(first).with_options(by_rows).prefetch(tf.data.AUTOTUNE))


keras.utils.set_random_seed(0)
with strategy.scope():
    model, optimizer = new_model(), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)  # a restore needs it, and several GPUs (Keras issue 23085)
per_row = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def step(batch):
    def on_a_replica(x, y):
        with tf.GradientTape() as tape:
            losses = per_row(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=arguments.global_batch)
            for penalty in model.losses:  # of regularizers: once, and not once a replica
                loss += tf.nn.scale_regularization_loss(penalty)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # sums them over the replicas
        return loss

    return strategy.reduce("SUM", strategy.run(on_a_replica, args=batch), axis=None)


# All workers save, since reading a variable may need all of them; all restore what the chief saved.
chiefs = os.path.join(arguments.folder, "checkpoint")
own = chiefs if is_chief else os.path.join(arguments.folder, f"worker-{strategy.cluster_resolver.task_id}")
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
checkpoints = tf.train.CheckpointManager(checkpoint, own, max_to_keep=2)
if newest := tf.train.latest_checkpoint(chiefs):
    checkpoint.restore(newest)
done = int(optimizer.iterations.numpy())


@tf.function
def of_all_workers(number):
    return strategy.gather(strategy.run(tf.identity, args=(number,)), axis=0)


found = of_all_workers(tf.constant([done])).numpy()
if len(set(found)) > 1:
    raise SystemExit(f"the workers found checkpoints of steps {found}: they do not share {arguments.folder}")

for epoch in range(done // steps, arguments.epochs):
    for batch in batches(epoch, first=done % steps):
        loss, done = step(batch), done + 1
        if done % arguments.save_steps == 0:
            checkpoints.save()
    print(f"epoch {epoch + 1}: step {done}, loss {float(loss):.4f}")
if is_chief:
    model.save(os.path.join(arguments.folder, "model.keras"))

"""Train a Keras model with fit on several machines, each with the same program.

By hand:     on each machine, with its own index (worker 0 is the chief):
             TF_CONFIG='{"cluster": {"worker": ["host0:12345", "host1:12345"]},
                         "task": {"type": "worker", "index": 0}}' \
               python train.py --data data.npz --folder /shared/run
Slurm:       srun --ntasks-per-node=1 python train.py --data data.npz --folder /shared/run
Kubernetes:  the pods of a Kubeflow TFJob, which sets TF_CONFIG; /shared is a volume of all pods
Colab:       !python train.py --data data.npz --folder run    (without TF_CONFIG it is one worker)

All machines see --folder. They wait for each other at the start; at log level INFO, TensorFlow says once for whom.
When a worker is lost the others end with an error; start all again, and they go on after the last whole epoch.
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


def new_layers():
    """Yours go here."""
    inputs = keras.Input((8, 8, 1))
    hidden = keras.layers.Dense(64, "relu")(keras.layers.Flatten()(inputs))
    return inputs, keras.layers.Dense(10)(hidden)


class Model(keras.Model):
    """Keras 3's fit stops under this strategy (Keras issue 20585): these three methods fix it."""

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is not None:  # build from the rows of one replica, not from a batch that is spread over workers
            _, _, batches = next(iter(iterator))
            data_batch = keras.tree.map_structure(lambda x: strategy.experimental_local_results(x)[0], next(batches))
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    def train_step(self, data):  # logs get the axis along which fit reduces them
        return {name: tf.expand_dims(value, 0) for name, value in super().train_step(data).items()}

    def test_step(self, data):
        return {name: tf.expand_dims(value, 0) for name, value in super().test_step(data).items()}


with np.load(arguments.data) as data:
    x, y = tf.constant(data["x"]), tf.constant(data["y"])
steps = len(x) // arguments.global_batch  # an epoch, of full batches: all replicas get as many rows as the others
by_rows = tf.data.Options()  # each worker takes its rows of each batch
by_rows.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA


def batches(first):
    """All epochs from this one on, each in an order of its own, which is the same after an interruption."""
    epochs = range(first, max(first + 1, arguments.epochs))
    orders = [np.random.default_rng([0, epoch]).permutation(len(x)) for epoch in epochs]
    kept = np.concatenate([order[: steps * arguments.global_batch] for order in orders])
    at = tf.data.Dataset.from_tensor_slices(kept).batch(arguments.global_batch, drop_remainder=True)
    rows = at.map(lambda places: (tf.gather(x, places), tf.gather(y, places)), tf.data.AUTOTUNE)
    return rows.with_options(by_rows).prefetch(tf.data.AUTOTUNE)


keras.utils.set_random_seed(0)
with strategy.scope():
    model = Model(*new_layers())
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)  # so that its state is restored, too
# All workers save, since reading a variable may need all of them; all restore what the chief saved.
chiefs = os.path.join(arguments.folder, "checkpoint")
own = chiefs if is_chief else os.path.join(arguments.folder, f"worker-{strategy.cluster_resolver.task_id}")
checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
checkpoints = tf.train.CheckpointManager(checkpoint, own, max_to_keep=2)
if newest := tf.train.latest_checkpoint(chiefs):
    checkpoint.restore(newest)
done = int(model.optimizer.iterations.numpy()) // steps  # epochs


@tf.function
def of_all_workers(number):
    return strategy.gather(strategy.run(tf.identity, args=(number,)), axis=0)


found = of_all_workers(tf.constant([done])).numpy()
if len(set(found)) > 1:
    raise SystemExit(f"the workers found checkpoints of epochs {found}: they do not share {arguments.folder}")
save = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: checkpoints.save())
settings = dict(initial_epoch=done, epochs=arguments.epochs, steps_per_epoch=steps, callbacks=[save], shuffle=False)
model.fit(batches(done), verbose=2 if is_chief else 0, **settings)
if is_chief:
    keras.Model(model.inputs, model.outputs).save(os.path.join(arguments.folder, "model.keras"))  # a plain one

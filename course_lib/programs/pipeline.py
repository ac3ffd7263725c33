"""Train a model in two stages, each in a process of its own: on two machines, or two GPUs of one.

By hand:     python train.py --stage 1 --data data.npz --folder run --address host1:12345      on host1, the last stage
             python train.py --stage 0 --data data.npz --folder run --address host1:12345      on host0, the first
Slurm:       srun --ntasks=2 --ntasks-per-node=1 bash -c 'python train.py --stage $SLURM_PROCID --data data.npz \
               --folder /shared/run --address $(scontrol show hostnames $SLURM_JOB_NODELIST | tail -n 1):12345'
Kubernetes:  an indexed Job of two: --stage $JOB_COMPLETION_INDEX, and pod 1's name in --address
Colab:       both commands on the one machine, the first with & behind it

TensorFlow and Keras have no API for pipelines. This is GPipe's order: all micro-batches forward, then all backward.
Both stages read the same data: the first takes x, the last y. The link is not encrypted: for a network of your own.
When a stage's process ends early the other ends with an error (where its machine loses power, end it by hand); start
both again, and they go on after the last whole epoch.
"""

import argparse
import os
import time
from multiprocessing.connection import Client, Listener

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, choices=[0, 1], required=True)
parser.add_argument("--address", required=True, help="HOST:PORT at which stage 1 listens")
parser.add_argument("--data", required=True, help=".npz with x (rows, 8, 8, 1) and y (rows,)")
parser.add_argument("--folder", required=True, help="where checkpoints, stage-0.keras and stage-1.keras go")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--global-batch", type=int, default=64, help="rows of one update")
parser.add_argument("--micro-batches", type=int, default=4, help="of a batch: more of them leave the stages less idle")
arguments = parser.parse_args()
os.makedirs(arguments.folder, exist_ok=True)  # now, and not when there is a model to lose
if arguments.global_batch % arguments.micro_batches:
    raise SystemExit("--global-batch must be a multiple of --micro-batches")


def new_stages():
    """Yours go here: the second takes what the first gives."""
    hidden = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu")]
    return keras.Sequential(hidden), keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])


def connected():
    host, port = arguments.address.rsplit(":", 1)
    if arguments.stage == 1:
        return Listener((host, int(port)), authkey=b"pipeline").accept()
    while True:
        try:
            return Client((host, int(port)), authkey=b"pipeline")
        except ConnectionRefusedError:
            time.sleep(0.1)  # the other stage does not listen yet


with np.load(arguments.data) as data:
    x, y = data["x"], data["y"]
keras.utils.set_random_seed(0)
stages = new_stages()  # both, so that the seed gives each its own weights
model, optimizer = stages[arguments.stage], keras.optimizers.Adam(1e-3)
per_row = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
optimizer.build(model.trainable_variables)  # so that its state is restored, too
link = connected()


def step(x, y):
    """One update. On the last stage the loss; stage 0 sends activations and receives their gradients."""
    sums, losses, tapes = [tf.zeros_like(v) for v in model.trainable_variables], [], []
    for rows_x, rows_y in zip(np.split(x, arguments.micro_batches), np.split(y, arguments.micro_batches)):
        received = tf.constant(rows_x if arguments.stage == 0 else link.recv())
        with tf.GradientTape() as tape:
            tape.watch(received)
            outputs = model(received, training=True)
            if arguments.stage == 1:
                outputs = tf.reduce_sum(per_row(rows_y, outputs)) / len(x)
        if arguments.stage == 0:
            link.send(outputs.numpy())  # stage 1 works on it while this stage takes the next
        tapes.append((tape, received, outputs))
    for tape, received, outputs in tapes:
        gradient = tf.constant(link.recv()) if arguments.stage == 0 else None
        to_input, *gradients = tape.gradient(outputs, [received, *model.trainable_variables], gradient)
        if arguments.stage == 1:
            link.send(to_input.numpy())
        sums = [total + part for total, part in zip(sums, gradients)]
        losses.append(outputs)
    optimizer.apply_gradients(zip(sums, model.trainable_variables))
    return float(sum(losses)) if arguments.stage == 1 else None


folder = os.path.join(arguments.folder, f"checkpoint-{arguments.stage}")
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
checkpoints = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
saved = int((checkpoints.latest_checkpoint or "ckpt-0").rpartition("-")[2])  # epochs
link.send(saved)
if done := min(saved, link.recv()):  # one stage may have saved once more than the other
    checkpoint.restore(os.path.join(folder, f"ckpt-{done}"))
for epoch in range(done, arguments.epochs):
    order = np.random.default_rng([0, epoch]).permutation(len(x))
    for rows in np.split(order, range(arguments.global_batch, len(x), arguments.global_batch)):
        if len(rows) == arguments.global_batch:
            loss = step(x[rows], y[rows])
    checkpoints.save(checkpoint_number=epoch + 1)
    if arguments.stage == 1:
        print(f"epoch {epoch + 1}: loss {loss:.4f}")
model.save(os.path.join(arguments.folder, f"stage-{arguments.stage}.keras"))

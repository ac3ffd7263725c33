"""Train a Keras model on JAX: on one chip, on all chips of this machine, or on several machines.

By hand:     python train.py --data data.npz --folder run                 (one chip, or all of this machine's)
             on several machines, each with its own --process:
             python train.py --data data.npz --folder /shared/run --coordinator host0:12345 --processes 2 --process 0
Slurm:       srun --ntasks-per-node=1 bash -c 'python train.py --data data.npz --folder /shared/run \
               --coordinator $(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):12345 \
               --processes $SLURM_NTASKS --process $SLURM_PROCID'
Kubernetes:  an indexed Job: --process $JOB_COMPLETION_INDEX, and pod 0's name for the coordinator
Colab:       !python train.py --data data.npz --folder run    (a GPU, or the TPU runtime's one chip)
No chips:    --cpus 8 makes eight devices of the CPU.

Run it again after an interruption, and it goes on after the last whole epoch.
"""

import argparse
import os

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import jax
import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help=".npz with x (rows, 8, 8, 1) and y (rows,)")
parser.add_argument("--folder", required=True, help="where the checkpoint and model.keras go")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--global-batch", type=int, default=64, help="rows of all devices of all machines together")
parser.add_argument("--cpus", type=int, help="devices to make of the CPU, in place of GPUs or TPUs")
parser.add_argument("--coordinator", help="HOST:PORT of process 0, when there are several machines")
parser.add_argument("--processes", type=int, default=1)
parser.add_argument("--process", type=int, default=0, help="this one's number, from 0")
arguments = parser.parse_args()
os.makedirs(arguments.folder, exist_ok=True)  # now, and not when there is a model to lose

if arguments.cpus:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", arguments.cpus)
if arguments.coordinator:  # waits for the other machines
    jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
print(f"{jax.device_count()} devices, {jax.local_device_count()} of them on this machine")
if arguments.global_batch % jax.device_count():
    raise SystemExit("--global-batch must be a multiple of the devices")
if jax.device_count() > 1:  # one chip needs no distribution
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))


def new_model():
    """Yours goes here."""
    return keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )


class Rows(keras.utils.PyDataset):
    """This machine's rows of each global batch, in an order that depends on the epoch alone; without TensorFlow."""

    def __init__(self, x, y, epoch):
        super().__init__()
        order = np.random.default_rng([0, epoch]).permutation(len(x))[: len(self) * arguments.global_batch]
        self.own = order.reshape(len(self), arguments.processes, -1)[:, arguments.process]  # (steps, local)

    def __len__(self):
        return len(x) // arguments.global_batch

    def __getitem__(self, step):
        return x[self.own[step]], y[self.own[step]]


with np.load(arguments.data) as data:
    x, y = data["x"], data["y"]
keras.utils.set_random_seed(0)
model = new_model()
model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.optimizer.build(model.trainable_variables)
# All processes save, since Keras may need all of them to read an array; all restore what process 0 saved.
own = os.path.join(arguments.folder, f"process-{arguments.process}" if arguments.process else "")
os.makedirs(own, exist_ok=True)
last = os.path.join(arguments.folder, "last.weights.h5")  # the optimizer's too
if os.path.exists(last):
    model.load_weights(last)
done = int(model.optimizer.iterations) // (len(x) // arguments.global_batch)  # epochs
for epoch in range(done, arguments.epochs):
    model.fit(Rows(x, y, epoch), initial_epoch=epoch, epochs=epoch + 1, shuffle=False, verbose=2)
    model.save_weights(os.path.join(own, "new.weights.h5"))
    os.replace(os.path.join(own, "new.weights.h5"), os.path.join(own, "last.weights.h5"))  # whole, or not at all
model.save(os.path.join(own, "model.keras"))

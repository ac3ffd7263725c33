"""Train a Keras model on JAX that is cut over devices: tensor parallel, FSDP, or both, by a LayoutMap.

By hand:     python train.py --data data.npz --folder run --model-axis 4           (tensor parallel by 4, else data)
             python train.py --data data.npz --folder run --fsdp                   (large kernels over all data devices)
Slurm:       srun --nodes=1 --gpus-per-node=8 python train.py ... ; several machines: see jax-data-parallel
Kubernetes:  the same command in one pod, with nvidia.com/gpu: 8 or google.com/tpu: 8 among its limits
Colab:       the TPU runtime's one chip has nothing to cut over: --cpus 8
No chips:    --cpus 8 makes eight devices of the CPU.

Run it again after an interruption, and it goes on after the last whole epoch, on any number of devices that divides
--global-batch and the kernels.
"""

import argparse
import os

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported; on TensorFlow a LayoutMap splits nothing

import jax
import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help=".npz with x (rows, 8, 8, 1) and y (rows,)")
parser.add_argument("--folder", required=True, help="where the checkpoint and model.keras go")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--global-batch", type=int, default=64, help="rows of all devices together")
parser.add_argument("--model-axis", type=int, default=1, help="devices that share a layer; it divides their number")
parser.add_argument("--fsdp", action="store_true", help="cut large kernels and their optimizer state over data, too")
parser.add_argument("--cpus", type=int, help="devices to make of the CPU, in place of GPUs or TPUs")
arguments = parser.parse_args()
os.makedirs(arguments.folder, exist_ok=True)  # now, and not when there is a model to lose

if arguments.cpus:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", arguments.cpus)
if jax.device_count() % arguments.model_axis or arguments.global_batch % jax.device_count():
    raise SystemExit("--model-axis must divide the devices, and they --global-batch")
shape = (jax.device_count() // arguments.model_axis, arguments.model_axis)
mesh = keras.distribution.DeviceMesh(shape, ["data", "model"], keras.distribution.list_devices())
layout_map = keras.distribution.LayoutMap(mesh)
data_axis = "data" if arguments.fsdp else None
# A pair of layers: the first by columns, the second by rows, and between them no activation is sent. A key is a regular
# expression for the whole of a variable's path; what no key matches is held whole by every device.
layout_map[".*hidden/kernel"] = (data_axis, "model")
layout_map[".*hidden/bias"] = ("model",)
layout_map[".*out/kernel"] = ("model", data_axis)
keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="data"))


def new_model():
    """Yours goes here; each cut dimension is a multiple of its axis."""
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(64, "relu", name="hidden")]
    return keras.Sequential([*layers, keras.layers.Dense(16, name="out"), keras.layers.Dense(10, name="logits")])


class Rows(keras.utils.PyDataset):
    """Global batches, in an order that depends on the epoch alone; without TensorFlow."""

    def __init__(self, x, y, epoch):
        super().__init__()
        self.order = np.random.default_rng([0, epoch]).permutation(len(x))

    def __len__(self):
        return len(x) // arguments.global_batch

    def __getitem__(self, step):
        rows = self.order[step * arguments.global_batch : (step + 1) * arguments.global_batch]
        return x[rows], y[rows]


with np.load(arguments.data) as data:
    x, y = data["x"], data["y"]
keras.utils.set_random_seed(0)
model = new_model()
model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.optimizer.build(model.trainable_variables)
for variable in model.trainable_variables:
    shard = variable.value.addressable_shards[0].data
    print(f"{variable.path}: {variable.shape}, of which a device holds {shard.shape}")

last = os.path.join(arguments.folder, "last.weights.h5")  # the optimizer's too, each array whole
if os.path.exists(last):
    model.load_weights(last)
done = int(model.optimizer.iterations) // (len(x) // arguments.global_batch)  # epochs
for epoch in range(done, arguments.epochs):
    model.fit(Rows(x, y, epoch), initial_epoch=epoch, epochs=epoch + 1, shuffle=False, verbose=2)
    new = os.path.join(arguments.folder, "new.weights.h5")
    model.save_weights(new)
    os.replace(new, last)  # whole, or not at all
model.save(os.path.join(arguments.folder, "model.keras"))

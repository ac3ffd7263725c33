"""What one GPU takes for a Keras train step on JAX: time, memory, the formats of its products. Prints CSV rows.

    python tests/benchmark_gpu.py --out rows.csv      all steps, compiled side by side first, then timed one by one
    python tests/benchmark_gpu.py --products          how far float32 products are off, as they come and in full

Needs a GPU, JAX for it, and Keras. A step is timed from dispatch to the arrival of its loss, after three that count
for nothing; its memory is the most that JAX's allocator held, in a process of its own.
"""

import argparse
import concurrent.futures
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

VOCABULARY = 50_304
FIELDS = ("device", "layers", "hidden", "heads", "vocabulary", "sequence_length", "batch", "precision", "flash")
FIELDS += ("parameters", "step_seconds", "fastest_seconds", "peak_bytes", "temporary_bytes", "argument_bytes")
# layers, hidden, heads, sequence length, batches
SHAPES = (
    (4, 256, 4, 256, (1, 8, 64)),
    (12, 768, 12, 1024, (1, 4, 16)),
    (24, 1024, 16, 1024, (1, 8)),
    (12, 2048, 16, 2048, (1, 4)),
    (16, 2560, 32, 512, (8,)),
)
PRECISIONS = ("float32", "mixed_bfloat16", "tf32")


def steps() -> list[dict]:
    made = []
    for (layers, hidden, heads, length, batches), precision in itertools.product(SHAPES, PRECISIONS):
        for batch in batches if precision == "mixed_bfloat16" else batches[-1:]:
            shape = {"layers": layers, "hidden": hidden, "heads": heads, "sequence_length": length}
            made.append({**shape, "batch": batch, "precision": precision})
    return made


def measure(step: dict, only_compile: bool) -> dict:
    """In a process of its own: compile the step, and run it."""
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import keras
    import numpy as np

    from course_lib import models

    jax.config.update("jax_compilation_cache_dir", "/tmp/compiled-steps")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    precise = "default" if step["precision"] == "tf32" else "highest"
    jax.config.update("jax_default_matmul_precision", precise if step["precision"] != "mixed_bfloat16" else "default")
    keras.config.set_dtype_policy("mixed_bfloat16" if step["precision"] == "mixed_bfloat16" else "float32")
    length, batch = step["sequence_length"], step["batch"]
    with jax.default_device(jax.devices("cpu")[0]):
        model = models.transformer(VOCABULARY, length, layers=step["layers"], width=step["hidden"], heads=step["heads"])
        optimizer = keras.optimizers.Adam(1e-4)
        optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss_and_rest(trainable, rest, tokens):
        logits, rest = model.stateless_call(trainable, rest, tokens[:, :-1], training=True)
        return loss_of(tokens[:, 1:], logits), rest

    def train(trainable, rest, slots, tokens):
        (loss, rest), gradients = jax.value_and_grad(loss_and_rest, has_aux=True)(trainable, rest, tokens)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return loss, trainable, rest, slots

    state = [
        [variable.value for variable in group]
        for group in (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    ]
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (batch, length + 1)).astype("int32")
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), (*state, tokens))
    compiled = jax.jit(train, donate_argnums=(0, 1, 2)).lower(*shapes).compile()
    if only_compile:
        return {}
    gpu = jax.devices()[0]
    state, tokens = jax.device_put(state, gpu), jax.device_put(tokens, gpu)
    seconds, started = [], time.perf_counter()
    while len(seconds) < 8 or (time.perf_counter() - started < 2 and len(seconds) < 60):
        began = time.perf_counter()
        loss, *state = compiled(*state, tokens)
        loss.block_until_ready()
        seconds.append(time.perf_counter() - began)
    needs = compiled.memory_analysis()
    return {
        "device": gpu.device_kind,
        **step,
        "vocabulary": VOCABULARY,
        "flash": "cudnn" if "fmha" in compiled.as_text() else "no",
        "parameters": sum(int(np.prod(one.shape)) for one in model.trainable_variables),
        "step_seconds": round(statistics.median(seconds[3:]), 6),
        "fastest_seconds": round(min(seconds[3:]), 6),
        "peak_bytes": (gpu.memory_stats() or {}).get("peak_bytes_in_use"),
        "temporary_bytes": needs.temp_size_in_bytes,
        "argument_bytes": needs.argument_size_in_bytes,
    }


def in_a_process(step: dict, only_compile: bool) -> dict:
    command = [sys.executable, __file__, "--step", json.dumps(step), *["--only-compile"][:only_compile]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{step}: {done.stderr.strip().splitlines()[-1][:300]}", file=sys.stderr, flush=True)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def products() -> None:
    """The largest error of a float32 product, against float64's, as the GPU multiplies and as a lesson makes it."""
    os.environ["KERAS_BACKEND"] = "jax"
    import jax
    import numpy as np

    from course_lib import devices

    a, b = np.random.default_rng(0).normal(size=(2, 512, 512)).astype("float32")
    right = a.astype("float64") @ b.astype("float64")

    def largest():
        return float(abs(np.asarray(jax.numpy.matmul(a, b), "float64") - right).max() / abs(right).max())

    print(f"{jax.devices()[0].device_kind}: float32 products are off by {largest():.1e} of the largest as they come")
    print(devices.simulate(1, "jax"))
    print(f"after devices.simulate(1, 'jax'): {largest():.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--products", action="store_true")
    parser.add_argument("--side-by-side", type=int, default=8, help="steps that are compiled at once")
    parser.add_argument("--step", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--only-compile", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.products:
        return products()
    if chosen.step:
        return print(json.dumps(measure(chosen.step, chosen.only_compile)))
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(chosen.side_by_side) as pool:
        list(pool.map(lambda step: in_a_process(step, True), steps()))
    print(f"{len(steps())} steps compiled in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    with open(chosen.out, "w", newline="") as file:
        rows = csv.DictWriter(file, FIELDS)
        rows.writeheader()
        for step in steps():
            if row := in_a_process(step, False):
                rows.writerow(row)
                file.flush()
                print(row, flush=True)


if __name__ == "__main__":
    main()

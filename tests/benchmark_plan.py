"""Predicted against measured on this machine: time and memory of the course's CNN and MLP.

Prints ratios: `python tests/benchmark_plan.py`. Time should be within 20% and
memory within 15%. What a prediction tries and the step that it is about are
timed in turns; memory is measured in fresh processes of one core, as in lesson 08.
"""

import argparse
import statistics

import keras
import tensorflow as tf

from course_lib import cluster, devices, models, training
from course_lib.planner import Layout, from_keras, measured_machine, replay

NAMES = devices.simulate(4).names
MODELS = {
    "MLP 128": lambda: models.mlp((28, 28, 1), 10),
    "MLP 1024": lambda: models.mlp((28, 28, 1), 10, width=1024),
    "CNN": lambda: models.cnn((32, 32, 3), 10),
    "CNN 64, 64": lambda: models.cnn((32, 32, 3), 10, filters=(64, 64)),
}
TIMED = [  # model, replicas, global batch
    ("MLP 128", 1, 64),
    ("MLP 1024", 1, 256),
    ("CNN", 1, 64),
    ("CNN", 1, 256),
    ("MLP 1024", 4, 256),
    ("CNN", 4, 64),
    ("CNN", 4, 256),
]
MEASURED = [("MLP 128", 64), ("MLP 1024", 256), ("CNN", 64), ("CNN", 256), ("CNN 64, 64", 32), ("CNN 64, 64", 256)]
per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def layout(replicas: int, global_batch: int) -> Layout:
    return Layout(data=replicas, micro_batch=global_batch // replicas, precision="float32")


def real_step(make_model, strategy, global_batch: int):
    """A call that trains one step."""
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam()
    x, y = tf.random.normal((global_batch, *model.input_shape[1:])), tf.zeros((global_batch,), "int32")
    if strategy.num_replicas_in_sync == 1:
        optimizer.build(model.trainable_variables)
        step = training.single_device_step(model, optimizer, per_example_loss)
        return lambda: step(x, y).numpy()
    step = training.replicated_step(strategy, model, optimizer, per_example_loss)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(global_batch)
    batch = next(iter(strategy.experimental_distribute_dataset(dataset)))
    return lambda: step(batch).numpy()


def time_ratios(pairs: int) -> None:
    strategies = {1: tf.distribute.get_strategy(), 4: tf.distribute.MirroredStrategy(NAMES)}
    for name, replicas, global_batch in TIMED:
        step, network = real_step(MODELS[name], strategies[replicas], global_batch), from_keras(MODELS[name]())
        ratios = []
        for _ in range(pairs):
            here = measured_machine.this_machine(replicas, memory=False)
            parts = measured_machine.step_parts(network, here, layout(replicas, global_batch), global_batch)
            seconds = replay.median_seconds({**parts.calls, "step": step})
            measured = seconds.pop("step")
            predicted = parts.step_time(seconds)
            ratios.append(predicted.total / measured)
        shares = ", ".join(f"{kind} {part / predicted.total:.0%}" for kind, part in predicted.kinds.items() if part)
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        case = f"time, {name}, {replicas} replica(s), batch {global_batch}"
        print(f"{case}: {statistics.median(ratios):.2f} ({each}); {shares}", flush=True)


def peak_bytes(task, global_batch: int, model_config: dict) -> int:
    import keras
    import tensorflow as tf

    from course_lib import measure, training

    model = keras.Model.from_config(model_config)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    step = training.single_device_step(model, optimizer, per_example_loss)
    batch = tf.zeros((global_batch, *model.input_shape[1:])), tf.zeros((global_batch,), "int32")
    step.get_concrete_function(*batch)  # traced before it counts
    return measure.peak_memory_bytes(lambda: [step(*batch) for _ in range(2)])


def memory_ratios(pairs: int) -> None:
    here = measured_machine.this_machine()
    for name, global_batch in MEASURED:
        network = from_keras(MODELS[name]())
        need = measured_machine.memory(network, here, layout(1, global_batch), global_batch)
        predicted = need.total - need.weights - need.optimizer  # what is there before the step
        arguments = {"global_batch": global_batch, "model_config": network.model.get_config()}
        job = cluster.Job(peak_bytes, arguments=arguments, resources=cluster.Resources(cpus=1))
        ratios = [predicted / cluster.run(job, show=None).result for _ in range(pairs)]
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"memory, {name}, batch {global_batch}: {statistics.median(ratios):.2f} ({each})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3, help="predictions and measurements of each case")
    parser.add_argument("--skip", choices=("time", "memory"), help="leave one kind out")
    chosen = parser.parse_args()
    print("predicted over measured; the median, and each pair")
    if chosen.skip != "time":
        time_ratios(chosen.pairs)
    if chosen.skip != "memory":
        memory_ratios(chosen.pairs)


if __name__ == "__main__":
    main()

"""Jobs that are broken on purpose, each in one way: which task, which cause, at which step.

`python tests/incidents.py --runs 50` draws incidents by a seed and counts how often the hang report names the task and
the cause; `--healthy 50` runs whole jobs, each with one slow step, of which none may be reported;
`--cost 100` times steps with the hook and without it, in turns.
"""

import argparse
import random
import sys
import time
from dataclasses import dataclass

from course_lib import cluster

HANG_SECONDS = 4.0


@dataclass(frozen=True)
class Incident:
    """cause  as a hang report names it; "" for none."""

    kind: str
    cause: str
    workers: int
    task: str
    step: int


CAUSE = {
    "stopped": "stopped",
    "not started": "not started",
    "addresses in another order": "other cluster",
    "fewer batches": "data ended",
    "call alone": "entered alone",
    "call alone at the end": "entered alone",
    "another order": "other order",
    "another shape": "other order",
    "input waits": "input",
    "input waits in fit": "input",
    "lock": "lock",
    "lock on JAX": "lock",
    "fewer batches on JAX": "data ended",
    "own loop": "own code",
    "unplugged": "unreachable",
}


def train(task, kind, who, step):
    """Six steps of data-parallel training; worker `who` goes wrong in step `step`, or before the first one."""
    import json
    import os
    import signal
    import threading
    import time

    import tensorflow as tf

    steps, broken = 6, task.index == who
    if broken and kind == "not started":
        threading.Event().wait()
    if broken and kind == "addresses in another order":
        config = json.loads(os.environ["TF_CONFIG"])
        config["cluster"]["worker"].reverse()
        config["task"]["index"] = task.workers - 1 - task.index
        os.environ["TF_CONFIG"] = json.dumps(config)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable(tf.zeros([64, 8]))
        bias = tf.Variable(tf.zeros([3]))
        seen = tf.Variable(
            0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
        )

    def batches():
        for number in range(steps + 1):
            if broken and kind == "input waits" and number == step:
                threading.Event().wait()
            yield tf.fill([4, 64], float(number))

    def replica_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x @ weights) + tf.reduce_sum(bias)
        gradients = tape.gradient(loss, [weights, bias])
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce("SUM", gradients)
        weights.assign_sub(0.1 * summed[0])
        seen.assign_add(1.0)
        return loss

    @tf.function
    def train_step(x):
        return strategy.run(replica_step, args=(x,))

    @tf.function
    def sums(x, y):
        def both(x, y):
            x, y = tf.identity(x), tf.identity(y)
            context = tf.distribute.get_replica_context()
            first = context.all_reduce("SUM", [x])
            with tf.control_dependencies(first):
                return context.all_reduce("SUM", [y])

        return strategy.run(both, args=(x, y))

    data = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([4, 64])).prefetch(1)
    lock = threading.Lock()
    for number, x in enumerate(data):
        if number == steps:
            break
        here = broken and number == step
        if here and kind == "fewer batches":
            break
        if here and kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if here and kind == "lock":
            lock.acquire()
            lock.acquire()
        if here and kind == "own loop":
            while True:
                time.sleep(0.1)
        if here and kind == "slow":
            time.sleep(2.5)
        if here and kind == "call alone":
            float(seen.read_value())
        if here and kind == "unplugged":
            os.system("tc qdisc replace dev eth0 root netem loss 100% || ip link set eth0 down")
        train_step(x)
        if kind in ("another order", "another shape"):
            a, b = tf.ones([32]), tf.ones([16])
            if here:
                a, b = (b, a) if kind == "another order" else (tf.ones([31]), b)
            sums(a, b)
        task.report(step=number)
    if broken and kind == "call alone at the end":
        float(seen.read_value())
    return float(tf.reduce_sum(weights))


def fit(task, kind, who, step):
    """The same with Keras' fit, which reads its input inside the traced step."""
    import threading

    import keras
    import tensorflow as tf

    from course_lib import training

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    class Model(training.MultiWorkerFit, keras.Sequential):
        pass

    with strategy.scope():
        model = Model([keras.Input((64,)), keras.layers.Dense(8)])
        model.compile("sgd", "mse")

    def batches():
        for number in range(6):
            if task.index == who and number == step // 2:  # each is two workers' batch, cut in two
                threading.Event().wait()
            yield tf.fill([4, 64], float(number)), tf.zeros([4, 8])

    shapes = tf.TensorSpec([4, 64]), tf.TensorSpec([4, 8])
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    rows = tf.data.Dataset.from_generator(batches, output_signature=shapes).with_options(options)
    model.fit(rows, steps_per_epoch=6, verbose=0)


def on_jax(task, kind, who, step):
    """Keras on JAX: worker `who` leaves its loop, or waits, before a step."""
    import threading

    import keras
    import numpy as np

    keras.distribution.initialize()
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(8)])
    model.compile("sgd", "mse")
    x, y = np.ones((4, 64), "float32"), np.zeros((4, 8), "float32")
    for number in range(6):
        if task.index == who and number == step:
            if kind == "fewer batches on JAX":
                break
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        model.train_on_batch(x, y)
        task.report(step=number)


def timed(task, rounds):
    """Seconds of a step with the hook and without it, in turns; a step of two workers on the digits' small model."""
    import statistics
    import time

    import keras
    import tensorflow as tf
    from tensorflow.python.eager.polymorphic_function import atomic_function

    from course_lib import data, models, training

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, optimizer = models.mlp((8, 8, 1), classes=10, width=32), keras.optimizers.SGD(0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    step = training.replicated_step(strategy, model, optimizer, loss)
    x, y = (part[:64] for part in data.arrays("digits", "train"))
    hooked = atomic_function.AtomicFunction.call_flat
    seconds = {hooked: [], hooked.__wrapped__: []}
    for _ in range(rounds):
        for call, taken in seconds.items():
            atomic_function.AtomicFunction.call_flat = call
            began = time.perf_counter()
            for _ in range(10):
                float(step((x, y)))
            taken.append((time.perf_counter() - began) / 10)
    ratios = [a / b for a, b in zip(*seconds.values())][5:]
    return statistics.median(seconds[hooked]), statistics.median(ratios)


def job_of(incident: Incident) -> cluster.Job:
    on = {"input waits in fit": fit}.get(incident.kind, on_jax if incident.kind.endswith("JAX") else train)
    return cluster.Job(
        on,
        framework="jax" if on is on_jax else "tensorflow",
        workers=incident.workers,
        arguments={"kind": incident.kind, "who": int(incident.task.split()[1]), "step": incident.step},
        environment={"OMP_NUM_THREADS": "1"},
        resources=cluster.Resources(memory_gib=0.5, limit_seconds=90),
        hang_seconds=HANG_SECONDS,
        link=cluster.Link(100) if incident.kind == "unplugged" else None,
    )


def drawn(seed: int) -> Incident:
    draw = random.Random(seed)
    kind = draw.choice(sorted(CAUSE))
    workers = 3 if kind == "unplugged" else draw.choice((2, 3))  # one bad link has two ends
    return Incident(kind, CAUSE[kind], workers, f"worker {draw.randrange(workers)}", draw.randrange(1, 5))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--healthy", type=int, default=0)
    parser.add_argument("--cost", type=int, default=0, metavar="ROUNDS", help="time steps with the hook and without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    tasks = causes = 0
    for number in range(options.runs):
        incident = drawn(options.seed + number)
        if options.kind:
            workers = 3 if options.kind == "unplugged" else incident.workers
            incident = Incident(options.kind, CAUSE[options.kind], workers, incident.task, incident.step)
        began = time.monotonic()
        try:
            cluster.run(job_of(incident), show=None)
            print(f"{number}: {incident}: ended by itself")
            continue
        except cluster.RunFailed as failed:
            if not failed.hangs:
                print(f"{number}: {incident}: no hang, but {failed}")
                continue
            found = failed.hangs[0].diagnosis
            if options.show:
                print(repr(failed.hangs[0]))
        right = found.task == incident.task, found.cause == incident.cause
        tasks, causes = tasks + right[0], causes + right[1]
        print(
            f"{number}: {incident.kind}, {incident.workers} workers, {incident.task}, step {incident.step}: "
            f"{right} {time.monotonic() - began:.1f} s: {found.cause}: {found.seen}",
            flush=True,
        )
    print(f"right task {tasks}, right cause {causes} of {options.runs}")
    if options.cost:
        job = cluster.Job(
            timed, arguments={"rounds": options.cost}, hang_seconds=60, environment={"OMP_NUM_THREADS": "1"}
        )
        for name, (seconds, ratio) in cluster.run(job, show=None).results.items():
            print(f"{name}: a step of {1000 * seconds:.2f} ms takes {ratio:.4f}x of one that is not recorded")
    reported = 0
    for number in range(options.healthy):
        draw = random.Random(options.seed + number)
        workers = draw.choice((2, 3))
        incident = Incident("slow", "", workers, f"worker {draw.randrange(workers)}", draw.randrange(1, 5))
        outcome = cluster.run(job_of(incident), show=None)
        reported += len(outcome.hangs)
    print(f"reported {reported} of {options.healthy} healthy runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())

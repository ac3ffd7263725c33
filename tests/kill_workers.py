"""Kill training workers by pid at random moments: `python tests/kill_workers.py --kills 20`.

Three jobs of two workers that go on from what they saved: a loop with ResumePoint, and `fit` with BackupAndRestore
or ResumePoint. Each runs under kills, again and again, until so many are made; every run must end with the weights and
the optimizer's state of an undisturbed one. chaos_cluster.py kills the cluster's own parts.
"""

import argparse
import os
import random
import signal
import sys
import threading
from contextlib import suppress

import keras
import numpy as np
import tensorflow as tf

from course_lib import cluster, data, models, training
from course_lib.table import Table

BATCH, ROWS = 64, 300  # five batches an epoch of `fit`, the last one smaller
SECONDS = (1, 12)  # between two kills; a job's start takes about five
TOLERANCE = 1e-6  # relative to the largest magnitude of each array


def made(strategy, kind):
    """A model and its built optimizer, whose rate and moments show a step too many or too few."""
    with strategy.scope():
        network = models.mlp((8, 8, 1), classes=10, width=32)
        model = kind(network.inputs, network.outputs)
        schedule = keras.optimizers.schedules.CosineDecay(0.01, 600)
        optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.01)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def state(model, optimizer) -> list[np.ndarray]:
    return [variable.numpy() for variable in (*model.variables, *optimizer.variables)]


def loop_with_resume_point(task):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    model, optimizer = made(strategy, keras.Model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    step = training.replicated_step(strategy, model, optimizer, loss)
    point = training.ResumePoint(task.folder, model, optimizer, task.is_chief)
    images, labels = data.arrays("digits", "train")
    done, steps = point.restore(), len(labels) // BATCH
    for epoch in range(done // steps, 28):
        batches = data.epoch_batches(images, labels, BATCH, epoch).skip(done % steps)
        for batch in strategy.experimental_distribute_dataset(batches):
            step(batch)
            done += 1
            if done % 3 == 0:
                point.save()
    return state(model, optimizer)


def fit_with_backup_and_restore(task):
    folder = task.folder / task.name.replace(" ", "-")  # in one folder, workers fight over one file
    return fitted(lambda model, optimizer: (keras.callbacks.BackupAndRestore(str(folder), delete_checkpoint=False), 0))


def fit_with_resume_point(task):
    def saved(model, optimizer):
        point = training.ResumePoint(task.folder, model, optimizer, task.is_chief)
        first = point.restore() // -(-ROWS // BATCH)
        return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: point.save()), first

    return fitted(saved)


def fitted(saved) -> list[np.ndarray]:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    class Model(training.MultiWorkerFit, training.ExactPartialBatches, keras.Model):
        pass

    model, optimizer = made(strategy, Model)
    with strategy.scope():
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, labels = data.arrays("digits", "train")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    rows = tf.data.Dataset.from_tensor_slices((images[:ROWS], labels[:ROWS])).batch(BATCH).with_options(options)
    callback, first = saved(model, optimizer)
    model.fit(rows, epochs=120, initial_epoch=first, shuffle=False, verbose=0, callbacks=[callback])
    return state(model, optimizer)


def job(program: str) -> cluster.Job:
    resources = cluster.Resources(cpus=1, limit_seconds=560)
    return cluster.Job(f"{__file__}:{program}", restarts=60, resources=resources, environment={"OMP_NUM_THREADS": "1"})


def difference(expected: list[np.ndarray], found: list[np.ndarray]) -> float:
    pairs = zip(expected, found, strict=True)
    return max(float(np.abs(one - other).max() / max(np.abs(one).max(), 1e-30)) for one, other in pairs)


def under_kills(program: str, kills: int, draw: random.Random) -> tuple[int, int, float]:
    """Runs of a job, restarts, and the largest difference of any worker's state from an undisturbed run's."""
    expected = cluster.run(job(program), show=None).results["worker 0"]
    made_kills, runs, restarts, differences = 0, 0, 0, []
    while made_kills < kills:
        with cluster.start(job(program), show=None) as running:
            over = threading.Event()

            def kill(running=running, over=over):
                nonlocal made_kills
                while made_kills < kills and not over.wait(draw.uniform(*SECONDS)):
                    with suppress(ProcessLookupError, KeyError):  # it is being started again
                        os.kill(running.pids[draw.choice(running.job.tasks)], signal.SIGKILL)
                        made_kills += 1

            killer = threading.Thread(target=kill)
            killer.start()
            try:
                outcome = running.outcome()
            finally:
                over.set()
                killer.join()
        runs, restarts = runs + 1, restarts + outcome.restarts
        differences += [difference(expected, found) for found in outcome.results.values()]
    return runs, restarts, max(differences)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="of each job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("jobs", nargs="*", default=[*JOBS], metavar="JOB", help=", ".join(JOBS))
    chosen = parser.parse_args()
    found = {name: under_kills(name, chosen.kills, random.Random(chosen.seed)) for name in chosen.jobs}
    rows = [(name, chosen.kills, runs, restarts, f"{most:.1e}") for name, (runs, restarts, most) in found.items()]
    print(Table(("job", "kills", "runs", "restarts", "largest difference, relative"), rows))
    return 1 if any(most > TOLERANCE for _, _, most in found.values()) else 0


JOBS = ("loop_with_resume_point", "fit_with_backup_and_restore", "fit_with_resume_point")

if __name__ == "__main__":
    sys.exit(main())

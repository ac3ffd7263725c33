"""Each training helper on each member of the zoo: equal to Keras' own `fit` on one device, or refused in one line.

`zoo_verdicts.json` holds what each pair gave, on the newest stack; `python tests/test_zoo.py` writes it again.
"""

import functools
import json
import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from zoo import ROWS, ZOO, Member, batches

from course_lib import accumulate, cluster, devices, training
from course_lib.compare import Run, compare
from course_lib.errors import CourseError

STORED = Path(__file__).with_name("zoo_verdicts.json")
FLOAT32 = {"relative": 2e-5, "reason": "float32 sums in another order, over eight steps"}
EPOCHS = 2
WORKERS = "MultiWorkerFit and ExactPartialBatches, 2 workers"


def new_class(*mixins) -> type:
    """A class for one model: Keras changes the bases of one that a functional model was made with."""
    return type("Model", (*mixins, keras.Model), {})


EXACT = (training.ExactPartialBatches,)
SEVERAL = (training.SeveralSteps, training.ExactPartialBatches)


def replicas(count: int):
    names = devices.simulate(4).names[:count]
    if count == 1:
        return tf.distribute.get_strategy()
    # Another strategy in this process than the last one's: without collectives they do not meet.
    return tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())


def weights_of(name: str, model, losses=()) -> Run:
    """By place, since every model of a class has other names."""
    run = Run.of(name, model, losses)
    return Run(name, {str(place): value for place, value in enumerate(model.get_weights())}, run.losses)


def fit(member: Member, strategy, mixins, optimizer, **settings) -> Run:
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = member.make(new_class(*mixins))
        model.compile(optimizer, **member.settings(), **settings)
    history = model.fit(batches(member), epochs=EPOCHS, shuffle=False, verbose=0, **member.fit).history
    return weights_of("fit", model, history["loss"])


def per_row_loss(member: Member):
    """The compiled losses as a function (labels, outputs) -> (batch,), as somebody writes it for a loop."""
    settings = member.settings()

    def without_reduction(loss):
        loss = keras.losses.get(loss) if isinstance(loss, str) else loss
        return type(loss).from_config({**loss.get_config(), "reduction": "none"})

    loss = settings["loss"]
    if isinstance(loss, dict):
        scale = settings.get("loss_weights", dict.fromkeys(loss, 1.0))
        parts = {name: without_reduction(one) for name, one in loss.items()}
        return lambda y, outputs: sum(scale[name] * parts[name](y[name], outputs[name]) for name in parts)
    if isinstance(loss, list):
        parts = [without_reduction(one) for one in loss]
        return lambda y, outputs: sum(part(*pair) for part, *pair in zip(parts, y, outputs))
    if isinstance(loss, str):
        return without_reduction(keras.losses.CategoricalCrossentropy())
    return without_reduction(loss)


def by_loop(count):
    def run(member):
        strategy = replicas(count)
        with strategy.scope():
            keras.utils.set_random_seed(0)
            model, optimizer = member.make(new_class()), member.optimizer()
        loss = per_row_loss(member)
        losses = []
        if count == 1:
            step = training.single_device_step(model, optimizer, loss)
            optimizer.build(model.trainable_variables)
            for _ in range(EPOCHS):
                losses.append([float(step(x, y)) for x, y in batches(member)])
        else:
            step = training.replicated_step(strategy, model, optimizer, loss)
            for _ in range(EPOCHS):
                distributed = strategy.experimental_distribute_dataset(batches(member))
                losses.append([float(step(batch)) for batch in distributed])
        with strategy.scope():
            optimizer.finalize_variable_values(model.trainable_variables)
        sizes = [min(8, ROWS - start) for start in range(0, ROWS, 8)]
        return weights_of("loop", model, [np.average(epoch, weights=sizes) for epoch in losses])

    return run


def accumulating(count):
    def run(member):
        strategy = replicas(count)
        with strategy.scope():
            optimizer = accumulate.Accumulating(member.optimizer(), 2)
            keras.utils.set_random_seed(0)
            model = member.make(new_class(accumulate.ExactGroups))
            model.compile(optimizer, **member.settings())
            if model.built:
                optimizer.build(model.trainable_variables)
        history = model.fit(batches(member, 4), epochs=EPOCHS, shuffle=False, verbose=0, **member.fit).history
        return weights_of("groups", model, history["loss"])

    return run


def mirrored(mixins, count, wrap=lambda optimizer: optimizer, **settings):
    def run(member):
        strategy = replicas(count)
        with strategy.scope():
            optimizer = wrap(member.optimizer())
        return fit(member, strategy, mixins, optimizer, **settings)

    return run


def on_two_workers(task):
    """Every member by fit: what each gave, or the line of its refusal."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA

    def run(member):
        with strategy.scope():
            keras.utils.set_random_seed(0)
            model = member.make(new_class(training.MultiWorkerFit, training.ExactPartialBatches))
            model.compile(member.optimizer(), **member.settings())
        dataset = batches(member).with_options(options)
        history = model.fit(dataset, epochs=EPOCHS, shuffle=False, verbose=0, **member.fit).history
        return weights_of(task.name, model, history["loss"])

    return {name: tried(lambda member=member: run(member)) for name, member in ZOO.items()}


HELPERS = {
    "single_device_step": by_loop(1),
    "replicated_step, 2": by_loop(2),
    "replicated_step, 4": by_loop(4),
    "ExactPartialBatches, 2": mirrored(EXACT, 2),
    "ExactPartialBatches, 4": mirrored(EXACT, 4),
    "SeveralSteps, 2": mirrored(SEVERAL, 2, steps_per_execution=2),
    "AgreeingLossScale, 2": mirrored(EXACT, 2, training.AgreeingLossScale, auto_scale_loss=False),
    "ExactGroups, 1": accumulating(1),
    "ExactGroups, 2": accumulating(2),
    WORKERS: None,  # one job runs all members
}
# A loop's step takes (x, y), and its loss is a mean: these settings have no place in it.
NOT_IN_A_LOOP = {
    "sample weights",
    "class weights",
    "a mean over sample weights",
    "a sum for a loss",
    "add_loss without labels",
}
PAIRS = [(helper, name) for name in ZOO for helper in HELPERS if not ("_step" in helper and name in NOT_IN_A_LOOP)]
QUICK = {"L1 and L2 regularizers", "tokens with a mask"}


@functools.cache
def reference(name: str) -> Run:
    """Keras' own fit, on one device."""
    return fit(ZOO[name], tf.distribute.get_strategy(), (), ZOO[name].optimizer())


def tried(run) -> Run | str:
    try:
        return run()
    except CourseError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"raises {type(error).__name__}"


@functools.cache
def of_two_workers() -> dict[str, Run | str]:
    return cluster.run(cluster.Job(f"{__file__}:on_two_workers"), show=None).results["worker 1"]


def verdict(helper: str, name: str) -> str:
    found = of_two_workers()[name] if helper == WORKERS else tried(lambda: HELPERS[helper](ZOO[name]))
    if isinstance(found, str):
        return found
    return "equal" if compare(reference(name), found, **FLOAT32).equal else "different"


@pytest.mark.parametrize(
    "helper, name",
    [
        pytest.param(*pair, marks=() if pair[1] in QUICK and pair[0].endswith(("step", " 2")) else pytest.mark.slow)
        for pair in PAIRS
    ],
)
def test_a_helper_equals_fit_on_one_device_or_refuses(helper, name):
    assert verdict(helper, name) == json.loads(STORED.read_text())[helper][name]


def is_taught(helper: str, name: str) -> bool:
    """Statistics of the local batch (lesson 02) and of the micro-batch (lesson 08): Keras' own fit differs alike."""
    per_micro_batch = name == "synchronized batch normalization" and helper.startswith("ExactGroups")
    return per_micro_batch or (name == "batch normalization" and helper != "single_device_step")


def test_no_pair_is_silently_wrong():
    stored = json.loads(STORED.read_text())
    found = {(helper, name): said for helper, verdicts in stored.items() for name, said in verdicts.items()}
    assert found.keys() == set(PAIRS)
    for pair, said in found.items():
        assert said == "equal" or re.fullmatch("refused: .*", said) or (said == "different" and is_taught(*pair)), pair


def test_every_reference_moved():
    """Else two runs that never train would be equal."""
    for name in QUICK:
        keras.utils.set_random_seed(0)
        start = weights_of("start", ZOO[name].make(new_class()))
        assert not compare(start, Run("end", reference(name).weights), **FLOAT32).equal


if __name__ == "__main__":
    devices.simulate(4)
    table: dict[str, dict[str, str]] = {helper: {} for helper in HELPERS}
    wanted = sys.argv[1:]
    if STORED.exists() and wanted:
        table = json.loads(STORED.read_text())
    for helper, name in PAIRS:
        if not wanted or name in wanted or helper in wanted:
            table.setdefault(helper, {})[name] = verdict(helper, name)
            print(f"{helper:24} {name:36} {table[helper][name][:110]}", flush=True)
    STORED.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")

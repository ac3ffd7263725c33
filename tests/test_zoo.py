"""Each training helper on each member of the zoo: equal to Keras' own `fit` on one device, or refused in one line.

`zoo_verdicts.json` holds what each pair gave, on the newest stack; `python tests/test_zoo.py` writes it again.
"""

import functools
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from zoo import BATCH, ROWS, USES, ZOO, Member, batches

from course_lib import accumulate, cluster, devices, parameter_server, pipeline, training
from course_lib.compare import Run, compare
from course_lib.errors import CourseError
from course_lib.pipeline.cutting import cut
from course_lib.pipeline.executor import Stage
from course_lib.pipeline.links import Links

STORED = Path(__file__).with_name("zoo_verdicts.json")
TROUBLESHOOTING = Path(__file__).absolute().parent.parent / "TROUBLESHOOTING.md"
REASON = "float32 sums in another order, over eight steps"
EPOCHS = 2
SIZES = [min(BATCH, ROWS - start) for start in range(0, ROWS, BATCH)]


def new_class(*mixins) -> type:
    """A class for one model: Keras changes the bases of one that a functional model was made with."""
    return type("Model", (*mixins, keras.Model), {})


def replicas(count: int):
    names = devices.simulate(4).names[:count]
    if count == 1:
        return tf.distribute.get_strategy()
    # Another strategy in this process than the last one's: without collectives they do not meet.
    return tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())


def weights_of(name: str, model, losses=()) -> Run:
    """By place, since every model of a class has other names."""
    weights = {str(place): value for place, value in enumerate(model.get_weights())}
    return Run(name, weights, tuple(map(float, losses)))


@dataclass(frozen=True)
class Fit:
    """Keras' `fit` with a helper: mixins of the class, replicas, what wraps the optimizer, settings of compile()."""

    mixins: tuple = ()
    replicas: int = 1
    wrap: Callable = lambda optimizer: optimizer
    settings: dict = field(default_factory=dict)
    micro_batches: int = 1

    def compiled(self, member: Member, strategy, seed: int = 0):
        with strategy.scope():
            optimizer = member.new_optimizer(self.wrap)
            keras.utils.set_random_seed(seed)
            model = member.make(new_class(*self.mixins))
            model.compile(optimizer, **member.settings(), **self.settings)
            if model.built:
                optimizer.build(model.trainable_variables)
        return model

    def batches(self, member: Member, strategy):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        return batches(member, BATCH // self.micro_batches).with_options(options)

    def run(self, member: Member, strategy=None, epochs: int = EPOCHS, whole_batches: bool = False) -> Run:
        strategy = strategy or replicas(self.replicas)
        model, rows = self.compiled(member, strategy), self.batches(member, strategy)
        rows = rows.take(ROWS // BATCH) if whole_batches else rows
        history = model.fit(rows, epochs=epochs, shuffle=False, verbose=0, **member.fit).history
        return weights_of("fit", model, history["loss"])

    def use(self, name: str, strategy=None) -> Run:
        """What somebody does with a compiled model; its numbers stand beside the weights."""
        use, strategy = USES[name], strategy or replicas(self.replicas)
        model = self.compiled(use.member, strategy)
        with tempfile.TemporaryDirectory() as folder:
            found = use.do(model, self.batches(use.member, strategy), Path(folder))
        return weights_of("use", model, np.concatenate([np.ravel(part) for part in found]) if found else ())


STOCK = Fit()
EXACT = training.ExactPartialBatches
ACCUMULATING = {"wrap": lambda optimizer: accumulate.Accumulating(optimizer, 2), "micro_batches": 2}
WITH_FIT = {
    "ExactPartialBatches, 2": Fit((EXACT,), 2),
    "ExactPartialBatches, 4": Fit((EXACT,), 4),
    "SeveralSteps, 2": Fit((training.SeveralSteps, EXACT), 2, settings={"steps_per_execution": 2}),
    "AgreeingLossScale, 2": Fit((EXACT,), 2, training.AgreeingLossScale, {"auto_scale_loss": False}),
    "ExactGroups, 1": Fit((accumulate.ExactGroups,), 1, **ACCUMULATING),
    "ExactGroups, 2": Fit((accumulate.ExactGroups,), 2, **ACCUMULATING),
}
TWO_WORKERS = Fit((training.MultiWorkerFit, EXACT))


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
            model, optimizer = member.make(new_class()), member.new_optimizer()
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
        return weights_of("loop", model, [np.average(epoch, weights=SIZES) for epoch in losses])

    return run


def resumed(member):
    """A checkpoint at the end of the first epoch, where the run ends; then another model, begun elsewhere, goes on."""
    helper, strategy, losses = WITH_FIT["ExactPartialBatches, 2"], replicas(2), []

    class Ends(Exception):
        pass

    def save_and_end(epoch, logs):
        losses.append(logs["loss"])
        point.save()
        if epoch == 0:
            raise Ends

    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(EPOCHS):
            model = helper.compiled(member, strategy, seed=epoch)
            point = training.ResumePoint(Path(folder), model, model.optimizer)
            point.restore()
            rows, callback = helper.batches(member, strategy), keras.callbacks.LambdaCallback(on_epoch_end=save_and_end)
            settings = {"initial_epoch": epoch, "epochs": EPOCHS, "callbacks": [callback], **member.fit}
            with suppress(Ends):
                model.fit(rows, shuffle=False, verbose=0, **settings)
    return weights_of("resumed", model, losses)


def in_two_stages(member):
    """A pipeline cut before its last layer that has weights; each stage has a thread here, and its own in a job."""
    keras.utils.set_random_seed(0)
    model, loss = member.make(new_class()), per_row_loss(member)
    trained = [layer.name for layer in model.layers if layer.weights]
    parts, means, failures = cut(model, trained[-1:]), [], []
    with socket.socket() as free:
        free.bind(("localhost", 0))
        addresses = [f"localhost:{free.getsockname()[1]}", "localhost:0"]

    def train(place):
        try:
            with Links(place, addresses) as links:
                stage = Stage(links, parts[place], member.new_optimizer(), loss)
                for _ in range(EPOCHS):
                    rows = batches(member).take(ROWS // BATCH)
                    means.append([stage.step(pipeline.gpipe(2, 2), x, y) for x, y in rows])
                stage.optimizer.finalize_variable_values(parts[place].trainable_variables)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise max(failures, key=lambda error: "is gone" not in str(error))
    return weights_of("stages", model, [np.mean(epoch) for epoch in means if None not in epoch])


def on_two_workers(task, members):
    """Every member and every use: what each gave, or the line of its refusal."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    runs = {name: lambda name=name: TWO_WORKERS.run(ZOO[name], strategy) for name in members}
    runs |= {name: lambda name=name: TWO_WORKERS.use(name, strategy) for name in USES}
    return {name: tried(run) for name, run in runs.items()}


def on_a_parameter_server(task, members):
    """Every member of a loop, a step at a time."""
    strategy, coordinator = parameter_server.connect()

    def run(name):
        member, losses = ZOO[name], []
        with strategy.scope():
            keras.utils.set_random_seed(0)
            model, optimizer = member.make(new_class()), member.new_optimizer()
        step = parameter_server.asynchronous_step(strategy, model, optimizer, per_row_loss(member))
        for _ in range(EPOCHS):
            updates = parameter_server.run_steps(coordinator, step, batches(member), one_at_a_time=True)
            assert not any(update.staleness for update in updates)
            losses.append(np.average([update.loss for update in updates], weights=SIZES))
        optimizer.finalize_variable_values(model.trainable_variables)
        return weights_of("updates", model, losses)

    return {name: tried(lambda name=name: run(name)) for name in members if name not in NOT_IN_A_LOOP}


IN_A_LOOP = {
    "single_device_step": by_loop(1),
    "replicated_step, 2": by_loop(2),
    "replicated_step, 4": by_loop(4),
    "Stage, 2 stages": in_two_stages,
}
WORKERS = "MultiWorkerFit and ExactPartialBatches, 2 workers"
SERVER = "asynchronous_step, 1 worker and 1 server"
JOBS = {  # one job runs all members
    WORKERS: ("on_two_workers", {"workers": 2}),
    SERVER: ("on_a_parameter_server", {"workers": 1, "parameter_servers": 1}),
}
GROUPS, SHARDED = "ExactGroups on JAX, 1", "state_sharding on JAX, 4"
HELPERS = (*IN_A_LOOP, SERVER, *WITH_FIT, "ResumePoint, 2", WORKERS, GROUPS, SHARDED)
# A loop's step takes (x, y), and its loss is a mean: these settings have no place in it.
NOT_IN_A_LOOP = {
    "sample weights",
    "class weights",
    "a mean over sample weights",
    "a sum for a loss",
    "add_loss without labels",
    "a train_step of its own",
}
NOT_ON_JAX = {  # TensorFlow's own
    "a train_step of its own",
    "a variable that is TensorFlow's",
    "ragged input",
    "synchronized batch normalization",
}
WITHOUT = {**dict.fromkeys((*IN_A_LOOP, SERVER), NOT_IN_A_LOOP), **dict.fromkeys((GROUPS, SHARDED), NOT_ON_JAX)}
PAIRS = [(helper, name) for name in ZOO for helper in HELPERS if name not in WITHOUT.get(helper, ())]
PAIRS += [(helper, name) for name in USES for helper in (*WITH_FIT, WORKERS)]
QUICK = {"L1 and L2 regularizers", "tokens with a mask", "fit with ReduceLROnPlateau"}


@functools.cache
def reference(name: str, whole_batches: bool = False) -> Run:
    """Keras' own fit, on one device."""
    return STOCK.use(name) if name in USES else STOCK.run(ZOO[name], whole_batches=whole_batches)


def tried(run) -> Run | str:
    try:
        return run()
    except CourseError as error:
        return "refused: " + re.sub(r"(?<=[a-z])_\d+\b", "", str(error))  # Keras numbers the names that it gives
    except Exception as error:
        known = re.findall("^- `(.*)`$", TROUBLESHOOTING.read_text() if TROUBLESHOOTING.exists() else "", re.M)
        named = [line for line in known if line in str(error)]
        return f"raises {type(error).__name__}" + (f", in TROUBLESHOOTING: {named[0]}" if named else f": {error}"[:300])


@functools.cache
def of_job(helper: str) -> dict[str, Run | str]:
    function, tasks = JOBS[helper]
    job = cluster.Job(f"{__file__}:{function}", **tasks, arguments={"members": WANTED[helper]})
    done = cluster.run(job, show=None)
    return done.results["chief 0" if helper == SERVER else "worker 1"]


@functools.cache
def on_jax() -> dict[str, dict[str, str]]:
    """Judged there, against Keras' fit on JAX and one device."""
    command = [sys.executable, Path(__file__).with_name("zoo_on_jax.py"), *WANTED[GROUPS]]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def found(helper: str, name: str) -> Run | str:
    if helper in JOBS:
        return of_job(helper)[name]
    if name in USES:
        return tried(lambda: WITH_FIT[helper].use(name))
    if helper in WITH_FIT:
        return tried(lambda: WITH_FIT[helper].run(ZOO[name]))
    return tried(lambda: (resumed if helper == "ResumePoint, 2" else IN_A_LOOP[helper])(ZOO[name]))


def judged(name: str, one_device: Run, run: Run | str) -> str:
    if isinstance(run, str):
        return run
    relative = (ZOO.get(name) or USES[name].member).relative
    return "equal" if compare(one_device, run, relative=relative, reason=REASON).equal else "different"


def verdict(helper: str, name: str) -> str:
    if helper in (GROUPS, SHARDED):
        return on_jax()[helper][name]
    return judged(name, reference(name, whole_batches=helper.startswith("Stage")), found(helper, name))


def is_long(helper: str, name: str) -> bool:
    """Run when the table is written, and not in CI: large models, four replicas where two have been, and of all else
    two of three, so that each helper meets a third of the members and each member a third of the helpers."""
    turn = 0 if helper in (GROUPS, SHARDED) else HELPERS.index(helper)  # those two are tried in one process
    return (
        (name in ZOO and ZOO[name].long)
        or helper in ("replicated_step, 4", "ExactPartialBatches, 4")
        or ([*ZOO, *USES].index(name) % 3 != turn % 3 and name not in QUICK)
    )


TRIED = [pair for pair in PAIRS if not is_long(*pair)]
TOGETHER = [(WORKERS,), (SERVER,), (GROUPS, SHARDED)]  # one process, or one job, tries all its members
WANTED = {helper: [name for one, name in TRIED if one == helper and name in ZOO] for helper in sum(TOGETHER, ())}


@pytest.mark.parametrize(
    "helper, name",
    [
        pytest.param(*pair, marks=() if pair[1] in QUICK and pair[0].endswith(("step", " 2")) else pytest.mark.slow)
        for pair in TRIED
        if pair[0] not in sum(TOGETHER, ())
    ],
)
def test_a_helper_equals_fit_on_one_device_or_refuses(helper, name):
    assert verdict(helper, name) == json.loads(STORED.read_text())[helper][name]


@pytest.mark.slow
@pytest.mark.parametrize("helpers", TOGETHER, ids=" and ".join)
def test_helpers_in_a_job_of_their_own_equal_fit_or_refuse(helpers):
    """In one test, so that two workers of pytest do not both run the job."""
    stored = json.loads(STORED.read_text())
    for helper in helpers:
        names = [name for one, name in TRIED if one == helper]
        assert {name: verdict(helper, name) for name in names} == {name: stored[helper][name] for name in names}


def is_taught(helper: str, name: str) -> bool:
    """Statistics of the local batch and other masks (lesson 02), of the micro-batch (lessons 06 and 08)."""
    per_micro_batch = helper.startswith(("ExactGroups", "Stage"))
    if name in {"synchronized batch normalization", "spectral normalization"}:
        return per_micro_batch
    return name in {"batch normalization", "dropout", "augmentation"} and helper != "single_device_step"


def test_no_pair_is_silently_wrong():
    stored = json.loads(STORED.read_text())
    said = {(helper, name): verdict for helper, verdicts in stored.items() for name, verdict in verdicts.items()}
    assert said.keys() == set(PAIRS)
    for pair, verdict in said.items():
        fine = verdict == "equal" or re.fullmatch("refused: .*|raises \\w+, in TROUBLESHOOTING: .*", verdict)
        assert fine or (verdict == "different" and is_taught(*pair)), pair


def test_every_reference_moved():
    """Else two runs that never train would be equal."""
    for name in QUICK & ZOO.keys():
        keras.utils.set_random_seed(0)
        start = weights_of("start", ZOO[name].make(new_class()))
        assert judged(name, start, Run("end", reference(name).weights)) == "different"


if __name__ == "__main__":
    devices.simulate(4)
    wanted = sys.argv[1:]
    table = json.loads(STORED.read_text()) if wanted else {}
    pairs = [pair for pair in PAIRS if not wanted or set(wanted) & set(pair)]
    WANTED.update(dict.fromkeys(WANTED, [name for name in ZOO if any(name == asked for _, asked in pairs)]))
    for helper, name in pairs:
        table.setdefault(helper, {})[name] = verdict(helper, name)
        print(f"{helper:24} {name:36} {table[helper][name][:110]}", flush=True)
    STORED.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")

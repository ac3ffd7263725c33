"""What the support matrix executes inside the processes of each strategy.

Every feature is one function for `fit` and one for the custom loop. It trains
from the same weights on the same rows, and returns runs: lists of arrays that
must equal those of one device. Run by tests/test_support_matrix.py.
"""

import contextlib
import dataclasses
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from course_lib import devices, parameter_server, training

GLOBAL_BATCH, BATCHES, EPOCHS, REPLICAS = 16, 4, 2, 4
ROWS, UNEVEN_ROWS = BATCHES * GLOBAL_BATCH, BATCHES * GLOBAL_BATCH - 3  # 13 rows on 4 replicas: 4, 4, 4, 1
ASYNCHRONOUS_STEPS = 300

_draw = np.random.default_rng(0)
X = _draw.random((ROWS, 8), dtype="float32")
Y = _draw.integers(0, 4, ROWS)
KERNELS = [0.3 * _draw.normal(size=shape).astype("float32") for shape in ((8, 16), (16, 4))]

mean_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


MIXINS = {
    "MultiWorkerFit": training.MultiWorkerFit,
    "ExactPartialBatches": training.ExactPartialBatches,
    "SeveralSteps": training.SeveralSteps,
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A strategy in its processes.

    name        "one device", "mirrored", "multi-worker", "parameter server" or "jax"
    strategy    None on JAX, where the distribution is global
    folder      this task's own
    remedies    names of what fixes the feature; none is stock Keras
    """

    name: str
    strategy: object
    folder: Path
    coordinator: object = None
    remedies: tuple[str, ...] = ()

    def scope(self):
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    @property
    def model_class(self):
        bases = tuple(mixin for name, mixin in MIXINS.items() if name in self.remedies)
        return type("Fixed", (*bases, keras.Model), {}) if bases else keras.Model

    @property
    def alone(self) -> "Setting":
        """One device in the same process."""
        one = tf.distribute.get_strategy()
        return dataclasses.replace(self, name="one device", strategy=one, coordinator=None)

    def dataset(self, rows=ROWS, x=X):
        return tf.data.Dataset.from_tensor_slices((x[:rows], Y[:rows])).batch(GLOBAL_BATCH)

    def optimizer(self, **options):
        return keras.optimizers.SGD(0.1, momentum=0.9, **options)

    def loss_scale(self):
        wrapper = (
            training.AgreeingLossScale if "AgreeingLossScale" in self.remedies else keras.optimizers.LossScaleOptimizer
        )
        return wrapper(self.optimizer())

    def model(self, batch_norm=False, dtype="float32"):
        inputs = keras.Input((8,))
        # Normalisation subtracts the mean, and with it any bias, whose gradient would be rounding alone.
        x = keras.layers.Dense(16, use_bias=not batch_norm, name="hidden", dtype=dtype)(inputs)
        if batch_norm:
            # On JAX a sharded batch is one batch, and there is nothing to synchronise.
            x = keras.layers.BatchNormalization(synchronized="synchronized=True" in self.remedies, momentum=0.5)(x)
        outputs = keras.layers.Dense(4, name="logits")(keras.layers.ReLU(dtype=dtype)(x))
        model = self.model_class(inputs, outputs)
        for layer, kernel in zip(("hidden", "logits"), KERNELS):
            model.get_layer(layer).kernel.assign(kernel)
        return model


def weights(model) -> list[np.ndarray]:
    return [np.asarray(value) for value in model.get_weights()]


def with_infinity() -> np.ndarray:
    """The rows, with an overflow in the second batch for its last replica alone."""
    x = X.copy()
    x[2 * GLOBAL_BATCH - 1] = np.inf
    return x


def halve_each_epoch(epoch, rate):
    return rate * 0.5**epoch


# ---------------------------------------------------------------- fit


def compiled(setting, optimizer=None, model=None, **options):
    with setting.scope():
        model = model or setting.model()
        model.compile(optimizer or setting.optimizer(), mean_loss, metrics=["accuracy"], **options)
    return model


def fitted(setting, model, rows=ROWS, x=X, epochs=EPOCHS, **options):
    if setting.name == "jax":
        data = {"x": x[:rows], "y": Y[:rows], "batch_size": GLOBAL_BATCH}
    else:
        data = {"x": setting.dataset(rows, x)}
    history = model.fit(**data, epochs=epochs, shuffle=False, verbose=0, **options).history
    return [float(np.ravel(loss)[0]) for loss in history["loss"]]


def fit_training(setting):
    model = compiled(setting)
    losses = fitted(setting, model)
    return [[*weights(model), np.asarray(losses)]]


def fit_accumulation(setting):
    with setting.scope():
        optimizer = setting.optimizer(gradient_accumulation_steps=2)
    model = compiled(setting, optimizer)
    fitted(setting, model)
    return [weights(model)]


def fit_overflow(setting):
    with setting.scope():
        model = setting.model(dtype="mixed_float16")
        optimizer = setting.loss_scale()
    model = compiled(setting, optimizer, model)
    fitted(setting, model, x=with_infinity(), epochs=1)
    return [[*weights(model), np.asarray(optimizer.dynamic_scale.numpy())]]


def fit_uneven(setting):
    model = compiled(setting)
    fitted(setting, model, rows=UNEVEN_ROWS)
    return [weights(model)]


def fit_batch_norm(setting):
    with setting.scope():
        model = setting.model(batch_norm=True)
    model = compiled(setting, model=model)
    fitted(setting, model)
    return [weights(model)]


def fit_steps_per_execution(setting):
    model = compiled(setting, steps_per_execution=2)
    fitted(setting, model)
    return [weights(model)]


def fit_jit_compile(setting):
    model = compiled(setting, jit_compile=True)
    fitted(setting, model)
    return [weights(model)]


def fit_callbacks(setting):
    model, path = compiled(setting), setting.folder / "checkpoint.weights.h5"
    scheduler = keras.callbacks.LearningRateScheduler(halve_each_epoch)
    fitted(setting, model, callbacks=[scheduler, keras.callbacks.ModelCheckpoint(path, save_weights_only=True)])
    return [weights(model), reloaded(setting, path)]


def reloaded(setting, path):
    fresh = compiled(setting.alone)
    fresh.optimizer.build(fresh.trainable_variables)
    fresh.load_weights(path)
    return weights(fresh)


def fit_save_and_restore(setting):
    """One epoch here, the next one elsewhere, and the other way round."""
    return [halfway(first, second, number) for number, (first, second) in enumerate(moves(setting))]


def moves(setting):
    smaller = [dataclasses.replace(setting, strategy=half_the_replicas())] if setting.name == "mirrored" else []
    return [(setting, setting.alone), (setting.alone, setting), *((setting, fewer) for fewer in smaller)]


def half_the_replicas():
    # A second strategy with collectives would take the first one's for its own.
    names = [f"CPU:{i}" for i in range(REPLICAS // 2)]
    return tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())


def halfway(first, second, number):
    path = first.folder / f"halfway-{number}.keras"
    model = compiled(first)
    fitted(first, model, epochs=1)
    model.save(path)
    with second.scope():
        model = keras.models.load_model(path, custom_objects={"Fixed": second.model_class})
    fitted(second, model, epochs=1)
    return weights(model)


def fit_evaluate(setting):
    model = compiled(setting)
    data = {"x": X, "y": Y, "batch_size": GLOBAL_BATCH} if setting.name == "jax" else {"x": setting.dataset()}
    logs = model.evaluate(**data, verbose=0, return_dict=True)
    return [[np.ravel(logs[name])[:1] for name in ("loss", "accuracy")]]


def fit_predict(setting):
    model = compiled(setting)
    data = X if setting.name == "jax" else setting.dataset().map(lambda x, y: x)
    return [[model.predict(data, batch_size=GLOBAL_BATCH if setting.name == "jax" else None, verbose=0)]]


def fit_count(setting):
    model = compiled(setting)
    fitted(setting, model)
    return [[np.asarray(int(model.optimizer.iterations.numpy()) / (EPOCHS * BATCHES))]]


# ---------------------------------------------------------------- the custom loop


def tutorial_step(model, optimizer, jit_compile=False):
    """A replica's step as TensorFlow's tutorial on custom training writes it, with Keras 3's loss scaling."""

    def compute(x, y):
        with tf.GradientTape() as tape:
            losses = per_example_loss(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(scaled, model.trainable_variables), model.trainable_variables))
        return loss

    return tf.function(compute, jit_compile=True) if jit_compile else compute


def loop_step(setting, model, optimizer, **options):
    """step(batch) -> the global batch's loss."""
    if "replicated_step" in setting.remedies:
        return training.replicated_step(setting.strategy, model, optimizer, per_example_loss)
    if "asynchronous_step" in setting.remedies:
        update = parameter_server.asynchronous_step(setting.strategy, model, optimizer, per_example_loss)
        return tf.function(lambda batch: update(*batch)[0])
    replica_step = tutorial_step(model, optimizer, **options)

    @tf.function
    def step(batch):
        return setting.strategy.reduce("SUM", setting.strategy.run(replica_step, args=batch), axis=None)

    return step


def looped(setting, model, optimizer, rows=ROWS, x=X, epochs=EPOCHS, step=None, each_epoch=lambda epoch: None):
    step = step or loop_step(setting, model, optimizer)
    losses = []
    for epoch in range(epochs):
        each_epoch(epoch)
        if setting.coordinator:
            results = one_by_one(setting, step, setting.dataset(rows, x))
        else:
            results = [
                step(batch) for batch in setting.strategy.experimental_distribute_dataset(setting.dataset(rows, x))
            ]
        losses.append(np.mean([float(result) for result in results]))
    return losses


def one_by_one(setting, step, batches):
    """Scheduled steps that wait for each other, so that no worker reads stale variables."""
    results = []
    for batch in batches:
        results.append(setting.coordinator.schedule(step, args=(batch,)))
        setting.coordinator.join()
    return [result.fetch() for result in results]


def made(setting, build=True, **options):
    with setting.scope():
        model, optimizer = setting.model(**options), setting.optimizer()
        if build:
            optimizer.build(model.trainable_variables)
    return model, optimizer


def loop_training(setting):
    model, optimizer = made(setting)
    losses = looped(setting, model, optimizer)
    return [[*weights(model), np.asarray(losses)]]


def loop_unbuilt(setting):
    model, optimizer = made(setting, build=False)
    losses = looped(setting, model, optimizer)
    return [[*weights(model), np.asarray(losses)]]


def loop_accumulation(setting):
    with setting.scope():
        model, optimizer = setting.model(), setting.optimizer(gradient_accumulation_steps=2)
        optimizer.build(model.trainable_variables)
    looped(setting, model, optimizer)
    return [weights(model)]


def loop_overflow(setting):
    with setting.scope():
        model, optimizer = setting.model(dtype="mixed_float16"), setting.loss_scale()
        optimizer.build(model.trainable_variables)
    looped(setting, model, optimizer, x=with_infinity(), epochs=1)
    return [[*weights(model), np.asarray(optimizer.dynamic_scale.numpy())]]


def loop_uneven(setting):
    model, optimizer = made(setting)
    looped(setting, model, optimizer, rows=UNEVEN_ROWS)
    return [weights(model)]


def loop_batch_norm(setting):
    model, optimizer = made(setting, batch_norm=True)
    looped(setting, model, optimizer)
    return [weights(model)]


def loop_steps_per_execution(setting):
    model, optimizer = made(setting)
    one = loop_step(setting, model, optimizer)
    if setting.coordinator:
        pairs = setting.dataset().batch(2)

        @tf.function
        def several(pair):
            for i in tf.range(2):
                one((pair[0][i], pair[1][i]))
            return 0.0

        for _ in range(EPOCHS):
            one_by_one(setting, several, pairs)
        return [weights(model)]

    @tf.function
    def several(iterator):
        for _ in tf.range(2):
            one(next(iterator))

    for _ in range(EPOCHS):
        iterator = iter(setting.strategy.experimental_distribute_dataset(setting.dataset()))
        for _ in range(BATCHES // 2):
            several(iterator)
    return [weights(model)]


def loop_jit_compile(setting):
    model, optimizer = made(setting)
    looped(setting, model, optimizer, step=loop_step(setting, model, optimizer, jit_compile=True))
    return [weights(model)]


def loop_callbacks(setting):
    """The loop calls Keras' callbacks itself."""
    model, optimizer = made(setting)
    with setting.scope():
        model.compile(optimizer, mean_loss)
    path = setting.folder / "checkpoint.weights.h5"
    checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    callbacks = keras.callbacks.CallbackList(
        [keras.callbacks.LearningRateScheduler(halve_each_epoch), checkpoint], model=model
    )
    looped(setting, model, optimizer, each_epoch=callbacks.on_epoch_begin)
    callbacks.on_epoch_end(EPOCHS - 1, {})
    return [weights(model), reloaded(setting, path)]


def loop_save_and_restore(setting):
    return [checkpointed(first, second, number) for number, (first, second) in enumerate(moves(setting))]


def checkpointed(first, second, number):
    model, optimizer = made(first)
    looped(first, model, optimizer, epochs=1)
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(first.folder / f"checkpoint-{number}"))
    model, optimizer = made(second)
    tf.train.Checkpoint(model=model, optimizer=optimizer).read(path).assert_existing_objects_matched()
    looped(second, model, optimizer, epochs=1)
    return weights(model)


def loop_evaluate(setting):
    with setting.scope():
        model, loss, accuracy = setting.model(), keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

    def update(x, y):
        logits = model(x, training=False)
        loss.update_state(per_example_loss(y, logits))
        accuracy.update_state(y, logits)

    @tf.function
    def step(batch):
        setting.strategy.run(update, args=batch)
        return 0.0

    if setting.coordinator:
        one_by_one(setting, step, setting.dataset())
    else:
        for batch in setting.strategy.experimental_distribute_dataset(setting.dataset()):
            step(batch)
    return [[np.ravel(metric.result().numpy()) for metric in (loss, accuracy)]]


def loop_predict(setting):
    with setting.scope():
        model = setting.model()

    @tf.function
    def step(batch):
        return setting.strategy.run(lambda x, y: model(x, training=False), args=batch)

    if setting.coordinator:
        outputs = one_by_one(setting, step, setting.dataset())
    else:
        batches = setting.strategy.experimental_distribute_dataset(setting.dataset())
        outputs = [setting.strategy.gather(step(batch), axis=0) for batch in batches]
    return [[np.concatenate([np.asarray(output) for output in outputs])]]


def loop_count(setting):
    """Updates that the optimizer counted, as a share of those that were made; workers of servers make them at once."""
    model, optimizer = made(setting)
    if not setting.coordinator:
        looped(setting, model, optimizer)
        return [[np.asarray(int(optimizer.iterations.numpy()) / (EPOCHS * BATCHES))]]
    if "count_every_update" in setting.remedies:
        parameter_server.count_every_update(optimizer)
    step = loop_step(setting, model, optimizer)
    batch = next(iter(setting.dataset()))
    for _ in range(ASYNCHRONOUS_STEPS):
        setting.coordinator.schedule(step, args=(batch,))
    setting.coordinator.join()
    return [[np.asarray(int(optimizer.iterations.numpy()) / ASYNCHRONOUS_STEPS)]]


# ---------------------------------------------------------------- the program


def opened(task, name: str) -> Setting:
    """Start the strategy in this process."""
    folder = task.folder / task.name
    folder.mkdir(exist_ok=True)
    if name in ("one device", "mirrored"):
        os.environ.pop("TF_CONFIG")  # of the job that started this process; these strategies have one process
        names = devices.simulate(REPLICAS).names
        strategy = tf.distribute.MirroredStrategy(names) if name == "mirrored" else tf.distribute.get_strategy()
    elif name == "multi-worker":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif name == "parameter server":
        strategy, coordinator = parameter_server.connect()
        return Setting(name, strategy, folder, coordinator)
    elif name == "jax":
        devices.simulate(REPLICAS, "jax")
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        strategy = None
    return Setting(name, strategy, folder)


def execute(task, name: str, cases: list) -> None:
    """Run cases (api, feature, remedies) one after another; report each as soon as it is known.

    A step that failed inside its replicas may leave threads and collectives
    that no later case can use, so the process ends there, and the rest starts
    in a fresh one.
    """
    setting = opened(task, name)
    for api, feature, remedies in cases:
        case = f"{api}/{feature}/{'+'.join(remedies)}"
        task.report(case=case, began=1)
        try:
            runs = globals()[f"{api}_{feature}"](dataclasses.replace(setting, remedies=tuple(remedies)))
        except Exception as error:  # whatever it is, it is this cell's verdict
            task.report(case=case, error=type(error).__name__, message=str(error))
            if isinstance(error, (tf.errors.OpError, RuntimeError)):
                raise
        else:
            task.report(case=case, runs=[[np.asarray(value).tolist() for value in run] for run in runs])

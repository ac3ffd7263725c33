"""Two real worker processes against one device: the loop, fit, and recovery to the undisturbed losses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from course_lib import cluster, compare, data, models, training
from course_lib.errors import CourseError

# Sums over 32 + 32 rows in another order than over 64; Adam magnifies that where gradients are tiny.
FLOAT32 = {"relative": 1e-5, "reason": "float32 sums in another order, over ten steps"}
ROWS, UNEVEN_ROWS, GLOBAL_BATCH = 640, 597, 64  # 597 = 9 * 64 + 21: shards of 11 and 10 rows


def fit(task, rows, global_batch):
    import keras
    import tensorflow as tf

    from course_lib import compare, data, models, training

    class Model(training.MultiWorkerFit, training.ExactPartialBatches, keras.Model):
        pass

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow's
    images, labels = data.arrays("digits", "train")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = (
        tf.data.Dataset.from_tensor_slices((images[:rows], labels[:rows])).batch(global_batch).with_options(options)
    )
    with strategy.scope():
        network = models.mlp((8, 8, 1), classes=10)
        model = Model(network.inputs, network.outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    history = model.fit(batches, epochs=1, shuffle=False, verbose=0).history
    loss, accuracy = model.evaluate(batches, verbose=0)
    metrics = {"accuracy": history["accuracy"][0], "evaluated loss": loss, "evaluated accuracy": accuracy}
    return compare.Run.of(task.name, model, history["loss"], metrics)


def stock_fit(task):
    """Keras' own fit, and fit with each half of the mixin: the first line of what each raises, or "runs"."""
    import keras
    import tensorflow as tf

    from course_lib import data, models, training

    class OnlyTheBuild(keras.Model):
        _maybe_symbolic_build = training.MultiWorkerFit._maybe_symbolic_build

    class OnlyTheLogs(keras.Model):
        def train_step(self, data):
            return {name: tf.reshape(value, (1,)) for name, value in super().train_step(data).items()}

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    batches = data.epoch_batches(*data.arrays("digits", "train"), 64, epoch=0)

    def try_fit(model_class):
        with strategy.scope():
            network = models.mlp((8, 8, 1), classes=10)
            model = model_class(network.inputs, network.outputs)
            model.compile(
                keras.optimizers.SGD(0.1),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )
        try:
            model.fit(batches, epochs=1, verbose=0, shuffle=False)
        except Exception as error:
            return type(error).__name__
        return "runs"

    return {kind.__name__: try_fit(kind) for kind in (keras.Model, OnlyTheBuild, OnlyTheLogs)}


def train(task, steps_per_epoch, epochs, save_every):
    import keras
    import tensorflow as tf

    from course_lib import compare, data, models, training

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    images, labels = (values[: 64 * steps_per_epoch] for values in data.arrays("digits", "train"))
    with strategy.scope():
        model = models.mlp((8, 8, 1), classes=10)
        optimizer = keras.optimizers.Adam(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    step = training.replicated_step(strategy, model, optimizer, loss)
    resume = training.ResumePoint(task.folder, model, optimizer, task.is_chief)
    done = resume.restore()
    for epoch in range(done // steps_per_epoch, epochs):
        batches = data.epoch_batches(images, labels, 64, epoch).skip(done % steps_per_epoch)
        for batch in strategy.experimental_distribute_dataset(batches):
            value, done = float(step(batch)), done + 1
            task.report(step=done, loss=value)
            if done % save_every == 0:
                resume.save()
    return compare.Run.of(task.name, model)


def losses_of(outcome) -> dict[int, float]:
    return {report.values["step"]: report.values["loss"] for report in outcome.reports if report.task == "worker 0"}


def assert_identical_workers(outcome) -> compare.Run:
    first, second = outcome.results.values()
    for path, weight in first.weights.items():
        np.testing.assert_array_equal(weight, second.weights[path])
    return first


def one_device_fit(rows: int) -> compare.Run:
    images, labels = data.arrays("digits", "train")
    batches = tf.data.Dataset.from_tensor_slices((images[:rows], labels[:rows])).batch(GLOBAL_BATCH)
    model = models.mlp((8, 8, 1), classes=10)
    model.compile(
        keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    history = model.fit(batches, epochs=1, shuffle=False, verbose=0).history
    loss, accuracy = model.evaluate(batches, verbose=0)
    metrics = {"accuracy": history["accuracy"][0], "evaluated loss": loss, "evaluated accuracy": accuracy}
    return compare.Run.of("one device", model, history["loss"], metrics)


@pytest.mark.parametrize("rows", [ROWS, UNEVEN_ROWS])
def test_fit_on_two_workers_equals_one_device(rows):
    outcome = cluster.run(cluster.Job(fit, arguments={"rows": rows, "global_batch": GLOBAL_BATCH}))
    compare.assert_equal(one_device_fit(rows), assert_identical_workers(outcome), **FLOAT32)


def test_fit_still_needs_both_halves_of_the_mixin():
    """keras issue 20585: fails when Keras no longer needs MultiWorkerFit, or needs less of it."""
    outcome = cluster.run(cluster.Job(stock_fit))
    for verdicts in outcome.results.values():
        assert all(verdict.endswith("Error") for verdict in verdicts.values()), verdicts


@pytest.mark.parametrize("victim", ["worker 0", "worker 1"])
def test_a_killed_worker_is_recovered_to_the_undisturbed_losses(victim):
    arguments = {"steps_per_epoch": 6, "epochs": 2, "save_every": 4}
    calm = cluster.run(cluster.Job(train, arguments=arguments))
    with cluster.start(cluster.Job(train, arguments=arguments, restarts=1)) as running:
        running.wait_report(victim, step=6)
        running.kill(victim)
        recovered = running.outcome()
    assert recovered.restarts == 1
    again = [report.values["step"] for report in recovered.reports if report.attempt == 1]
    assert min(again) in (5, 9)  # after the save at 4, or at 8 when the kill came late: not from the start
    calm_losses, losses = losses_of(calm), losses_of(recovered)
    assert losses.keys() == calm_losses.keys() == set(range(1, 13))
    # The same sums in the same order: nothing may differ but what two float32 additions may swap.
    np.testing.assert_allclose([losses[step] for step in calm_losses], list(calm_losses.values()), rtol=1e-6)
    compare.assert_equal(
        assert_identical_workers(calm), assert_identical_workers(recovered), relative=1e-6, reason="as above"
    )


def trained(steps: int):
    model, optimizer = models.mlp((8, 8, 1), classes=10), keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    step = training.single_device_step(model, optimizer, loss)
    images, labels = data.arrays("digits", "train")
    for x, y in data.epoch_batches(images, labels, 64, epoch=0).take(steps):
        step(x, y)
    return model, optimizer, step


def test_a_resume_point_brings_back_weights_slots_and_step(tmp_path):
    model, optimizer, _ = trained(3)
    training.ResumePoint(tmp_path, model, optimizer).save()
    other, other_optimizer, _ = trained(0)
    assert training.ResumePoint(tmp_path, other, other_optimizer).restore() == 3
    for one, two in zip([*model.weights, *optimizer.variables], [*other.weights, *other_optimizer.variables]):
        np.testing.assert_array_equal(one.numpy(), two.numpy(), err_msg=one.path)


def test_a_resume_point_brings_back_what_is_not_trained(tmp_path):
    """The mean and variance of a normalization layer, which no optimizer holds."""

    def made(value):
        model, optimizer = (
            keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization()]),
            keras.optimizers.SGD(),
        )
        optimizer.build(model.trainable_variables)
        model.set_weights([np.full(2, value, "float32")] * 4)
        return model, training.ResumePoint(tmp_path, model, optimizer)

    made(3.0)[1].save()
    model, point = made(7.0)
    point.restore()
    assert [weights.tolist() for weights in model.get_weights()] == [[3.0, 3.0]] * 4


def test_without_a_saved_state_a_resume_point_begins_at_zero(tmp_path):
    model, optimizer, _ = trained(0)
    assert training.ResumePoint(tmp_path, model, optimizer).restore() == 0


def test_only_the_chiefs_state_counts(tmp_path):
    model, optimizer, _ = trained(2)
    training.ResumePoint(tmp_path, model, optimizer, is_chief=False).save()
    assert training.ResumePoint(tmp_path, model, optimizer).restore() == 2  # its own, untouched
    fresh, fresh_optimizer, _ = trained(0)
    assert training.ResumePoint(tmp_path, fresh, fresh_optimizer).restore() == 0


def test_a_save_that_was_cut_short_leaves_the_state_before_it(tmp_path):
    model, optimizer, step = trained(2)
    point = training.ResumePoint(tmp_path, model, optimizer)
    point.save()
    # The new files are there, and the small one that names the newest is not yet renamed.
    tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(tmp_path / "checkpoint" / "ckpt-2"))
    (tmp_path / "checkpoint" / "ckpt-2.index").write_bytes(b"cut short")
    fresh, fresh_optimizer, _ = trained(0)
    assert training.ResumePoint(tmp_path, fresh, fresh_optimizer).restore() == 2


def test_an_optimizer_without_variables_is_refused(tmp_path):
    model = models.mlp((8, 8, 1), classes=10)
    with pytest.raises(CourseError, match="optimizer.build"):
        training.ResumePoint(tmp_path, model, keras.optimizers.Adam())


def resume_from_own_folders(task):
    """Each worker saves where the others do not look, as on machines that share no disk."""
    import keras
    import tensorflow as tf

    from course_lib import training
    from course_lib.errors import CourseError

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    point = training.ResumePoint(task.folder / task.name, model, optimizer, task.is_chief)
    fresh = point.restore()
    optimizer.iterations.assign(7)
    point.save()
    optimizer.iterations.assign(0)
    try:
        return fresh, point.restore()
    except CourseError as error:
        return fresh, str(error)


def test_workers_that_share_no_folder_stop_before_they_train():
    outcome = cluster.run(cluster.Job(resume_from_own_folders), show=None)
    for fresh, said in outcome.results.values():
        assert fresh == 0 and said.startswith(
            "the workers found different steps to go on from, 7, 0: they do not share"
        )

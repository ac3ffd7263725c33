"""Worker programs of exercise 03's mistakes, which worker processes import by name. Needs TensorFlow.

Each but `train` is the solution with one thing wrong.
"""

import os
import signal
import tempfile


def train(task, **settings):
    return _train(task, **settings)


def alone(task, **settings):
    return _train(task, **settings, strategy_name="MirroredStrategy")


def alone_on_own_half(task, **settings):
    return _train(
        task, **settings, strategy_name="MirroredStrategy", rows=lambda rows: rows.shard(task.workers, task.index)
    )


def not_sharded(task, **settings):
    return _train(task, **settings, policy="OFF")


def unseeded_shuffle(task, **settings):
    return _train(task, **settings, rows=lambda rows: rows.shuffle(len(rows)))


def global_batch_each(task, *, global_batch, **settings):
    return _train(task, **settings, global_batch=global_batch * task.workers)


def local_batch_shared(task, *, global_batch, **settings):
    return _train(task, **settings, global_batch=global_batch // task.workers)


def local_mean(task, **settings):
    return _train(task, **settings, loss_factor=task.workers)


def own_loss(task, **settings):
    return _train(task, **settings, tell_own_loss=True)


def outside_the_scope(task, **settings):
    return _train(task, **settings, in_scope=False)


def _train(
    task,
    x,
    y,
    first_weights,
    learning_rate,
    global_batch,
    epochs,
    *,
    strategy_name="MultiWorkerMirroredStrategy",
    in_scope=True,
    rows=lambda rows: rows,
    policy="DATA",
    loss_factor=1,
    tell_own_loss=False,
):
    import contextlib

    import keras
    import numpy as np
    import tensorflow as tf

    from course_lib import training

    strategy = getattr(tf.distribute, strategy_name)()
    with strategy.scope() if in_scope else contextlib.nullcontext():
        model = _linear_model(first_weights)
        optimizer = keras.optimizers.SGD(learning_rate)
    squared = keras.losses.MeanSquaredError(reduction="none")

    def loss(labels, outputs):
        return loss_factor * squared(labels, outputs)

    step = training.replicated_step(strategy, model, optimizer, loss)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    examples = tf.data.Dataset.from_tensor_slices((np.float32(x), np.float32(y).reshape(-1, 1)))
    batches = strategy.experimental_distribute_dataset(rows(examples).batch(global_batch).with_options(options))
    losses, targets = [], []
    for _ in range(epochs):
        for batch in batches:
            x_local, y_local = (strategy.experimental_local_results(part)[0].numpy() for part in batch)
            targets += y_local.ravel().tolist()
            own = float(np.mean((x_local @ model.weights[0].numpy() - y_local) ** 2))
            everybodys = float(step(batch))
            losses.append(own if tell_own_loss else everybodys)
    return {
        "replicas": strategy.num_replicas_in_sync,
        "updates": int(optimizer.iterations.numpy()),
        "weights": model.weights[0].numpy().ravel().tolist(),
        "losses": losses,
        "targets": targets,
    }


def weights_alone(task, **settings):
    return _train_through(task, **settings, keep_optimizer=False)


def folder_of_its_own(task, **settings):
    with tempfile.TemporaryDirectory() as folder:
        return _train_through(task, **settings, folder=folder)


def first_step_again(task, **settings):
    return _train_through(task, **settings, go_on_after=lambda done: 0)


def epoch_again(task, **settings):
    return _train_through(task, **settings, skip=False)


def order_of_the_process(task, **settings):
    return _train_through(task, **settings, first_epoch_of_process=True)


def one_order(task, **settings):
    return _train_through(task, **settings, one_order=True)


def saved_once_an_epoch(task, *, save_every, **settings):
    steps = len(settings["y"]) // settings["global_batch"]
    return _train_through(task, **settings, save_every=steps)


def never_cut(task, **settings):
    return _train_through(task, **settings | {"victim": "nobody"})


def _train_through(
    task,
    x,
    y,
    first_weights,
    global_batch,
    epochs,
    save_every,
    victim,
    dies_after,
    *,
    keep_optimizer=True,
    folder=None,
    go_on_after=lambda done: done,
    skip=True,
    first_epoch_of_process=False,
    one_order=False,
):
    import keras
    import numpy as np
    import tensorflow as tf

    from course_lib import data, training

    x, y = np.float32(x), np.float32(y).reshape(-1, 1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = _linear_model(first_weights)
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
    step = training.replicated_step(strategy, model, optimizer, keras.losses.MeanSquaredError(reduction="none"))
    resume = training.ResumePoint(folder or task.folder, model, optimizer, task.is_chief)
    saved, steps = resume.restore(), len(y) // global_batch
    if not keep_optimizer and saved:
        for variable in (optimizer.iterations, *optimizer.momentums):
            variable.assign(np.zeros(variable.shape))
    done = go_on_after(saved)
    first_epoch = done // steps
    for epoch in range(first_epoch, epochs):
        order = 0 if one_order else epoch - first_epoch * first_epoch_of_process
        batches = data.epoch_batches(x, y, global_batch, order).skip(done % steps if skip else 0)
        for batch in strategy.experimental_distribute_dataset(batches):
            value, done = float(step(batch)), done + 1
            task.report(step=done, loss=value)
            if done % save_every == 0:
                resume.save()
            if (task.name, task.attempt, done) == (victim, 0, dies_after):
                os.kill(os.getpid(), signal.SIGKILL)
    return {"updates": int(optimizer.iterations.numpy()), "weights": model.weights[0].numpy().ravel().tolist()}


def _linear_model(first_weights):
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.reshape(first_weights, (3, 1))])
    return model

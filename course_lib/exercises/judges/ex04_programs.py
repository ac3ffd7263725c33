"""Coordinators' programs of exercise 04's mistakes, which processes import by name. Needs TensorFlow.

Each but `train` and `train_through` is the solution with one thing wrong.
"""

import contextlib
import tempfile


def train(task, **settings):
    return _train(task, **settings)


def not_cut(task, **settings):
    return _train(task, **settings, pieces=1)


def cut_in_four(task, **settings):
    return _train(task, **settings, pieces=4)


def outside_the_scope(task, **settings):
    return _train(task, **settings, in_scope=False)


def counted_as_keras_counts(task, **settings):
    return _train(task, **settings, count_every_update=False)


def in_turns(task, **settings):
    return _train(task, **settings, wait="each")


def not_waited_for(task, **settings):
    return _train(task, **settings, wait="never")


def summed(task, **settings):
    return _train(task, **settings, sum_of_batch=True)


def without_values(task, *, batches, **settings):
    return _train(task, **settings, batches=[(x, [1.0] * len(values)) for x, values in batches])


def _train(
    task,
    batches,
    rows,
    width,
    learning_rate,
    *,
    pieces=2,
    in_scope=True,
    count_every_update=True,
    wait="end",
    sum_of_batch=False,
):
    import keras
    import numpy as np
    import tensorflow as tf

    from course_lib import parameter_server as servers

    cut = tf.distribute.experimental.partitioners.FixedShardsPartitioner(pieces)
    strategy, coordinator = servers.connect(cut if pieces > 1 else None)
    with strategy.scope() if in_scope else contextlib.nullcontext():
        model, optimizer = _table_model(rows, width, len(batches[0][0][0])), keras.optimizers.SGD(learning_rate)
        parts = servers.parts(model.trainable_variables)
        optimizer.build(parts)
    with strategy.scope():
        applied = tf.Variable(0, dtype=tf.int64, trainable=False)
    if count_every_update:
        servers.count_every_update(optimizer)
    reduce = tf.reduce_sum if sum_of_batch else tf.reduce_mean

    def worker_step(x, values):
        read_at = applied.read_value()
        with tf.control_dependencies([read_at]), tf.GradientTape() as tape:
            loss = reduce(-values * tf.reduce_sum(model(x), axis=(1, 2)))
        gradients = tape.gradient(loss, parts)
        with tf.control_dependencies(tf.nest.flatten(gradients, expand_composites=True)):
            optimizer.apply_gradients(zip(gradients, parts))
            return applied.assign_add(1, read_value=True) - 1 - read_at

    @tf.function
    def step(x, values):
        return strategy.run(worker_step, args=(x, values))

    scheduled = []
    for x, values in batches:
        scheduled.append(coordinator.schedule(step, args=(np.int32(x), np.float32(values))))
        if wait == "each":
            coordinator.join()
    if wait == "end":
        coordinator.join()
    counted, table = int(optimizer.iterations.numpy()), np.concatenate([part.numpy() for part in parts])
    return {
        "shards": [[shard.server, shard.shape[0]] for shard in servers.shards(model.trainable_variables[0])],
        "counted": counted,
        "table": table.tolist(),
        "staleness": [int(remote.fetch()) for remote in scheduled],
    }


def _table_model(rows, width, looked_up):
    import keras

    from course_lib import parameter_server as servers

    layers = [servers.ServedEmbedding(rows, width, embeddings_initializer="zeros")]
    return keras.Sequential([keras.Input((looked_up,), dtype="int32"), *layers])


def train_through(task, **settings):
    return _train_through(task, **settings)


def never_cut(task, **settings):
    return _train_through(task, **settings, power=False)


def folder_of_its_own(task, **settings):
    with tempfile.TemporaryDirectory() as folder:
        return _train_through(task, **settings, folder=folder)


def all_batches_again(task, **settings):
    return _train_through(task, **settings, go_on_after=lambda done: 0)


def first_batches_again(task, **settings):
    return _train_through(task, **settings, batches_from=lambda done, resumed: done - resumed)


def counter_forgotten(task, **settings):
    return _train_through(task, **settings, keep_counter=False)


def table_forgotten(task, **settings):
    return _train_through(task, **settings, keep_table=False)


def saved_after_every_group(task, *, save_every, **settings):
    return _train_through(task, **settings, save_every=settings["together"])


def _train_through(
    task,
    batches,
    rows,
    width,
    learning_rate,
    together,
    save_every,
    dies_after,
    *,
    power=True,
    folder=None,
    go_on_after=lambda done: done,
    batches_from=lambda done, resumed: done,
    keep_counter=True,
    keep_table=True,
):
    import keras
    import numpy as np
    import tensorflow as tf

    from course_lib import parameter_server as servers
    from course_lib import training

    batches = [(np.int32(x), np.float32(values)) for x, values in batches]
    strategy, coordinator = servers.connect()
    with strategy.scope():
        model = _table_model(rows, width, batches[0][0].shape[1])
        optimizer = keras.optimizers.SGD(learning_rate)
    step = servers.asynchronous_step(
        strategy, model, optimizer, lambda values, found: -values * tf.reduce_sum(found, axis=(1, 2))
    )
    point = training.ResumePoint(folder or task.folder, model, optimizer)
    resumed = done = go_on_after(point.restore())
    if resumed and not keep_counter:
        optimizer.iterations.assign(0)
    if resumed and not keep_table:
        model.set_weights([np.zeros((rows, width))])
    while done < len(batches):
        first = batches_from(done, resumed)
        servers.run_steps(coordinator, step, batches[first : first + together])
        done += together
        if done % save_every == 0:
            point.save()
        task.report(done=done)
        if power and (task.attempt, done) == (0, dies_after):
            task.report(power_cut=True)
            while True:  # until the server that is asked is gone
                optimizer.iterations.numpy()
    return {"counted": int(optimizer.iterations.numpy()), "table": model.get_weights()[0].tolist()}

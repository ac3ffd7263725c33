"""A fast input pipeline, and one whose order a restart can repeat. Needs TensorFlow; taught in notebooks/01."""

from collections.abc import Callable

import numpy as np

from course_lib.errors import CourseError

UNKNOWN_SIZE_SHUFFLE_BUFFER = 10_000


def input_pipeline(
    dataset,
    global_batch: int,
    *,
    shuffle_seed: int | None = None,
    map_fn: Callable | None = None,
    cache: bool = True,
    drop_remainder: bool = True,
    replicas: int = 1,
    say: Callable[[str], None] = print,
):
    """Turn (image uint8, label) examples into prefetched batches, each piece of work where it is cheapest.

    cache, then shuffle, then batch, then scale and map whole batches in
    parallel, then prefetch: what comes from files is read once, what is
    random runs each time, and nothing runs per example that can run per batch.

    dataset       tf.data.Dataset of (image uint8 (h, w, c), label ())
    global_batch  examples per step, over all replicas
    shuffle_seed  reshuffles the whole data set each epoch; None keeps the order
    map_fn        (images float32 (b, h, w, c) in [0, 1], labels (b,)) -> the same, on every batch
    cache         keep the examples in memory after the first epoch
    replicas      devices that share a global batch
    say           gets one line that says what was built
    Returns       tf.data.Dataset of (images float32 (b, h, w, c) in [0, 1], labels (b,))
    Raises        CourseError when a batch does not reach every replica, or no full batch exists
    """
    import tensorflow as tf

    examples = int(dataset.cardinality())  # negative when unknown or infinite
    _require_batch(global_batch, replicas, examples, drop_remainder)
    if cache:
        dataset = dataset.cache()
    if shuffle_seed is not None:
        dataset = dataset.shuffle(examples if examples > 0 else UNKNOWN_SIZE_SHUFFLE_BUFFER, seed=shuffle_seed)
    dataset = dataset.batch(global_batch, drop_remainder=drop_remainder, num_parallel_calls=tf.data.AUTOTUNE)

    def prepare(images, labels):
        images = tf.cast(images, tf.float32) / 255
        return map_fn(images, labels) if map_fn else (images, labels)

    dataset = dataset.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    say(_pipeline_line(examples, global_batch, shuffle_seed, cache, drop_remainder, replicas))
    return dataset.with_options(_sharded_by_examples(tf))


def epoch_batches(images: np.ndarray, labels: np.ndarray, global_batch: int, epoch: int, *, seed: int = 0):
    """One epoch's batches, in an order that depends on the epoch and the seed alone.

    `input_pipeline` reshuffles each time it is read, so its order depends on
    how often a process has read it: a process that starts again in the third
    epoch would get the first one's order. This one continues where it was.

    images, labels  (n, ...) and (n,)
    global_batch    examples per step, over all replicas and workers
    Returns         tf.data.Dataset of (images (b, ...), labels (b,)) without the last partial batch;
                    several workers share the examples of each batch
    """
    import tensorflow as tf

    order = np.random.default_rng([seed, epoch]).permutation(len(labels))
    dataset = tf.data.Dataset.from_tensor_slices((images[order], labels[order])).batch(
        global_batch, drop_remainder=True
    )
    return dataset.with_options(_sharded_by_examples(tf)).prefetch(tf.data.AUTOTUNE)


def _sharded_by_examples(tf):
    """Several workers share the examples, not the (single) file."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return options


def _require_batch(global_batch: int, replicas: int, examples: int, drop_remainder: bool) -> None:
    if global_batch < replicas:
        raise CourseError(
            f"A global batch of {global_batch} is smaller than the {replicas} replicas that share it, "
            f"so some would get nothing: use at least {replicas}."
        )
    last = examples % global_batch if examples > 0 and not drop_remainder else 0
    shard = -(-last // replicas)  # TensorFlow fills shards of this size in turn, so the last replicas may go empty
    if last and shard * (replicas - 1) >= last:
        raise CourseError(
            f"{examples:,} examples in batches of {global_batch} leave {last} for the last batch: in shards of {shard} "
            f"they don't reach all {replicas} replicas. Use drop_remainder=True, or another batch size."
        )
    if drop_remainder and 0 <= examples < global_batch:
        raise CourseError(
            f"A global batch of {global_batch:,} is larger than the data set's {examples:,} examples, so with "
            f"drop_remainder no batch is left: use at most {examples:,}, or drop_remainder=False."
        )


def _pipeline_line(examples, global_batch, shuffle_seed, cache, drop_remainder, replicas) -> str:
    size = f"{examples:,} examples" if examples >= 0 else "examples (count unknown)"
    order = f"reshuffled each epoch (seed {shuffle_seed})" if shuffle_seed is not None else "in order"
    share = f" ({global_batch / replicas:g} on each of {replicas} replicas)" if replicas > 1 else ""
    dropped = examples % global_batch if drop_remainder and examples > 0 else 0
    parts = [f"input: {size}", "cached" if cache else "", order, f"batches of {global_batch:,}{share}"]
    parts += [f"the last {dropped} dropped" if dropped else "", "scaled to [0, 1], prefetched"]
    return ", ".join(filter(None, parts))

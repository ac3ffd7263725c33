"""Probe of exercise 04's q3: a table in pieces.

Needs NumPy and TensorFlow. The inputs are functions of the seed.
"""

import numpy as np

from course_lib.exercises.probes.state import device_names, device_of, genuine


def tables_to_cut(seed: int) -> list[tuple[np.ndarray, list[np.ndarray]]]:
    """q3's tables, (rows, width) float32, each with batches of numbers, (n,) int32.

    One whose rows 4 devices cannot share evenly: its first batch is one number, which is not its shard's first or last.
    One of two rows, for 3 devices; one that 2 devices cannot share evenly; one for a single device; two of whose rows,
    times devices over rows in float32, the first of a shard comes out below a whole number.
    """
    rng = np.random.default_rng(seed)
    rows = 4 * int(rng.integers(4, 9)) + 2
    table = rng.normal(size=(rows, int(rng.integers(2, 5)))).astype("float32")
    batches = [np.array([rows - 2], "int32"), *(rng.integers(0, rows, size, "int32") for size in (9, 14))]
    few = [np.array([1, 0, 1], "int32")], [np.array([6, 0, 3, 8], "int32")], [np.array([4, 2], "int32")]
    long = [(rng.normal(size=(rows, 2)).astype("float32"), [np.arange(rows, dtype="int32")]) for rows in (123, 110)]
    return [(table, batches), *((table[:rows], batches) for rows, batches in zip((2, 9, 5), few)), *long]


def devices_to_cut_for(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Of each of these tables the devices: four; three, without the first; two, in another order; one; three; four."""
    return [names[:4], names[1:4], names[3:1:-1], names[2:3], names[:3], names[:4]]


def probe_table(names, seed):
    """Of each table what `_cut` says: of the first, which is on four devices; if that goes well, of the others."""
    devices = device_names()[:4]
    (large, on_four), *others = zip(tables_to_cut(seed), devices_to_cut_for(devices))
    tables = [_cut(names, *large, on_four)]
    if _goes_well(*large, tables[0]["lookups"]):
        tables += [_cut(names, *table, on) for table, on in others]
    return {"devices": list(devices), "tables": tables}


def _goes_well(table, batches, lookups) -> bool:
    return lookups is not None and all(
        np.array_equal(lookup["found"], table[numbers]) and sum(lookup["touched"]) <= len(numbers)
        for numbers, lookup in zip(batches, lookups, strict=True)
    )


def _cut(names, table, batches, devices):
    """Of each shard whether it is a variable, its place and rows; of each batch what `_look_up` says.

    Nothing is looked up in shards that do not make an even table. Another table is cut before anything is looked up.
    """
    import tensorflow as tf

    shards = list(names["cut_table"](table.copy(), list(devices)))
    variables = [genuine(shard) and isinstance(shard, tf.Variable) for shard in shards]
    rows = [tf.convert_to_tensor(shard).numpy() for shard in shards]
    places = [list(place) for place in zip(variables, map(device_of, shards), rows)]
    sizes = [held.shape[0] for held in rows]
    answers = {"shards": places, "lookups": None}
    names["cut_table"](np.vstack([table, table[:1]]), list(devices))
    if sum(sizes) == len(table) and max(sizes) - min(sizes) <= 1:
        answers["lookups"] = [_look_up(names["look_up"], shards, numbers) for numbers in batches]
    return answers


def _look_up(look_up, shards, numbers):
    """The rows found; the rows in each shard's gradient; how many shards a graph of it reads whole."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        found = look_up(shards, tf.constant(numbers))
    gradients = tape.gradient(found, shards)
    any_number = tf.TensorSpec((None,), tf.int32)
    graph = tf.function(lambda numbers: look_up(shards, numbers)).get_concrete_function(any_number).graph
    return {
        "found": tf.convert_to_tensor(found).numpy(),
        "touched": [_rows_in(gradient) for gradient in gradients],
        "read_whole": sum(map(_reads_a_value, graph.get_operations())),
    }


def _rows_in(gradient) -> int:
    import tensorflow as tf

    if gradient is None:
        return 0
    return int(tf.size(gradient.indices)) if isinstance(gradient, tf.IndexedSlices) else gradient.shape[0]


def _reads_a_value(operation) -> bool:
    """Whether it reads a variable, and for more than its shape, which TensorFlow finds out without reading it."""
    reads = operation.type == "ReadVariableOp"
    return reads and any(consumer.type != "Shape" for consumer in operation.outputs[0].consumers())

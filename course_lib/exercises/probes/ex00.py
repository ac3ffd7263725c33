"""Probes of exercise 00: shards, steps, placement, statistics over devices.

Needs NumPy; TensorFlow for q3 and q4. The inputs are functions of the seed.
"""

import numpy as np

from course_lib.exercises.probes.state import device_names, device_of

BRIGHTNESSES = (2000.0, 3450.0, 4000.0)  # added to q4's values, whose spread stays about 1


def batches(seed: int) -> list[tuple[int, int]]:
    """(global_batch, replicas) pairs: tiny ones, two with idle replicas; four uneven ones, an even one; a million;
    thousands of replicas.
    """
    rng = np.random.default_rng(seed)
    uneven = [_uneven_batch(rng) for _ in range(4)]
    same_batch = [(61, 4), (61, 7)]  # in floats, 7 * (61 / 7) is less than 61
    return [(3, 2), (6, 3), (2, 5), (7, 4), (4, 1), (0, 3), *uneven, (6 * 8, 8), *same_batch, (10**6, 7), (10**5, 4096)]


def epochs(seed: int) -> list[tuple[int, int]]:
    """(examples, global_batch) pairs: tiny ones, one less than a batch, none; short last batches; one that divides."""
    rng = np.random.default_rng(seed)
    batches = [int(batch) for batch in rng.integers(20, 90, size=4)]
    uneven = [(batch * int(rng.integers(2, 90)) + int(rng.integers(1, batch)), batch) for batch in batches]
    large = 2**25 + 1, 2**13  # float32 rounds the quotient to a whole number
    return [(5, 2), (4, 2), (2, 3), (7, 3), (0, 3), *uneven, (1024, 64), large]


def arrays(seed: int, count: int) -> list[np.ndarray]:
    """`count` float32 arrays (n,): [1, 3], one of a single number, and others whose lengths are drawn from 2 to 6."""
    rng = np.random.default_rng(seed)
    lengths = [1, *rng.integers(2, 7, count)][: count - 1]
    return [np.array([1, 3], "float32"), *(rng.normal(size=length).astype("float32") for length in lengths)]


def shards(seed: int, count: int) -> list[np.ndarray]:
    """`count` float32 shards (n,), each longer than the one before, means about 1 apart."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(4, 9, size=count).cumsum()
    return [rng.normal(loc=place, size=size).astype("float32") for place, size in enumerate(sizes)]


def tiny_shards(count: int) -> list[np.ndarray]:
    """[0], [0, 2], [0, 2, 4] and so on: `count` float32 shards whose variance a learner can compute by hand."""
    return [2 * np.arange(place + 1, dtype="float32") for place in range(count)]


def brightened(plain: list[np.ndarray], by: float) -> list[np.ndarray]:
    """The same shards, float32, with `by` added to every value."""
    return [shard + np.float32(by) for shard in plain]


def probe_shard_sizes(names, seed):
    """The learner's sizes for every batch, in order."""
    return {"sizes": [list(names["shard_sizes"](*batch)) for batch in batches(seed)]}


def probe_steps(names, seed):
    """The learner's steps for every epoch, keeping and dropping the short last batch."""
    steps = names["steps_per_epoch"]
    return {
        "kept": [steps(*epoch, drop_remainder=False) for epoch in epochs(seed)],
        "dropped": [steps(*epoch, drop_remainder=True) for epoch in epochs(seed)],
    }


def orders(devices) -> list[list[str]]:
    """The devices that q3 asks for: all, then all but the first, from the last one on."""
    return [list(devices), list(devices[:0:-1] or devices)]


def probe_place(names, seed):
    """Where each of the learner's tensors lives, and its numbers, for both orders of devices; which arrays are kept."""
    devices = device_names()
    return {"asked": list(devices), "calls": [_placed(names, seed, order) for order in orders(devices)]}


def _placed(names, seed, devices):
    given = arrays(seed, len(devices))
    placed = list(names["place"](given, tuple(devices)))
    return {
        "lives_on": [_tensor_on(tensor) for tensor in placed],
        "values": [np.asarray(tensor) for tensor in placed],
        "kept": [np.array_equal(*pair) for pair in zip(given, arrays(seed, len(devices)))],
    }


def probe_statistics(names, seed):
    """What leaves each device, from where, and what it combines to; the same for tiny and for brightened shards."""
    devices = device_names()
    plain = shards(seed, len(devices))
    sent = list(names["local_statistics"](plain, devices))
    alone, *_ = names["local_statistics"](plain[:1], devices[:1])
    tiny = names["local_statistics"](tiny_shards(len(devices)), devices)
    bright = [names["local_statistics"](brightened(plain, by), devices) for by in BRIGHTNESSES]
    return {
        "asked": list(devices),
        "lives_on": [_tensor_on(tensor) for tensor in sent],
        "numbers_sent": [int(np.size(tensor)) for tensor in sent],
        "formats": [str(np.asarray(tensor).dtype) for tensor in sent],
        "first_is_its_own": np.shape(sent[0]) == np.shape(alone) and bool(np.allclose(sent[0], alone)),
        "last_alone": [float(number) for number in names["combine"](sent[-1:])],
        "tiny": [float(number) for number in names["combine"](tiny)],
        "combined": [float(number) for number in names["combine"](sent)],
        "bright_variances": [float(names["combine"](statistics)[1]) for statistics in bright],
    }


def _tensor_on(value: object) -> str:
    """The device that a tensor lives on, as device_of; of a variable or the like, what it is beside its device."""
    import tensorflow as tf

    device = device_of(value)
    is_tensor = device.startswith("no device") or isinstance(value, tf.Tensor)
    return device if is_tensor else f"{device} ({type(value).__name__}, no tensor)"


def _uneven_batch(rng: np.random.Generator) -> tuple[int, int]:
    replicas = int(rng.integers(4, 9))
    return int(rng.integers(3, 30)) * replicas + int(rng.integers(2, replicas - 1)), replicas

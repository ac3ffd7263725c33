"""Wrong answers to exercise 06 that are another algorithm. Need TensorFlow when they run."""


def _placed(makers, devices):
    import tensorflow as tf

    stages = []
    for make, device in zip(makers, devices):
        with tf.device(device):
            stages.append(make())
    return stages


def _asked_twice(stages, devices, x, y):
    """One tape over both stages, asked for each stage's gradients."""
    import tensorflow as tf

    with tf.GradientTape(persistent=True) as tape:
        with tf.device(devices[0]):
            hidden = stages[0](x)
        with tf.device(devices[1]):
            loss = tf.reduce_mean((stages[1](hidden) - y) ** 2)
    found = []
    for stage, device in zip(stages, devices):
        with tf.device(device):
            found += tape.gradient(loss, stage.trainable_variables)
    return found


def _fixed(function, *names):
    """The function with devices that it names itself."""
    return lambda first, _, *rest: function(first, names, *rest)


def _gradients(stages, devices, x, y):
    import tensorflow as tf

    with tf.device(devices[0]), tf.GradientTape() as first_tape:
        hidden = stages[0](x)
    with tf.device(devices[1]):
        with tf.GradientTape() as second_tape:
            second_tape.watch(hidden)
            loss = tf.reduce_mean((stages[1](hidden) - y) ** 2)
        *second, boundary = second_tape.gradient(loss, [*stages[1].trainable_variables, hidden])
    with tf.device(devices[0]):
        first = first_tape.gradient(hidden, stages[0].trainable_variables, output_gradients=boundary)
    return [*first, *second]


def _as_few_as_fit(seconds, weight_bytes, stages, memory_bytes):
    """Search for the slowest stage's seconds, fill stages up to them, and ignore that some devices get nothing."""
    limits = sorted({sum(seconds[a:b]) for a in range(len(seconds)) for b in range(a + 1, len(seconds) + 1)})
    for limit in limits:
        parts = [[]]
        for layer in range(len(seconds)):
            held = [*parts[-1], layer]
            too_slow = sum(seconds[one] for one in held) > limit * (1 + 1e-9)
            if parts[-1] and (too_slow or sum(weight_bytes[one] for one in held) > memory_bytes):
                parts.append([])
            parts[-1].append(layer)
        slowest = max(sum(seconds[one] for one in part) for part in parts)
        largest = max(sum(weight_bytes[one] for one in part) for part in parts)
        if len(parts) <= stages and slowest <= limit * (1 + 1e-9) and largest <= memory_bytes:
            return parts
    raise ValueError


_FIXED = {"place": _fixed(_placed, "CPU:0", "CPU:1"), "gradients": _fixed(_gradients, "CPU:0", "CPU:1")}
WRONG = {
    ("q1", "names ignored"): _FIXED,
    ("q1", "stages computed twice"): {"place": _placed, "gradients": _asked_twice},
    ("q4", "fewer stages"): {"cut_layers": _as_few_as_fit},
}

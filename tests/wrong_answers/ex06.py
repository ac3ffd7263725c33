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


WRONG = {("q1", "stages computed twice"): {"place": _placed, "gradients": _asked_twice}}

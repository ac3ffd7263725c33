"""One line of an error's message, on what TensorFlow and Keras really raise."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from course_lib.errors import telling_line


class Failing(keras.layers.Layer):
    def call(self, x):
        raise ValueError("no such thing")


def pull_five(batches):
    for _ in tf.range(5):
        next(batches)


def two_layers():
    return keras.Sequential([keras.Input((3,)), keras.layers.Embedding(4, 2), keras.layers.Flatten()])


@pytest.mark.parametrize(
    "raising, line",
    [
        (lambda: tf.data.Dataset.range(3).shuffle(0), "buffer_size must be greater than zero or UNKNOWN_CARDINALITY"),
        (lambda: tf.matmul(tf.ones((2, 3)), tf.ones((2, 3))), "Matrix size-incompatible: In[0]: [2,3], In[1]: [2,3]"),
        (lambda: tf.function(pull_five)(iter(tf.data.Dataset.range(3))), "End of sequence"),
        (lambda: two_layers().predict(np.full((4, 3), 9.0), verbose=0), "indices[0,0] = 9 is not in [0, 4)"),
        (
            lambda: tf.function(lambda x: tf.matmul(x, x))(tf.ones((2, 3))),
            "Dimensions must be equal, but are 3 and 2 with input shapes: [2,3], [2,3].",
        ),
        (lambda: Failing()(np.ones(3)), "no such thing"),
        (lambda: tf.function(lambda x: Failing()(x))(tf.ones(3)), "no such thing"),
        (lambda: keras.Sequential([Failing()])(np.ones((3, 2))), "no such thing"),
        (lambda: {}["x"], "'x'"),
        (lambda: int("[[1, 2]]"), "invalid literal for int() with base 10: '[[1, 2]]'"),
    ],
)
def test_what_happened_is_found_among_what_frameworks_put_around_it(raising, line):
    with pytest.raises(Exception) as caught:
        raising()
    assert telling_line(str(caught.value)) == line


@pytest.mark.parametrize(
    "message, line",
    [
        ("", ""),
        ("\n\n", ""),
        ("first\nsecond", "first"),
        ("\nGraph execution error:\n", "Graph execution error:"),
        ("[[1 2]] has two numbers", "[[1 2]] has two numbers"),
        ("2 root error(s) found.\n  (0) INTERNAL: gone\n\t [[{{node a}}]]\n  (1) INTERNAL: later", "gone"),
    ],
)
def test_any_text_has_one_line_at_most(message, line):
    assert telling_line(message) == line

"""Four devices for the whole session, made before any test module imports a framework."""

import importlib.util
import itertools
import os

import pytest

from course_lib import devices

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
devices.simulate(4, "tensorflow" if HAS_TENSORFLOW else "jax")


def pytest_collection_modifyitems(items):
    """What takes minutes runs where CI is set: `CI=true pytest -m slow`. The longest comes first, to have company to its end."""
    items.sort(key=lambda item: item.path.name != "test_support_matrix.py")
    for item in items:
        if "slow" in item.keywords and os.environ.get("CI") != "true":
            item.add_marker(pytest.mark.skip(reason="slow: run by .ci/run"))


@pytest.fixture(scope="session")
def collective_numbers():
    return itertools.count(1000, step=1000)


@pytest.fixture(scope="module", autouse=HAS_TENSORFLOW)
def own_collectives(collective_numbers):
    """Keep the strategies of one test module apart from those of another.

    TensorFlow numbers the all-reduces of every MirroredStrategy from the same
    start, and in one process then takes one strategy's for another's. A
    notebook, with a process and a strategy of its own, does not meet this.
    """
    import tensorflow as tf

    with pytest.MonkeyPatch.context() as patch:
        # Private, and in TensorFlow's source said to be set by tests alone.
        patch.setattr(tf.distribute.MirroredStrategy, "_collective_key_base", next(collective_numbers))
        yield

"""Four devices for the whole session, made before any test module imports a framework."""

import importlib.util
import itertools
import os
from pathlib import Path

import pytest

from course_lib import devices

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
devices.simulate(4, "tensorflow" if HAS_TENSORFLOW else "jax")


ROOT = Path(__file__).parents[1]
# Seconds that a file's tests take on two quiet cores, from ten on, as --durations=0 shows them. The longest start
# first, so that none runs alone at the end, and `make check` leaves all of them out.
SECONDS = {
    "notebooks": {"00": 7, "01": 35, "02": 53, "03": 127, "04": 47, "05": 194, "06": 51, "07": 42, "08": 48, "09": 42}
    | {"10": 32, "11": 77},
    "solutions": {"02": 36, "03": 22, "04": 33, "05": 19, "07": 39, "08": 21, "09": 16, "11": 37},
    "tests": {"test_support_matrix": 300, "test_exercises": 120, "test_cluster": 90, "test_training": 86}
    | {"test_accumulate": 78, "test_jax_only": 58, "test_tpu": 51, "test_multi_worker": 42, "test_views": 37}
    | {"test_data": 34, "test_devices": 27, "test_models": 24, "test_cluster_network": 24, "test_grade_command": 22}
    | {"test_book": 21, "test_worker_checks": 16, "test_forks": 16, "test_plan_machine": 13, "test_pipeline": 12}
    | {"test_parameter_server": 13, "test_plan_network": 11, "test_grade_inside": 9, "test_cluster_cli": 9},
}


def seconds(path: Path) -> int:
    name = path.stem if path.suffix == ".py" else path.stem[:2]
    return SECONDS.get(path.parent.name, {}).get(name, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Three for two cores: lessons and many tests wait for processes of their own."""
    return max(1, 3 * devices.machine().cores // 2)


def pytest_collection_modifyitems(items):
    """Mark what takes long, and start with the longest; what takes minutes runs where CI is set."""
    items.sort(key=lambda item: -seconds(item.path))
    for item in items:
        if seconds(item.path):
            item.add_marker(pytest.mark.heavy)
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

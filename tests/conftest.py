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
# Seconds that a file's tests take on two cores, about, as --durations=0 shows them. The longest start first, so that
# none runs alone at the end, and `make check` leaves all of them out.
SECONDS = {
    "notebooks": {"00": 6, "01": 45, "02": 92, "03": 125, "04": 51, "05": 112, "06": 55, "07": 81, "08": 87}
    | {"09": 73, "10": 47, "11": 84},
    "solutions": {"02": 27, "03": 20, "04": 25, "05": 18, "07": 39, "08": 15, "09": 20, "11": 55},
    "tests": {"test_support_matrix": 300, "test_cluster": 94, "test_exercises": 80, "test_accumulate": 72}
    | {"test_jax_only": 57, "test_tpu": 56, "test_multi_worker": 54, "test_training": 50}
    | {"test_views": 48, "test_data": 45, "test_book": 33, "test_models": 29, "test_grade_command": 18}
    | {"test_cluster_network": 15, "test_worker_checks": 15, "test_pipeline": 15, "test_parameter_server": 14}
    | {"test_devices": 13, "test_plan_network": 12, "test_forks": 11, "test_plan_machine": 8}
    | {"test_grade_inside": 8, "test_cluster_cli": 7},
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

"""Four devices for each process of tests, made before any test module imports a framework."""

import gc
import importlib.util
import itertools
import os
import runpy
from pathlib import Path

import pytest

from course_lib import devices

STARTUP = Path(__file__).parent / "startup"
if str(STARTUP) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    runpy.run_path(str(STARTUP / "sitecustomize.py"))  # for this process; what it starts finds it by itself
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(STARTUP), os.environ.get("PYTHONPATH"))))
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # JAX compiles for seconds what runs for milliseconds
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None

ROOT = Path(__file__).parents[1]
# Seconds that a file's tests take on two cores, about, as --durations=0 shows them. Of several processes the longest
# start first, so that none runs alone at the end; one process keeps the order that it is given. `make check` leaves
# all of them out.
SECONDS = {
    "notebooks": {"00": 6, "01": 38, "02": 41, "03": 63, "04": 87, "05": 108, "06": 101, "07": 98, "08": 60}
    | {"09": 64, "10": 34, "11": 90, "12": 125, "01b": 8, "02b": 69, "09b": 41, "10b": 20},
    "solutions": {"02": 33, "03": 54, "04": 26, "05": 18, "07": 33, "08": 16, "09": 24, "11": 68, "12": 25},
    "tests": {"test_support_matrix": 300, "test_zoo": 290, "test_exercises": 240, "test_grade_command": 109}
    | {"test_cluster": 97, "test_accumulate": 87, "test_answer_mutants": 80, "test_training": 72, "test_book": 63}
    | {"test_tpu": 59, "test_grade_fuzz": 25, "test_environment": 18, "test_hostile_answers": 16}
    | {"test_jax_only": 56, "test_views": 45, "test_worker_checks": 45, "test_multi_worker": 39, "test_data": 33}
    | {"test_models": 31, "test_hangs": 23, "test_cluster_network": 18, "test_plan_machine": 18}
    | {"test_plan_network": 14, "test_pipeline": 13, "test_parameter_server": 10, "test_devices": 9, "test_forks": 9}
    | {"test_grade_inside": 8, "test_cluster_cli": 6, "test_tensorflow_calls": 1},
}


def seconds(path: Path) -> int:
    name = path.stem if path.suffix == ".py" else path.stem.partition("_")[0]
    return SECONDS.get(path.parent.name, {}).get(name, 0)


def own_seconds(item) -> int:
    """Of one test among quick ones: @pytest.mark.slow(seconds=...)."""
    slow = item.get_closest_marker("slow")
    return slow.kwargs.get("seconds", 0) if slow else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Three for two cores: lessons and many tests wait for processes of their own."""
    return max(1, 3 * devices.machine().cores // 2)


def pytest_configure(config):
    if config.getoption("dist", "no") == "no":  # else the tests run in other processes
        devices.simulate(4, "tensorflow" if HAS_TENSORFLOW else "jax")


def pytest_collection_modifyitems(items):
    """Mark what takes long, and start with the longest; what takes minutes runs where CI is set."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: -max(seconds(item.path), own_seconds(item)))
    for item in items:
        if seconds(item.path):
            item.add_marker(pytest.mark.heavy)
        if "slow" in item.keywords and os.environ.get("CI") != "true":
            item.add_marker(pytest.mark.skip(reason="slow: run by .ci/run"))


def pytest_collection_finish(session):
    """Thousands of tests stay until the end, so no garbage collection looks through them again."""
    gc.collect()
    gc.freeze()


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

"""Devices: made before the framework starts, refused clearly after."""

import json
import subprocess
import sys

import pytest

from course_lib import devices
from course_lib.errors import CourseError


def python(code: str) -> str:
    """Run code in a fresh interpreter, because a framework starts once per process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "start-up lines reached the notebook"
    return done.stdout.strip()


def test_the_same_call_again_gives_the_same_devices():
    assert devices.simulate(4) == devices.simulate(4)


def test_tensorflow_devices_hold_their_own_tensors():
    import tensorflow as tf

    places = set()
    for name in devices.simulate(4).names:
        with tf.device(name):
            places.add(tf.random.uniform(()).device)
    assert len(places) == 4


def test_a_copy_between_simulated_devices_shares_the_bytes():
    """As lesson 00 says of the network; an array that is computed has bytes of its own."""
    import tensorflow as tf

    place = lambda tensor: tensor._numpy_internal().__array_interface__["data"][0]  # noqa: E731
    with tf.device("CPU:0"):
        first = tf.ones((1000,))
        computed = first + 0.0
    with tf.device("CPU:1"):
        copied = tf.identity(first)
    assert copied.device.endswith("CPU:1") and place(copied) == place(first) != place(computed)


def test_too_late_names_the_numbers_and_the_remedy():
    with pytest.raises(CourseError, match=r"already started with 4 device\(s\), so simulate\(8\).*restart the kernel"):
        devices.simulate(8)


def test_too_late_in_a_notebook_names_the_cell():
    code = (
        "from IPython.testing.globalipapp import start_ipython; start_ipython()\n"
        "import tensorflow as tf; tf.constant(1)\n"
        "from course_lib import devices\n"
        "try: devices.simulate(2)\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "move this cell, which calls simulate(2), above the first cell that uses TensorFlow" in done.stdout


def test_fewer_gpus_than_asked_for_stay_idle(monkeypatch):
    """With stand-ins for GPUs: none was here to try it on."""
    import tensorflow as tf

    hidden, real = [], tf.config.list_physical_devices
    found = [tf.config.PhysicalDevice(f"GPU:{number}", "GPU") for number in range(5)]
    gpus = found[:1]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else real(kind))
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *devices: hidden.append(devices))
    assert str(devices.simulate(4)).endswith("CPU:3; 1 of TensorFlow's accelerators left idle")
    gpus = found
    assert devices.simulate(4, accelerators=False).idle == 5 and hidden == [([], "GPU")] * 2
    with pytest.raises(CourseError):  # it takes four of them, and they are not there
        devices.simulate(4)
    assert len(hidden) == 2


def test_one_tpu_chip_stays_idle_and_jax_computes_on_the_cpu():
    """With a stand-in for the chip: no TPU was here to try it on."""
    code = (
        "from course_lib import devices; import jax, types\n"
        "chip, real = types.SimpleNamespace(platform='tpu', id=0), jax.devices\n"
        "jax.devices = lambda kind=None: real(kind) if kind else [chip]\n"
        "print(devices.simulate(8, 'jax'), jax.numpy.ones(2).devices() == {real('cpu')[0]})"
    )
    assert python(code).endswith("cpu:7; 1 of JAX's accelerators left idle True")


def test_jax_devices_in_a_fresh_process():
    code = (
        "from course_lib import devices; four = devices.simulate(4, 'jax'); assert four == devices.simulate(4, 'jax')\n"
        "import keras, jax; print(len(jax.devices()), keras.backend.backend(), four.names[3])"
    )
    assert python(code) == "4 jax cpu:3"


def test_another_backend_is_refused():
    code = (
        "import os; os.environ['KERAS_BACKEND'] = 'jax'\n"
        "import keras; from course_lib import devices\n"
        "try: devices.simulate(2)\n"
        "except Exception as error: print(error)"
    )
    assert "imported with the jax backend, and this lesson uses tensorflow" in python(code)


@pytest.mark.parametrize("call, says", [((0,), "1 device or more"), ((2, "torch"), "knows the frameworks")])
def test_nonsense_is_refused(call, says):
    with pytest.raises(CourseError, match=says):
        devices.simulate(*call)


def test_a_missing_framework_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(devices, "_version", lambda package: None)
    with pytest.raises(CourseError, match="TensorFlow is not installed .*`pip install tensorflow`"):
        devices.simulate(4)


def test_describing_the_machine_starts_no_framework():
    code = (
        "import sys, json; from course_lib import devices; machine = devices.machine()\n"
        "started = sorted({'tensorflow', 'jax', 'keras'} & set(sys.modules))\n"
        "print(json.dumps([machine.cores, machine.versions['keras'], started]))"
    )
    cores, keras_version, started = json.loads(python(code))
    assert cores >= 1 and keras_version and started == []

"""What is found of a machine and what the frameworks hear, with stand-ins for both; starts neither."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lib import devices
from course_lib.devices import Devices, Machine
from course_lib.errors import CourseError

GIB = 2**30


@pytest.mark.parametrize(
    "found, shown",
    [
        (
            Devices(("CPU:0", "CPU:1"), "tensorflow", True),
            "2 devices for TensorFlow, simulated on this machine's CPU: ",
        ),
        (Devices(("cpu:0",), "jax", True, 3), "1 device for JAX, simulated on this machine's CPU: "),
        (Devices(("GPU:0",), "tensorflow", False), "1 device for TensorFlow, real accelerators, with full float32 "),
    ],
)
def test_devices_as_they_are_shown(found, shown):
    assert str(found).startswith(shown) and len(found) == len(found.names)
    names = ", ".join(found.names)
    assert str(found).endswith(f"{names}; 3 of JAX's accelerators left idle" if found.idle else names)
    assert Devices((), "jax", True).idle == 0


def test_a_machine_as_it_is_shown():
    full = Machine(8, 32 * GIB, ("A", "B"), "v5e", "3.12.1", {"keras": "3.14", "jax": None})
    assert str(full).splitlines() == [
        "CPU cores            8",
        "memory               32 GiB",
        "GPUs                 A, B",
        "TPU                  v5e",
        "Python               3.12.1",
        "keras                3.14",
        "jax                  not installed",
    ]
    bare = str(Machine(1, None, (), None, "3.12.1", {})).split()
    assert bare == "CPU cores 1 memory unknown GPUs none TPU none Python 3.12.1".split()


def test_the_machine_is_what_the_system_says(monkeypatch):
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5} if pid == 0 else set(), raising=False)
    monkeypatch.setattr(devices, "_gpu_names", lambda: ("A",))
    monkeypatch.setattr(devices, "_tpu_name", lambda: "v5e")
    monkeypatch.setattr(devices, "_version", lambda package: package.upper())
    found = devices.machine()
    assert (found.cores, found.memory_bytes, found.gpus, found.tpu) == (3, 4096 * 1000, ("A",), "v5e")
    assert found.python == sys.version.split()[0] and found.versions["tf_keras"] == "TF_KERAS"
    assert {"tensorflow", "keras", "jax", "libtpu", "numpy", "jupyterlab", "ipywidgets"} < found.versions.keys()
    monkeypatch.delattr(os, "sched_getaffinity")
    for count, cores in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert devices._usable_cores() == cores
    for unknown in (0, -1):
        pages["SC_PHYS_PAGES"] = unknown
        assert devices._memory_bytes() is None
    pages["SC_PHYS_PAGES"] = 1
    assert devices._memory_bytes() == 4096
    for error in (AttributeError, ValueError, OSError):
        monkeypatch.setattr(os, "sysconf", lambda name, error=error: (_ for _ in ()).throw(error))
        assert devices._memory_bytes() is None


def test_the_names_of_gpus(monkeypatch):
    def run(words, capture_output, text, timeout):
        assert words == ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        assert capture_output and text and timeout == 20
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(devices.subprocess, "run", run)
    for one, names in (
        (SimpleNamespace(returncode=0, stdout="A 100\nH 100\n"), ("A 100", "H 100")),
        (SimpleNamespace(returncode=9, stdout="no driver\n"), ()),
        (FileNotFoundError(), ()),
        (subprocess.TimeoutExpired("nvidia-smi", 20), ()),
    ):
        answer = one
        assert devices._gpu_names() == names


def test_the_name_of_a_tpu(monkeypatch):
    files = {("/dev", "accel[0-9]*"): [], ("/dev/vfio", "[0-9]*"): []}
    monkeypatch.setattr(devices, "Path", lambda folder: SimpleNamespace(glob=lambda form: files[folder, form]))
    monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)
    assert devices._tpu_name() is None
    for place in files:
        files[place] = ["0"]
        assert devices._tpu_name() == "TPU"
        files[place] = []
    files["/dev", "accel[0-9]*"] = ["accel0"]
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    assert devices._tpu_name() == "v5litepod-8"


def test_tensorflow_comes_in_several_packages(monkeypatch):
    installed = {"tensorflow-tpu": "2.1", "jax": "0.9"}

    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert [devices._version(name) for name in ("tensorflow", "jax", "keras")] == ["2.1", "0.9", None]
    installed["tensorflow-cpu"] = "2.2"
    assert devices._version("tensorflow") == "2.2"


def test_the_cache_folder_is_the_systems(monkeypatch, tmp_path):
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    name = "distributed-training-course"
    assert devices.cache_folder() == tmp_path / "home" / ".cache" / name
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert devices.cache_folder() == tmp_path / "local" / name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert devices.cache_folder() == devices.cache_folder() == tmp_path / "xdg" / name
    assert devices.cache_folder().is_dir()


QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}
NO_ACCELERATOR = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}


@pytest.mark.parametrize(
    "gpus, tpu, wanted", [((), None, QUIET | NO_ACCELERATOR), (("A",), None, QUIET), ((), "v5e", QUIET)]
)
def test_what_keeps_the_frameworks_quiet(monkeypatch, gpus, tpu, wanted):
    monkeypatch.setattr(devices, "_gpu_names", lambda: gpus)
    monkeypatch.setattr(devices, "_tpu_name", lambda: tpu)
    monkeypatch.setattr(os, "environ", {})
    devices.quieten()
    assert os.environ == wanted
    os.environ |= dict.fromkeys(wanted, "mine")
    devices.quieten()
    assert set(os.environ.values()) == {"mine"}


def test_start_up_lines_are_kept_off_and_others_are_not(capfd):
    before = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
    for _ in range(2):
        with devices.without_start_up_log():
            os.write(2, b"start-up\n")
        os.write(2, b"mine\n")
    assert capfd.readouterr().err == "mine\nmine\n"
    assert before == (len(os.listdir("/dev/fd")) if before else 0)


def test_keras_gets_the_backend_before_it_is_imported(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    devices._choose_keras_backend("jax")
    assert os.environ == {"KERAS_BACKEND": "jax"}
    keras = SimpleNamespace(backend=SimpleNamespace(backend=lambda: "torch"))
    monkeypatch.setitem(sys.modules, "keras", keras)
    with pytest.raises(CourseError, match="imported with the torch backend, and this lesson uses jax: restart"):
        devices._choose_keras_backend("jax")
    devices._choose_keras_backend("torch")


def test_colabs_tpu_runtime_gets_its_tensorflow(monkeypatch, capsys):
    monkeypatch.setattr(devices, "_version", dict.fromkeys(("tensorflow", "jax")).__getitem__)
    monkeypatch.setattr(devices.colab_runtime, "add_tensorflow", lambda: "added")
    for variable, framework, said in (("1", "tensorflow", "added\n"), ("1", "jax", ""), (None, "tensorflow", "")):
        monkeypatch.setattr(os, "environ", {"COLAB_RELEASE_TAG": variable} if variable else {})
        with pytest.raises(CourseError, match=f"is not installed in this Python .*`pip install {framework}`"):
            devices.simulate(1, framework)
        assert capsys.readouterr().out == said


@pytest.mark.parametrize("shell, place", [(None, "move this call above"), (object(), "move this cell, which calls")])
def test_too_late_says_what_to_move(monkeypatch, shell, place):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    said = str(devices._started("jax", 2, 8))
    assert said.startswith("JAX has already started with 2 device(s), so simulate(8) comes too late: restart")
    assert place in said and ("simulate(8), above" in said) is (shell is not None)


def jax_with(accelerators: int, started: int | None) -> tuple[SimpleNamespace, dict]:
    """A JAX of so many GPUs, and what its configuration hears; `started`: with so many CPU devices."""
    heard, late = {}, started is not None

    def update(name, value):
        if late and name == "jax_num_cpu_devices":
            raise RuntimeError("started")
        heard[name] = value

    def some(kind=None):
        cpus = [SimpleNamespace(platform="cpu", id=n) for n in range(started or heard["jax_num_cpu_devices"])]
        gpus = [SimpleNamespace(platform="gpu", id=n) for n in range(accelerators)]
        return cpus if kind == "cpu" else gpus or cpus

    return SimpleNamespace(config=SimpleNamespace(update=update), devices=some), heard


@pytest.mark.parametrize(
    "gpus, wanted, names, idle, heard",
    [
        (0, True, ("cpu:0", "cpu:1"), 0, {"jax_disable_most_optimizations"}),
        (1, True, ("cpu:0", "cpu:1"), 1, {"jax_disable_most_optimizations", "jax_default_device"}),
        (2, True, ("gpu:0", "gpu:1"), 0, {"jax_default_matmul_precision"}),
        (3, True, ("gpu:0", "gpu:1"), 1, {"jax_default_matmul_precision"}),
        (3, False, ("cpu:0", "cpu:1"), 3, {"jax_disable_most_optimizations", "jax_default_device"}),
    ],
)
@pytest.mark.parametrize("started", [None, 2])
def test_what_jax_hears(monkeypatch, gpus, wanted, names, idle, heard, started):
    module, given = jax_with(gpus, started)
    monkeypatch.setitem(sys.modules, "jax", module)
    assert devices._simulate_jax(2, wanted) == Devices(names, "jax", names[0].startswith("cpu"), idle)
    assert given.keys() == heard | ({"jax_num_cpu_devices"} if started is None else set())
    assert (
        given.get("jax_num_cpu_devices", 2) == 2 and given.get("jax_default_matmul_precision", "highest") == "highest"
    )
    assert "jax_default_device" not in heard or (
        given["jax_default_device"].platform,
        given["jax_default_device"].id,
    ) == ("cpu", 0)


def test_jax_that_started_otherwise_is_too_late(monkeypatch):
    module, _ = jax_with(0, 3)
    monkeypatch.setitem(sys.modules, "jax", module)
    with pytest.raises(CourseError, match=r"JAX has already started with 3 device\(s\), so simulate\(2\)"):
        devices._simulate_jax(2, True)


def tensorflow_with(gpus: int, late: bool) -> tuple[SimpleNamespace, list]:
    """A TensorFlow of so many GPUs and one CPU, and what it hears."""
    heard, logical = [], {"CPU": 1, "GPU": gpus}

    def divide(cpu, parts):
        if late:
            raise RuntimeError("started")
        heard.append((cpu, len(parts)))
        logical["CPU"] = len(parts)

    experimental = SimpleNamespace(enable_tensor_float_32_execution=lambda on: heard.append(("TF32", on)))
    config = SimpleNamespace(
        experimental=experimental,
        list_physical_devices=lambda kind: [f"{kind}:{n}" for n in range(gpus if kind == "GPU" else 1)],
        set_visible_devices=lambda seen, kind: heard.append((kind, tuple(seen))),
        LogicalDeviceConfiguration=object,
        set_logical_device_configuration=divide,
        list_logical_devices=lambda kind: [object()] * logical[kind],
    )
    logger = SimpleNamespace(setLevel=lambda level: heard.append(("log", level)))
    return SimpleNamespace(config=config, get_logger=lambda: logger), heard


@pytest.mark.parametrize(
    "gpus, wanted, names, idle",
    [
        (0, True, ("CPU:0", "CPU:1"), 0),
        (1, True, ("CPU:0", "CPU:1"), 1),
        (2, True, ("GPU:0", "GPU:1"), 0),
        (3, True, ("GPU:0", "GPU:1"), 1),
        (3, False, ("CPU:0", "CPU:1"), 3),
    ],
)
def test_what_tensorflow_hears(monkeypatch, gpus, wanted, names, idle):
    module, heard = tensorflow_with(gpus, late=False)
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    simulated = names[0].startswith("CPU")
    assert devices._simulate_tensorflow(2, wanted) == Devices(names, "tensorflow", simulated, idle)
    divided = [("GPU", ()), ("CPU:0", 2)] if simulated else []
    assert heard == [("log", "WARNING"), ("TF32", False), *divided]


def test_tensorflow_that_started_otherwise_is_too_late(monkeypatch):
    module, _ = tensorflow_with(0, late=True)
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    with pytest.raises(CourseError, match=r"TensorFlow has already started with 1 device\(s\), so simulate\(2\)"):
        devices._simulate_tensorflow(2, True)
    module.config.list_logical_devices = lambda kind: [object()] if kind == "GPU" else []
    module.config.list_physical_devices = lambda kind: [kind] * 2
    with pytest.raises(CourseError, match=r"TensorFlow has already started with 1 device\(s\), so simulate\(2\)"):
        devices._simulate_tensorflow(2, True)


def test_accelerators_are_taken_by_default(monkeypatch):
    called = []
    monkeypatch.setattr(devices, "_simulate_tensorflow", lambda *given: called.append(given) or "devices")
    monkeypatch.setattr(devices, "_choose_keras_backend", called.append)
    monkeypatch.setattr(devices, "quieten", lambda: None)
    monkeypatch.setattr(devices, "_version", {"tensorflow": "1"}.__getitem__)
    assert devices.simulate(1) == "devices" and called == ["tensorflow", (1, True)]
    for count in (0, -1):
        with pytest.raises(CourseError, match=f"makes 1 device or more, and was asked for {count}"):
            devices.simulate(count)

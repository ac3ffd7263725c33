"""What this machine has, and several devices made out of one.

Standard library only until `simulate` starts TensorFlow or JAX; taught in notebooks/00.
The only module, beside the command line and the cluster, that reads or sets
environment variables.
"""

import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from course_lib import colab_runtime
from course_lib.errors import CourseError

FRAMEWORK_NAMES = {"tensorflow": "TensorFlow", "jax": "JAX"}
PACKAGES = ("tensorflow", "keras", "tf_keras", "jax", "libtpu", "numpy")
PACKAGES += ("tensorflow-datasets", "jupyterlab", "ipywidgets")


@dataclass(frozen=True)
class Devices:
    """The devices that a lesson's replicas run on.

    names      one per device, as the framework spells them ("CPU:0" or "cpu:0")
    framework  "tensorflow" or "jax"
    simulated  True when they are slices of one CPU, False when each is an accelerator
    idle       accelerators that the machine has beside them, too few or not wanted
    """

    names: tuple[str, ...]
    framework: str
    simulated: bool
    idle: int = 0

    def __len__(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        kind = "simulated on this machine's CPU" if self.simulated else "real accelerators, with full float32 products"
        count = f"{len(self)} devices" if len(self) > 1 else "1 device"
        idle = f"; {self.idle} of {FRAMEWORK_NAMES[self.framework]}'s accelerators left idle" if self.idle else ""
        return f"{count} for {FRAMEWORK_NAMES[self.framework]}, {kind}: {', '.join(self.names)}{idle}"


@dataclass(frozen=True)
class Machine:
    """What was found without starting a framework.

    cores         CPU cores that this process may use
    memory_bytes  host memory, or None where the system does not say
    gpus          one name per GPU
    tpu           the TPU's name, or None
    python        Python's version
    versions      package name to installed version, None when not installed
    """

    cores: int
    memory_bytes: int | None
    gpus: tuple[str, ...]
    tpu: str | None
    python: str
    versions: dict[str, str | None]

    def __str__(self) -> str:
        memory = "unknown" if self.memory_bytes is None else f"{self.memory_bytes / 2**30:.0f} GiB"
        rows = {
            "CPU cores": str(self.cores),
            "memory": memory,
            "GPUs": ", ".join(self.gpus) or "none",
            "TPU": self.tpu or "none",
            "Python": self.python,
            **{name: version or "not installed" for name, version in self.versions.items()},
        }
        return "\n".join(f"{name:20} {value}" for name, value in rows.items())


def machine() -> Machine:
    """Describe this machine; starts no framework, so it is safe before `simulate`."""
    python, versions = platform.python_version(), {name: _version(name) for name in PACKAGES}
    return Machine(_usable_cores(), _memory_bytes(), _gpu_names(), _tpu_name(), python, versions)


def simulate(count: int, framework: str = "tensorflow", accelerators: bool = True) -> Devices:
    """Start the framework with `count` devices and return them.

    Takes the machine's accelerators when it has at least `count` of them;
    otherwise divides the CPU into `count` devices, and fewer accelerators stay
    idle: TensorFlow no longer sees them, and JAX computes on the CPU by
    default. The CPU's devices compute and hold tensors separately, and share
    the same cores; JAX compiles for them without most optimizations.
    Accelerators multiply float32 in full, which is not their own default
    (TF32, bfloat16): proofs want all digits. Also picks the framework as
    Keras' backend. The same call again returns the same devices.

    framework     "tensorflow" or "jax"
    accelerators  False leaves them all idle
    Raises        CourseError when the framework is missing, has already started
                  with other devices, or Keras already runs on another backend
    """
    if framework not in FRAMEWORK_NAMES:
        raise CourseError(f"simulate() knows the frameworks {', '.join(FRAMEWORK_NAMES)}, not {framework!r}.")
    if count < 1:
        raise CourseError(f"simulate() makes 1 device or more, and was asked for {count}.")
    if framework == "tensorflow" and _version(framework) is None and "COLAB_RELEASE_TAG" in os.environ:
        print(colab_runtime.add_tensorflow())  # Colab sets this variable; its TPU runtime has no TensorFlow
    if _version(framework) is None:
        raise CourseError(
            f"{FRAMEWORK_NAMES[framework]} is not installed in this Python {platform.python_version()}; "
            f"install it with `pip install {framework}` or, in Colab, choose another runtime type."
        )
    _choose_keras_backend(framework)
    quieten()
    with without_start_up_log():
        return {"tensorflow": _simulate_tensorflow, "jax": _simulate_jax}[framework](count, accelerators)


def cache_folder() -> Path:
    """The course's folder in the user's cache, made when missing."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    folder = Path(base) / "distributed-training-course"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _simulate_tensorflow(count: int, accelerators: bool) -> Devices:
    import tensorflow as tf

    tf.get_logger().setLevel("WARNING")  # strategies report every reduction they trace
    tf.config.experimental.enable_tensor_float_32_execution(False)  # else float32 products have 10 bits on new GPUs
    gpus = tf.config.list_physical_devices("GPU")
    simulated = not accelerators or len(gpus) < count
    if simulated:
        cpu = tf.config.list_physical_devices("CPU")[0]
        try:
            tf.config.set_visible_devices([], "GPU")  # else what names no device would run on a GPU
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        except RuntimeError:
            raise _started("tensorflow", len(tf.config.list_logical_devices("CPU")), count) from None
    kind = "CPU" if simulated else "GPU"
    started = len(tf.config.list_logical_devices(kind))  # starts TensorFlow: from here on the devices are fixed
    if started < count:
        raise _started("tensorflow", started, count)
    names = tuple(f"{kind}:{i}" for i in range(count))
    return Devices(names, "tensorflow", simulated, idle=len(gpus) - (0 if simulated else count))


def _simulate_jax(count: int, accelerators: bool) -> Devices:
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX has started; fine when an earlier call made the same devices
        if len(jax.devices("cpu")) != count:
            raise _started("jax", len(jax.devices("cpu")), count) from None
    found = [device for device in jax.devices() if device.platform != "cpu"]
    simulated = not accelerators or len(found) < count
    chosen = jax.devices("cpu") if simulated else found[:count]
    if simulated:  # programs run for milliseconds there: compiling them is what takes time
        jax.config.update("jax_disable_most_optimizations", True)
    if simulated and found:
        jax.config.update("jax_default_device", chosen[0])
    if not simulated:  # else products have TF32's 10 bits on new GPUs, and bfloat16's 7 on TPUs
        jax.config.update("jax_default_matmul_precision", "highest")
    names = tuple(f"{device.platform}:{device.id}" for device in chosen)
    return Devices(names, "jax", simulated, idle=len(found) - (0 if simulated else count))


def _started(framework: str, found: int, wanted: int) -> CourseError:
    name = FRAMEWORK_NAMES[framework]
    in_notebook = "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None
    place = f"this cell, which calls simulate({wanted})," if in_notebook else "this call"
    return CourseError(
        f"{name} has already started with {found} device(s), so simulate({wanted}) comes too late: "
        f"restart the kernel and move {place} above the first cell that uses {name}."
    )


def _choose_keras_backend(framework: str) -> None:
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = framework
    elif (running := sys.modules["keras"].backend.backend()) != framework:
        raise CourseError(
            f"Keras was imported with the {running} backend, and this lesson uses {framework}: "
            f"restart the kernel and call simulate() before `import keras`."
        )


def quieten() -> None:
    """Set what keeps the frameworks' start-up lines down and JAX off accelerators that are not there."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if not _gpu_names() and _tpu_name() is None:
        # libtpu is installed for its compiler; without this JAX would look for a TPU that isn't there.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")


@contextmanager
def without_start_up_log() -> Iterator[None]:
    """Keep C++ lines off the notebook: TensorFlow 2.21 prints some at any log level."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_bytes() -> int | None:
    try:
        page_bytes, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # no sysconf, or a name that it does not know
        return None
    return page_bytes * pages if pages > 0 else None


def _gpu_names() -> tuple[str, ...]:
    try:
        listing = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(listing.stdout.splitlines()) if listing.returncode == 0 else ()


def _tpu_name() -> str | None:
    """The accelerator type where the runtime names it, else the kind of device file."""
    if any(Path("/dev").glob("accel[0-9]*")) or any(Path("/dev/vfio").glob("[0-9]*")):
        return os.environ.get("TPU_ACCELERATOR_TYPE", "TPU")
    return None


def _version(package: str) -> str | None:
    builds = (package, "tensorflow-cpu", "tensorflow-tpu") if package == "tensorflow" else (package,)
    for build in builds:
        try:
            return importlib.metadata.version(build)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None

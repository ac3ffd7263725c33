"""Adds TensorFlow to Colab's TPU runtime, which has none. Standard library only; devices.simulate calls it."""

import importlib
import importlib.metadata
import subprocess
import sys
import tempfile

from course_lib.errors import CourseError


def add_tensorflow() -> str:
    """Install TensorFlow's CPU build, with every version that is here as a constraint: pip may add, and change nothing.

    Returns  one line that says so, and why
    Raises   CourseError where no build fits, or there is no network
    """
    here = sorted({f"{one.name}=={one.version}" for one in importlib.metadata.distributions()})
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(here))
        constraints.flush()
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "-c", constraints.name]
        done = subprocess.run([*pip, _build()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if line.startswith("ERROR")] or ["no reason given"]
        raise CourseError(
            f"TensorFlow's CPU build cannot be added to this runtime ({said[-1]}); "
            "choose Runtime > Change runtime type > CPU"
        )
    importlib.invalidate_caches()
    version = importlib.metadata.version("tensorflow-cpu")
    return f"Colab's TPU runtime has no TensorFlow: added its CPU build {version}, and changed nothing else."


def _build() -> str:
    """As pyproject.toml names it. The build for TPUs would bring a libtpu of its own; lessons 05 and 07 use JAX's."""
    extras = importlib.metadata.requires("distributed-training-course")
    return next(one.partition(";")[0].strip() for one in extras if one.startswith("tensorflow-cpu"))

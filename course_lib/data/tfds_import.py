"""Import TensorFlow Datasets wherever the course runs, Colab included.

TFDS 4.9.10 has two bugs there, and neither can be fixed by installing something
that Colab doesn't have. It imports the backport `importlib_resources` without
asking for it; Python 3.11 has the same module under its own name. And Colab
ships protobuf 5 beside a tensorflow-metadata whose generated code was made by
protobuf 6 (tensorflow/metadata issue 68, open); the messages read the same, so
the version check is lifted for that import alone.
"""

import importlib.resources.abc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from course_lib.errors import CourseError


def import_tfds() -> ModuleType:
    """Return the module `tensorflow_datasets`.

    Raises CourseError when TFDS, or the TensorFlow that it reads with, is not installed.
    """
    for module in ("tensorflow", "tensorflow_datasets"):
        if importlib.util.find_spec(module) is None:
            package = module.replace("_", "-")
            raise CourseError(
                f"Reading through tf.data needs {package}, which is not installed here: `pip install {package}`, "
                'or take plain arrays with data.arrays("digits", "train").'
            )
    if importlib.util.find_spec("importlib_resources") is None:
        sys.modules["importlib_resources"] = importlib.resources
    with _any_protobuf_version():
        return importlib.import_module("tensorflow_datasets")


@contextmanager
def _any_protobuf_version() -> Iterator[None]:
    from google.protobuf import runtime_version

    check = runtime_version.ValidateProtobufRuntimeVersion
    runtime_version.ValidateProtobufRuntimeVersion = lambda *versions: None
    try:
        yield
    finally:
        runtime_version.ValidateProtobufRuntimeVersion = check

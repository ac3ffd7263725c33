"""The course's embedded data set: 1,797 real handwritten digits, 8 x 8 pixels.

Needs scikit-learn, which ships the images; no network and no framework. Its file is read without importing it: that
would take longer than all else that a small worker does before its first step.
Source: Alpaydin & Kaynak (1998), "Optical Recognition of Handwritten Digits",
UCI Machine Learning Repository, the test part, as scikit-learn carries it.
"""

import hashlib
import importlib.util
from pathlib import Path

import numpy as np

from course_lib.errors import CourseError

FILE = "datasets/data/digits.csv.gz"  # in scikit-learn, where load_digits finds it
CLASSES = 10
SHAPE = (8, 8, 1)
SPLITS = {"train": slice(0, 1437), "test": slice(1437, 1797)}
SHA256 = "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3"  # 1797 images as uint8, 0 to 16
LABELS_SHA256 = "3a0e68456f9a3c609b399717dd9ca55bb9153be1bccf72e38e3319cb740c75cd"  # 1797 labels as int32
INK_LEVELS = 16


def source(split: str) -> tuple[np.ndarray, np.ndarray]:
    """The split's images (n, 8, 8, 1) uint8 and labels (n,) int32, always in one order.

    scikit-learn's 17 grey levels (0 to 16) are spread over 0 to 255, the range
    of every other image data set, so that one input pipeline fits all.

    Raises CourseError when scikit-learn or its file is missing, or when the
    arrays are not the ones that this course was written with.
    """
    levels, labels = _scikit_learn_arrays()
    images = np.rint(levels[SPLITS[split]] * (255 / INK_LEVELS)).astype(np.uint8)
    return images.reshape(-1, *SHAPE), labels[SPLITS[split]]


def _scikit_learn_arrays() -> tuple[np.ndarray, np.ndarray]:
    package = importlib.util.find_spec("sklearn")
    if not package:
        raise CourseError(
            "The embedded digits come with scikit-learn, which is not installed: `pip install scikit-learn`."
        )
    path = Path(package.origin).parent / FILE
    try:
        rows = np.loadtxt(path, delimiter=",", dtype=np.int32)  # 64 levels and the label
    except (OSError, ValueError) as error:
        raise CourseError(
            f"scikit-learn's digits cannot be read from {path} ({error}): "
            "reinstall it with `pip install --force-reinstall scikit-learn`."
        ) from None
    levels, labels = rows[:, :-1].astype(np.uint8), np.ascontiguousarray(rows[:, -1])
    for what, array, expected in (("images", levels, SHA256), ("labels", labels, LABELS_SHA256)):
        found = hashlib.sha256(array).hexdigest()
        if found != expected:
            raise CourseError(
                f"scikit-learn's digits have other {what} than expected (SHA-256 {found[:12]}..., expected "
                f"{expected[:12]}...): reinstall it with `pip install --force-reinstall scikit-learn`."
            )
    return levels, labels

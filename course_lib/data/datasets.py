"""The course's data sets: images through TFDS, and a text. Taught in notebooks/01.

`load` needs TensorFlow and TFDS; `arrays("digits", ...)` and `text_corpus` need neither.
"""

import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np

from course_lib import devices
from course_lib.data import digits
from course_lib.data.tfds_import import import_tfds
from course_lib.errors import CourseError

NAMES = ("digits", "cifar10", "mnist", "fashion_mnist")


def load(
    name: str,
    split: str,
    *,
    fallback: str | None = None,
    cache_dir: Path | None = None,
    say: Callable[[str], None] = print,
):
    """Open a data set as a tf.data.Dataset of (image uint8 (h, w, c), label int64 ()) pairs, 0 to 255.

    name          "digits" (embedded), or "cifar10", "mnist", "fashion_mnist" (downloaded by TFDS)
    split         "train", "test" or any TFDS slice of them, such as "train[:10%]"
    fallback      what to open when `name` can't be downloaded; `say` gets a line that names it
    cache_dir     where the prepared digits are; the user's cache folder by default
    Raises        CourseError when the name is unknown, or can't be downloaded and there is no fallback
    """
    for wanted in (name, fallback or name):
        _require_known(wanted)
    tfds = import_tfds()
    try:
        builder = _builder(tfds, name, cache_dir)
    except CourseError as error:
        if fallback is None:
            raise
        say(f"{error} Using {fallback} instead.")
        return load(fallback, split, cache_dir=cache_dir, say=say)
    return builder.as_dataset(split=split, as_supervised=True)


def arrays(name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The whole split in memory: images float32 (n, h, w, c) in [0, 1], labels int32 (n,).

    "digits" needs no TensorFlow; the others are read through `load` and raise what it raises.
    """
    _require_known(name)
    if name == "digits":
        if split not in digits.SPLITS:
            raise CourseError(f"digits has the splits {', '.join(digits.SPLITS)}, not {split!r}.")
        images, labels = digits.source(split)
    else:
        images, labels = map(np.stack, zip(*load(name, split).as_numpy_iterator()))
    return images.astype(np.float32) / np.float32(255), labels.astype(np.int32)


def text_corpus() -> str:
    """The English documentation that ships inside Python: about half a million characters."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[topic] for topic in sorted(topics))


def _builder(tfds, name: str, cache_dir: Path | None):
    if name == "digits":
        from course_lib.data import digits_builder

        return digits_builder.prepared(cache_dir or devices.cache_folder())
    builder = tfds.builder(name)
    if not builder.is_prepared():
        _require_network(name, builder)
        try:
            builder.download_and_prepare()
        except Exception as error:  # TFDS raises a different type for each way in which a download fails
            raise CourseError(
                f"{name} could not be downloaded and prepared ({type(error).__name__}: {str(error)[:200]}): "
                f'run this again, or use "digits", which needs no network.'
            ) from error
    return builder


def _require_network(name: str, builder) -> None:
    """Ask the data set's own server first: TFDS by itself retries for 3.5 minutes before it gives up."""
    address = next(iter(builder.url_infos))
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=20).close()
    except urllib.error.HTTPError:
        pass  # it answers: the network is there
    except OSError as error:
        raise CourseError(
            f"{name} is not on this machine and can't be downloaded ({getattr(error, 'reason', error)}): "
            f'connect to the network and run this again, or use "digits", which needs none.'
        ) from None


def _require_known(name: str) -> None:
    if name not in NAMES:
        raise CourseError(f"There is no data set {name!r} in this course; it has {', '.join(NAMES)}.")

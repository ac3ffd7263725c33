"""The embedded digits as a real TFDS builder, prepared once. Needs TensorFlow and TFDS; taught in notebooks/01.

The rest of the path is the one that ImageNet takes: a builder, record files of
PNG images, `as_dataset`. Any number of processes may prepare the cache at once:
each writes its own folder and renames it, which is atomic, and the first one
wins. (TFDS does the same, but draws the folder's name from Python's `random`,
which programs seed alike.) TFRecord has a checksum for each record.
"""

import contextlib
import io
import os
import tempfile
from pathlib import Path

from course_lib.data import digits
from course_lib.data.tfds_import import import_tfds
from course_lib.errors import CourseError

tfds = import_tfds()


class Digits(tfds.core.GeneratorBasedBuilder):
    """Handwritten digits, 8 x 8 x 1 uint8 with labels 0 to 9: 1,437 for training, 360 for testing."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=digits.SHAPE),
            "label": tfds.features.ClassLabel(num_classes=digits.CLASSES),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
            disable_shuffling=True,  # the order of `data.arrays`, so that both paths can be compared
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in digits.SPLITS}

    def _generate_examples(self, split):
        for key, (image, label) in enumerate(zip(*digits.source(split))):
            yield key, {"image": image, "label": int(label)}


def prepared(cache_dir: Path) -> Digits:
    """The builder, ready to read; prepares the cache when it is missing.

    cache_dir  where the course keeps its data; the records are in digits-1.0.0/
    Raises     CourseError when nothing can be written there
    """
    folder = Path(cache_dir) / f"digits-{Digits.VERSION}"
    try:
        if not folder.is_dir():
            _prepare(folder)
    except OSError as error:
        raise CourseError(
            f"The digits' records can't be written to {cache_dir} ({error.strerror or error}): "
            "free some space there, or pass another folder as cache_dir."
        ) from None
    return Digits(data_dir=str(folder))


def _prepare(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=folder.parent) as private:
        records = Path(private) / "records"
        _write_records(records)
        try:
            os.rename(records, folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise


def _write_records(folder: Path) -> None:
    tfds.display_progress_bar(False)  # in a notebook a bar is displayed, and goes to no stream
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            Digits(data_dir=str(folder)).download_and_prepare()
    finally:
        tfds.display_progress_bar(True)

"""The embedded digits as a real TFDS builder with a checksummed cache.

Needs TensorFlow and TFDS; taught in notebooks/01. The path from here on is the
one that ImageNet takes: a builder, record files of PNG images, `as_dataset`.

Any number of processes may prepare the cache at once. Each prepares a private
folder and renames it into place; the rename of a folder is atomic, so one wins
and the others discard theirs. A reader checks every file's SHA-256 first.
"""

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
import time
from pathlib import Path

from course_lib.data import digits
from course_lib.data.tfds_import import import_tfds
from course_lib.errors import CourseError

tfds = import_tfds()

CHECKSUMS = "SHA256SUMS"
PRIVATE_PREFIX = ".preparing-"
ABANDONED_AFTER_SECONDS = 3600  # a preparation takes about a second


class Digits(tfds.core.GeneratorBasedBuilder):
    """Handwritten digits, 8 x 8 x 1 uint8 with labels 0 to 9: 1,437 for training, 360 for testing."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "As scikit-learn ships them, grey levels spread over 0 to 255."}

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
    """The builder, ready to read: prepares the cache when it is missing or damaged.

    cache_dir  where the course keeps its data; the records lie in digits-1.0.0/
    Raises     CourseError when nothing can be written there
    """
    folder = Path(cache_dir) / f"digits-{Digits.VERSION}"
    if not is_intact(folder):
        try:
            _prepare(folder)
        except OSError as error:
            raise CourseError(
                f"The digits' records can't be written to {cache_dir} ({error.strerror or error}): "
                "free some space there, or pass another folder as cache_dir."
            ) from None
    return Digits(data_dir=str(folder))


def is_intact(folder: Path) -> bool:
    """Does every file that SHA256SUMS lists exist, unaltered?"""
    try:
        lines = (folder / CHECKSUMS).read_text().splitlines()
        return bool(lines) and lines == _checksums(folder)
    except (OSError, UnicodeDecodeError):
        return False


def _prepare(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    private = Path(tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir=folder.parent))
    try:
        _write_records(private)
        (private / CHECKSUMS).write_text("\n".join(_checksums(private)) + "\n")
        _put_in_place(private, folder)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _write_records(private: Path) -> None:
    tfds.display_progress_bar(False)  # in a notebook a bar is displayed, and goes to no stream
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            Digits(data_dir=str(private)).download_and_prepare()
    finally:
        tfds.display_progress_bar(True)


def _put_in_place(private: Path, folder: Path) -> None:
    try:
        os.rename(private, folder)
    except OSError:  # another process was first, or a damaged cache stands there
        if is_intact(folder):
            return
        # File by file, because a process may be reading: each replacement is atomic, and every
        # process that repairs writes the same bytes.
        for file in sorted(private.rglob("*")):
            if file.is_file():
                target = folder / file.relative_to(private)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, target)


def _checksums(folder: Path) -> list[str]:
    """One line per file, in sha256sum's format, sorted by path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    return [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}" for path in files]


def _remove_abandoned(parent: Path) -> None:
    """Delete what preparations that were killed have left."""
    for leftover in parent.glob(f"{PRIVATE_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > ABANDONED_AFTER_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)

"""What a certificate says, as plain values with a digest over them. Needs nothing.

A claim is what a learner says of themself, with their answers. A confirmed record is what is left of a claim once an
instructor has run the answers again: the same values and digest, and no answers, which are not for everybody's eyes.
"""

import base64
import hashlib
import json
import os
import re
import stat
import unicodedata
import zlib
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.notebook_cells import question_tags, read_notebook
from course_lib.progress import Progress

FORMAT = "distributed training course, certificate 1"
UNKNOWN = "unknown"  # a day that the learner's record does not tell
LONGEST_NAME = 100  # characters
# Letters and marks that show nothing, though Unicode calls them printable.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
ANSWERS_BYTES = 20_000_000  # expanded; twelve notebooks' code is a hundredth of it


class Refused(CourseError):
    """The file is not a certificate, was changed, or holds wrong answers: one line and exit code 1."""


@dataclass(frozen=True)
class Line:
    """One exercise of a certificate.

    right_since  the day, by the learner's own record, "2026-03-01"; "unknown" where that does not tell
    sha256       of the notebook's code cells
    """

    exercise: str
    points: int
    of: int
    right_since: str
    sha256: str


@dataclass(frozen=True)
class Record:
    """A certificate's values.

    name       the learner's, one line
    made_on    the day of the claim, "2026-03-01"
    exercises  every exercise of the course
    answers    exercise to its code cells, packed by `pack`; empty in a confirmed record
    """

    name: str
    made_on: str
    exercises: tuple[Line, ...]
    answers: str = ""

    @property
    def points(self) -> int:
        return sum(line.points for line in self.exercises)

    @property
    def of(self) -> int:
        return sum(line.of for line in self.exercises)

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of name, day, exercises and, by their own digests, the answers."""
        values = {"format": FORMAT, **asdict(self)}
        del values["answers"]
        return hashlib.sha256(canonical(values)).hexdigest()

    def as_json(self) -> str:
        """The record with its digest; from_json takes it back."""
        return canonical({"format": FORMAT, **asdict(self), "digest": self.digest}).decode()

    @classmethod
    def from_json(cls, text: str) -> tuple["Record", str]:
        """The record, and the digest that stands beside it. Raises Refused for another text."""
        try:
            values = json.loads(text)
            digest = values.pop("digest")
            if values.pop("format") != FORMAT:
                raise Refused("this certificate is of another version of the course: verify it with that version")
            lines = tuple(Line(**line) for line in values.pop("exercises"))
            record = cls(**values, exercises=lines)
            texts = [digest, record.name, record.made_on, record.answers]
            texts += [text for line in lines for text in (line.exercise, line.right_since, line.sha256)]
            numbers = [number for line in lines for number in (line.points, line.of)]
            if not all(isinstance(text, str) for text in texts) or not all(type(number) is int for number in numbers):
                raise TypeError
            days = [record.made_on, *(line.right_since for line in lines if line.right_since != UNKNOWN)]
            if not is_name(record.name) or not all(map(_is_past_day, days)):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Refused("this is no certificate of this course: its record cannot be read") from None
        return record, digest


def claim(name: str, progress: Progress, folder: Path) -> Record:
    """The learner's own claim, from what is recorded and the notebooks beside it.

    folder  holds the exercise notebooks
    Raises  CourseError for a name that is no line of text, or a notebook that cannot be read
    """
    name = " ".join(name.split())
    if not is_name(name):
        raise CourseError(f"--name takes 1 to {LONGEST_NAME} characters that can be printed, not {name[:120]!r}")
    answers = {one.exercise: code_of(folder / f"{one.exercise}.ipynb") for one in progress.exercises}
    today = datetime.now(UTC).date().isoformat()
    lines = tuple(
        Line(one.exercise, one.points, one.of, _day(one.right_since), sha256_of(answers[one.exercise]))
        for one in progress.exercises
    )
    return Record(name, today, lines, pack(answers))


def is_name(name: str) -> bool:
    """Whether it is one line that can be printed and seen."""
    is_line = 0 < len(name) <= LONGEST_NAME and name.isprintable() and name == " ".join(name.split())
    is_seen = any(unicodedata.category(letter)[0] in "LN" for letter in name) and not _INVISIBLE.search(name)
    return is_line and is_seen


def read_file(file: Path, most: int) -> bytes:
    """At most so many bytes of an ordinary file. Raises CourseError, in one line, for what is none."""
    try:
        with open(file, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise CourseError(f"{file} cannot be read: it is no ordinary file")
            return opened.read(most)
    except OSError as error:
        raise CourseError(f"{file} cannot be read: {error.strerror or error}") from None


def write_new(file: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file that is not there yet. Raises CourseError where it is, or cannot be written."""
    try:
        with open(file, "xb", opener=partial(os.open, mode=mode)) as made:
            made.write(content)
    except OSError as error:
        raise CourseError(f"{file} cannot be written ({error.strerror}); name a new file") from None


def code_of(path: Path) -> list[dict]:
    """A notebook's code cells, their source and question tags, in order: what its answers are run from."""
    cells = [cell for cell in read_notebook(path)["cells"] if cell["cell_type"] == "code"]
    return [{"source": cell["source"], "tags": question_tags(cell)} for cell in cells]


def pack(answers: dict[str, list[dict]]) -> str:
    """The answers as compressed text; unpack takes it back."""
    return base64.b64encode(zlib.compress(canonical(answers), 9)).decode()


def unpack(packed: str) -> dict[str, list[dict]]:
    """Exercise to code cells. Raises Refused for another text, and for one that expands beyond all reason."""
    try:
        expander = zlib.decompressobj()
        content = expander.decompress(base64.b64decode(packed, validate=True), ANSWERS_BYTES)
        if expander.unconsumed_tail or not expander.eof:
            raise ValueError
        answers = json.loads(content)
        cells = [cell for code in answers.values() for cell in code]
        if not all(isinstance(cell["source"], str) and isinstance(cell["tags"], list) for cell in cells):
            raise TypeError
    except (ValueError, zlib.error, KeyError, TypeError, AttributeError, RecursionError):
        raise Refused("this is no certificate of this course: its answers cannot be read") from None
    return answers


def sha256_of(code: list[dict]) -> str:
    """The digest of one notebook's code cells."""
    return hashlib.sha256(canonical(code)).hexdigest()


def canonical(values: object) -> bytes:
    """The one JSON of these values: sorted keys, no blanks, ASCII."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _day(time: str | None) -> str:
    try:
        return datetime.fromisoformat(time or "").date().isoformat()
    except ValueError:
        return UNKNOWN


def _is_past_day(text: str) -> bool:
    """Whether it is a date as `claim` writes it, by any time zone no later than today."""
    day = date.fromisoformat(text)
    return day.isoformat() == text and day <= datetime.now(UTC).date() + timedelta(days=1)

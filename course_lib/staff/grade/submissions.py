"""Find and read the notebooks in folders, zips and single files. Needs nothing; writes nothing, follows no link.

owners.py finds the learner of each. A zip in a folder or zip is its learner's and counts as a folder; one inside that
is not opened. Hidden files and __MACOSX are not looked at.

Of several notebooks of one learner and exercise the newest by Canvas' number counts ("name-2"), else the last
one by name; one that cannot be read, or that only its folder gives an exercise, counts when there is no other.
"""

import functools
import io
import os
import stat
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.notebook_cells import exercise_name, notebook_of
from course_lib.staff.grade.owners import (
    Owner,
    ending,
    exercise_of,
    is_junk,
    natural,
    owners,
    parts_of,
    safe_name,
    shown,
    spelled_twice,
    without_notebook,
)

NOTEBOOK_BYTES = 20_000_000
LEARNER_BYTES = 100_000_000  # expanded, so that one learner's bomb costs the others nothing
TOTAL_BYTES = 4_000_000_000
ZIP_ENTRIES = 20_000
_ARCHIVES_OPEN, _MOST_NAMED = 16, 5
_DEEPEST_LEARNER = 3  # folders: an exercise's, one that holds everything, the learner's


@dataclass(frozen=True)
class Submission:
    """One learner's notebook of one exercise, as it was handed in.

    exercise  one of the course's; None, with a problem, when nothing says which
    name      for files: unique, always the same for the learner and exercise
    file      the notebook as the examiner knows it, "week3.zip: ana/02.ipynb"
    content   its bytes; empty when they could not be read
    notes     what was set aside, one line each
    problem   why it cannot be graded, in one line
    """

    learner: str
    exercise: str | None
    name: str
    file: str
    content: bytes = field(repr=False)
    notes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class _Item:
    """A notebook, zip or, only to be named, another file: its path below the given one, and what opens it."""

    root: Path  # a notebook's folder if it was given itself
    parts: tuple[str, ...]
    file: str
    open: Callable[[], io.BufferedIOBase]
    problem: str = ""

    @property
    def counts(self) -> bool:
        """Whether it is a notebook or zip, or stands for one that cannot be read."""
        return bool(self.problem or not self.parts or ending(self.parts[-1]))


def find(paths: list[Path]) -> list[Submission]:
    """Every submission in the folders, .zip and .ipynb files, by learner and exercise; some have a problem.

    Returns  one per learner and exercise, and one per learner for all that is of no known exercise, or if there is
             no notebook in the learner's folder beside those of others
    Raises   CourseError, in one line, for a path that does not exist, is of another kind, or holds no notebook
    """
    learners, found, left = defaultdict(list), [], TOTAL_BYTES
    items, others = _items(paths)
    owned = owners([(item.root, item.parts) for item in items])
    for item, owner in zip(items, owned):
        learners[owner.learner].append((item, owner))
    for learner, files in without_notebook(items, owned, others).items():
        if learner not in learners:
            problem = f"{learner} handed in no notebook (.ipynb), only {_listed(files, ', ')}"
            found.append(Submission(learner, None, f"{safe_name(learner)}--unknown", files[0], b"", (), problem))
    for learner in sorted(learners, key=lambda learner: (natural(learner), learner)):
        groups = defaultdict(list)
        for rank, read in _contents(learners[learner], min(left, LEARNER_BYTES)):
            groups[read.exercise].append((rank, read))
        notes = spelled_twice([owner.place[-1] for _, owner in learners[learner]])
        ours = [_counting(groups[exercise], notes) for exercise in sorted(groups, key=lambda it: it or "~")]
        left -= sum(len(submission.content) for submission in ours)
        found += ours
    return sorted(found, key=lambda submission: (natural(submission.learner), submission.learner))


def _items(paths: list[Path]) -> tuple[list[_Item], list[_Item]]:
    """All notebooks and zips in the paths, and all other files, each once, in whatever order the paths are given."""
    given = sorted({_resolved(path) for path in paths}, key=lambda path: (path.is_file(), len(path.parts), path))
    archive = functools.lru_cache(_ARCHIVES_OPEN)(_archive)  # a class may be a thousand zips
    found, seen = [], {path for path in given if ending(path.name) == ".zip"}
    for path in given:  # folders first: a file in one belongs to its learner there
        if path.is_file() and ending(path.name) == ".zip":
            here = fresh = list(_given_zip(path, archive, alone=len(given) == 1))
        else:
            here = list(_folder_items(path)) if path.is_dir() else [_file_item(path.parent, (path.name,))]
            fresh = [item for item in here if item.root.joinpath(*item.parts) not in seen]
            seen |= {item.root.joinpath(*item.parts) for item in fresh}
        if not any(item.counts for item in here):
            raise CourseError(
                f"nothing in {shown(str(path))} ends in .ipynb or .zip: give the submissions or their zip"
            )
        found += fresh
    return [item for item in found if item.counts], [item for item in found if not item.counts]


def _resolved(path: Path) -> Path:
    try:
        found = Path(path).resolve(strict=True)
    except FileNotFoundError:
        raise CourseError(f"there is no file or folder {shown(str(path))}") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise CourseError(f"{shown(str(path))} cannot be read: {_reason(error)}") from None
    if not found.is_dir() and not (found.is_file() and ending(found.name)):
        raise CourseError(f"{shown(str(path))} is neither a folder, a .zip nor a .ipynb file: give one of these")
    return found


def _folder_items(root: Path) -> Iterator[_Item]:
    folders = [()]
    while folders:
        parts = folders.pop()
        try:
            entries = [entry for entry in os.scandir(root.joinpath(*parts)) if not is_junk(entry.name)]
            if parts and not entries:
                yield _empty_folder(_file_item(root, parts))
        except OSError as error:
            if not parts:
                raise CourseError(f"{shown(str(root))} cannot be read: {_reason(error)}") from None
            yield replace(_file_item(root, parts), problem=f"cannot be read: {_reason(error)}")
            continue
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                folders.append((*parts, entry.name))
            elif ending(entry.name) or entry.is_symlink() and not parts:
                item = _file_item(root, (*parts, entry.name))
                odd = "is a link, and links are not followed" if entry.is_symlink() else "is no ordinary file"
                yield item if entry.is_file(follow_symlinks=False) else replace(item, problem=odd)
            elif parts:
                yield _file_item(root, (*parts, entry.name))


def _file_item(root: Path, parts: tuple[str, ...]) -> _Item:
    return _Item(root, parts, shown("/".join(parts)), functools.partial(root.joinpath(*parts).open, "rb"))


def _empty_folder(item: _Item) -> _Item:
    """An empty folder as if it held a file without a name, so that its learner is named."""
    return replace(item, parts=(*item.parts, ""), file=f"{item.file}/ (empty)")


def _given_zip(path: Path, archive: Callable[[Path], zipfile.ZipFile], alone: bool) -> Iterator[_Item]:
    """What is in it. A zip that cannot be read is a mistake in the call when it is alone, else a learner's problem."""
    whole = replace(_file_item(path.parent, (path.name,)), root=path)
    try:
        yield from _zip_items(functools.partial(archive, path), replace(whole, parts=()))
    except CourseError as error:
        if alone:
            raise CourseError(f"{shown(str(path))} {error}: download it again, or give the unpacked folder") from None
        yield replace(whole, problem=str(error))


def _archive(source: Path | io.BytesIO) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(source)
    except Exception as error:  # of a dozen kinds: a zip may hold any bytes
        raise CourseError(f"is no readable zip ({_reason(error)})") from None
    if (entries := len(archive.infolist())) > ZIP_ENTRIES:
        raise CourseError(f"holds {entries:,} entries, more than {ZIP_ENTRIES:,}")
    return archive


def _zip_items(archive: Callable[[], zipfile.ZipFile], whole: _Item) -> Iterator[_Item]:
    """The files in an archive; the names in it are labels, and never become paths."""
    entries = [(entry, parts_of(entry.filename)) for entry in archive().infolist()]
    filled = {parts[:depth] for _, parts in entries for depth in range(1, min(len(parts), _DEEPEST_LEARNER + 1))}
    for entry, parts in entries:
        if parts and not any(map(is_junk, parts)):
            file = f"{whole.file}: {shown('/'.join(parts))}"
            item = _Item(whole.root, whole.parts + parts, file, lambda entry=entry: archive().open(entry))
            if entry.is_dir():
                if len(parts) <= _DEEPEST_LEARNER and parts not in filled:
                    yield _empty_folder(item)
                continue
            is_nested = whole.parts and ending(parts[-1]) == ".zip"
            problem = "is a zip inside a zip, which is not opened" if is_nested else _entry_problem(entry)
            yield replace(item, problem=problem) if item.counts else item


def _entry_problem(entry: zipfile.ZipInfo) -> str:
    if entry.create_system == 3 and stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
        return "is a link or no ordinary file, and is not followed"
    if entry.flag_bits & 1:
        return "is encrypted: pack it again without a password"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others expand without a bound
        return f"is compressed by method {entry.compress_type}, where 8 (deflate) is read: pack it again"
    return ""


def _contents(items: list[tuple[_Item, Owner]], budget: int) -> Iterator[tuple[tuple, Submission]]:
    """One learner's notebooks, those in zips too, with at most so many bytes in all; the highest rank counts."""
    for outer, owner in items:
        for item in _opened(outer) if ending(outer.parts[-1]) == ".zip" else [outer]:
            if budget <= 0 and not item.problem:
                item = replace(item, problem="was not read: what was read before it fills the memory set aside for it")
            rank, read = _read(item, owner, owner.labels + item.parts[len(outer.parts) :])
            budget -= len(read.content)
            yield rank, read


def _read(item: _Item, owner: Owner, labels: tuple[str, ...]) -> tuple[tuple, Submission]:
    content, name, problem = b"", None, ""
    try:
        content = _bounded(item, NOTEBOOK_BYTES)
        name = exercise_name(notebook_of(content, item.file)["cells"])
    except CourseError as error:
        problem = str(error).removeprefix(item.file).strip()
    exercise, by_itself = exercise_of(name, labels)
    if not exercise and not problem:
        problem = "does not tell which exercise it is: its set-up cell and its name hold none of this course"
    rank = not problem, by_itself, owner.again, [natural(part) for part in item.parts]
    name = f"{safe_name(owner.learner)}--{exercise or 'unknown'}"
    return rank, Submission(owner.learner, exercise, name, item.file, content, (), problem and f"{item.file} {problem}")


def _opened(outer: _Item) -> Iterator[_Item]:
    """A learner's zip as the notebooks in it, or as itself with a problem."""
    try:
        content = _bounded(outer, LEARNER_BYTES)
        if content.count(b"PK\x01\x02") > ZIP_ENTRIES:  # before zipfile makes an object of each
            raise CourseError(f"holds more than {ZIP_ENTRIES:,} entries")
        with _archive(io.BytesIO(content)) as archive:
            held = [item for item in _zip_items(lambda: archive, outer) if item.counts]
            yield from held or [replace(outer, problem="holds no notebook")]
    except CourseError as error:
        yield replace(outer, problem=str(error))


def _bounded(item: _Item, most: int) -> bytes:
    if item.problem:
        raise CourseError(item.problem)
    try:
        with item.open() as file:
            content = file.read(most + 1)
    except Exception as error:  # of a dozen kinds: a zip may hold any bytes
        raise CourseError(f"cannot be read: {_reason(error)}") from None
    if len(content) > most:
        raise CourseError(f"is larger than {most // 1_000_000} MB; were its outputs cleared?")
    if not content:
        raise CourseError("is empty (0 bytes)")
    return content


def _reason(error: Exception) -> str:
    return shown(getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__)


def _counting(reads: list[tuple[tuple, Submission]], notes: tuple[str, ...]) -> Submission:
    """The one of a learner's notebooks of one exercise that counts; without an exercise, all of them in one.

    notes  about the learner
    """
    counts, *others = [read for _, read in sorted(reads, key=lambda ranked: ranked[0])[::-1]]
    lines = [read.problem or read.file for read in (others if counts.exercise else [counts, *others])]
    listed = _listed(lines, "; ")
    if not counts.exercise:
        return replace(counts, notes=notes, problem=listed)
    aside = (f"{counts.file} counts; of the same exercise, set aside: {listed}",) if others else ()
    return replace(counts, notes=(*notes, *aside))


def _listed(lines: list[str], between: str) -> str:
    more = len(lines) - _MOST_NAMED
    return between.join(lines[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")

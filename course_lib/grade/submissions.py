"""Find whose notebook is whose in folders, zips and single files. Needs nothing; writes nothing, follows no link.

The rule. A notebook, or a zip as a whole, belongs to the learner that the FIRST sub-folder names; at the
top it belongs to the one that its own name tells of:

  Moodle    "Jane Doe_12345_assignsubmission_file_", alone or before a file's name: "Jane Doe (12345)"
  Canvas    "doejane_12345_67890_name.ipynb", perhaps with _LATE after the name: "doejane (12345)"
  a folder  as it stands: nbgrader's "ana/02/x.ipynb" is "ana", Gradescope's "submission_123" is itself
  a file    what is left without the exercise's name and a copy's number, "ana_02_data_parallelism (1)"
            is "ana"; else the name without its ending

A first folder that bears an exercise's name is passed over. So is one that holds everything, if there are
several folders in it and nothing beside them (unless all of those are named after exercises), or if
Moodle, Canvas or Gradescope named all that is in it. A zip in a folder or zip counts as a folder; one inside that
is not opened. Hidden files and __MACOSX are not looked at.

The exercise is the one in the notebook's Exercise("..."), else the one that its name, or its folder's,
holds or begins with the two digits of. Of several notebooks of one learner and exercise the newest by
Canvas' number counts ("name-2"), else the last one by name; one that cannot be read, or that only its
folder gives an exercise, counts when there is no other.
"""

import functools
import hashlib
import io
import os
import re
import stat
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.grading import bank
from course_lib.grading.cells import exercise_name, notebook_of

NOTEBOOK_BYTES = 20_000_000
LEARNER_BYTES = 100_000_000  # expanded, so that one learner's bomb costs the others nothing
TOTAL_BYTES = 4_000_000_000
ZIP_ENTRIES = 20_000
_ARCHIVES_OPEN = 16
_LONGEST_LEARNER, _LONGEST_SLUG, _LONGEST_FILE, _MOST_NAMED = 80, 50, 200, 5
_ENTRY = b"PK\x01\x02"  # begins each entry of a zip's directory

_MOODLE = re.compile(r"(?P<who>.+?)_(?P<id>[0-9]+)_assignsubmission_[a-z]+_?(?P<rest>.*)", re.DOTALL)
_CANVAS = re.compile(
    r"(?P<who>.+?)(?:_LATE)?_(?P<id>[0-9]+)_[0-9]+_(?P<rest>.+?)(?:-(?P<again>[0-9]{1,4}))?", re.DOTALL
)
_GRADESCOPE = re.compile(r"submission_[0-9]+")
_COPY = re.compile(r"(?: ?\([0-9]+\)|[-_ ]copy *[0-9]*)+$", re.IGNORECASE)
_DIGITS = {name[:2]: name for name in bank.MODULES}


@dataclass(frozen=True)
class Submission:
    """One learner's notebook of one exercise, as it was handed in.

    exercise  one of the course's; None, with a problem, when nothing tells
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
    """A notebook or zip where it was found.

    root   the given path it was found in; a notebook's folder if it was given itself
    parts  its path there, folders first
    read   gives at most so many of its bytes
    passed  folders before it that tell of no learner
    """

    root: Path
    parts: tuple[str, ...]
    file: str
    read: Callable[[int], bytes]
    problem: str = ""
    passed: tuple[str, ...] = ()

    @property
    def is_zip(self) -> bool:
        return _ending(self.parts[-1]) == ".zip"


@dataclass(frozen=True)
class _Read:
    """An item with its bytes and what they tell."""

    item: _Item
    again: int
    exercise: str | None
    by_itself: bool  # and not by its folder
    content: bytes = b""
    problem: str = ""

    @property
    def rank(self) -> tuple:
        return not self.problem, self.by_itself, self.again, [_natural(_stem(part)) for part in self.item.parts]


def find(paths: list[Path]) -> list[Submission]:
    """Every submission in the folders, .zip and .ipynb files, by learner and exercise.

    Returns  one per learner and exercise, and one per learner for all that is of no
             known exercise; with a problem for what cannot be read
    Raises   CourseError, in one line, for a path that does not exist, is of another
             kind, or holds no notebook
    """
    learners, found, left = defaultdict(list), [], TOTAL_BYTES
    for again, item, learner in _whose(_items(paths)):
        learners[learner].append((again, item))
    for learner in sorted(learners, key=lambda learner: (_natural(learner), learner)):
        groups = defaultdict(list)
        for read in _contents(learners[learner], min(left, LEARNER_BYTES)):
            groups[read.exercise].append(read)
        ours = [_submission(learner, groups[exercise]) for exercise in sorted(groups, key=lambda it: it or "~")]
        left -= sum(len(submission.content) for submission in ours)
        found += ours
    return found


# What there is.


def _items(paths: list[Path]) -> list[_Item]:
    """All notebooks and zips in the paths, each file once, in whatever order the paths are given."""
    given = sorted({_resolved(path) for path in paths}, key=lambda path: (len(path.parts), path))
    archive = functools.lru_cache(_ARCHIVES_OPEN)(_archive)  # a class may be a thousand zips
    found, seen = [], {path for path in given if _ending(path.name) == ".zip"}
    for path in sorted(given, key=Path.is_file):  # folders first: a file in one belongs to its learner there
        if path.is_dir():
            here = list(_folder_items(path))
            items = [item for item in here if (place := path.joinpath(*item.parts)) not in seen and not seen.add(place)]
        elif _ending(path.name) == ".zip":
            items = here = list(_given_zip(path, archive))
        else:
            here = [_file_item(path, (path.name,), path.parent)]
            items = [] if path in seen else here
        if not here:
            raise CourseError(f"there is no notebook in {_shown(str(path))}: give the folder or zip of the submissions")
        found += items
    return found


def _resolved(path: Path) -> Path:
    shown = _shown(str(path))
    try:
        found = Path(path).resolve(strict=True)
        kind = found.stat().st_mode
    except FileNotFoundError:
        raise CourseError(f"there is no file or folder {shown}") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise CourseError(f"{shown} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISDIR(kind) and not (stat.S_ISREG(kind) and _ending(found.name)):
        raise CourseError(f"{shown} is neither a folder, a .zip nor a .ipynb file")
    return found


def _folder_items(root: Path) -> Iterator[_Item]:
    folders = [root]
    while folders:
        folder = folders.pop()
        parts = folder.relative_to(root).parts
        try:
            with os.scandir(folder) as entries:
                entries = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if folder == root:
                raise CourseError(f"{_shown(str(root))} cannot be read: {error.strerror or error}") from None
            yield replace(_file_item(folder, parts, root), problem=f"cannot be read: {error.strerror or error}")
            continue
        for entry in entries:
            if _is_junk(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif _ending(entry.name) or entry.is_symlink() and folder == root:
                item = _file_item(Path(entry.path), (*parts, entry.name), root)
                yield item if entry.is_file(follow_symlinks=False) else replace(item, problem=_not_followed(entry))


def _not_followed(entry: os.DirEntry) -> str:
    return "is a link, and links are not followed" if entry.is_symlink() else "is no ordinary file"


def _file_item(path: Path, parts: tuple[str, ...], root: Path) -> _Item:
    def read(most: int) -> bytes:
        with path.open("rb") as file:
            return file.read(most)

    return _Item(root, parts, _shown("/".join(parts)), read)


def _given_zip(path: Path, archive: Callable[[Path], zipfile.ZipFile]) -> Iterator[_Item]:
    try:
        yield from _zip_items(functools.partial(archive, path), (), path, _shown(path.name))
    except CourseError as error:
        yield replace(_file_item(path, (path.name,), path), problem=str(error))


def _archive(source: Path | io.BytesIO) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(source)
    except Exception as error:  # of a dozen kinds: a zip may hold any bytes
        raise CourseError(f"is no readable zip ({_reason(error)})") from None
    if len(archive.infolist()) > ZIP_ENTRIES:
        archive.close()
        raise CourseError(f"holds {len(archive.infolist()):,} entries, more than {ZIP_ENTRIES:,}")
    return archive


def _zip_items(
    archive: Callable[[], zipfile.ZipFile], before: tuple[str, ...], root: Path, label: str
) -> Iterator[_Item]:
    """The archive's entries; their names are labels, and never become paths."""
    for entry in archive().infolist():
        parts = tuple(_short(part) for part in re.split(r"[/\\]", entry.filename) if part not in ("", ".", ".."))
        if entry.is_dir() or not parts or any(map(_is_junk, parts)) or not _ending(parts[-1]):
            continue
        read = functools.partial(_read_entry, archive, entry)
        file = f"{label}: {_shown('/'.join(parts))}"
        yield _Item(root, before + parts, file, read, _entry_problem(entry))


def _entry_problem(entry: zipfile.ZipInfo) -> str:
    if entry.create_system == 3 and stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
        return "is a link or no ordinary file, and is not followed"
    if entry.flag_bits & 1:
        return "is encrypted: pack it again without a password"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others expand without a bound
        return f"is compressed by method {entry.compress_type}, where 8 (deflate) is read: pack it again"
    return ""


def _read_entry(archive: Callable[[], zipfile.ZipFile], entry: zipfile.ZipInfo, most: int) -> bytes:
    with archive().open(entry) as file:
        return file.read(most)


# Whose it is.


def _whose(items: list[_Item]) -> Iterator[tuple[int, _Item, str]]:
    """Each item with its learner, and the number of Canvas' resubmission."""
    roots, nameless = defaultdict(list), defaultdict(set)
    for item in items:
        roots[item.root].append(item)
    people = []
    for item in (item for same in roots.values() for item in _without_wrapper(same)):
        learner, again, is_named = _person(item)
        people.append((again, item, learner, is_named))
        if not is_named:
            nameless[learner].add(item.root)
    for again, item, learner, is_named in people:
        # "02_data_parallelism.ipynb" in ana.zip and in ben.zip are two people's.
        shared = not is_named and len(nameless[learner]) > 1
        yield again, item, _learner(f"{learner} in {item.root.name}" if shared else learner)


def _without_wrapper(items: list[_Item]) -> list[_Item]:
    """The items without first folders that tell of nobody, as the module's rule says."""
    items = [_inside(item) if item.parts[0] in bank.MODULES and len(item.parts) > 1 else item for item in items]
    if len({item.parts[0] for item in items}) > 1 or any(len(item.parts) == 1 for item in items):
        return items
    all_folders = all(len(item.parts) > 2 or item.is_zip for item in items)
    seconds = {item.parts[1] for item in items}
    several = all_folders and len(seconds) > 1 and not all(map(_exercise_in, seconds))
    known = all(_platform(second) or _GRADESCOPE.fullmatch(second) for second in seconds)
    return [_inside(item) for item in items] if several or known else items


def _inside(item: _Item) -> _Item:
    return replace(item, parts=item.parts[1:], passed=item.passed + item.parts[:1])


def _platform(name: str) -> re.Pattern | None:
    return next((pattern for pattern in (_MOODLE, _CANVAS) if pattern.fullmatch(_stem(name))), None)


def _person(item: _Item) -> tuple[str, int, bool]:
    """The learner that an item's first part tells of, Canvas' number, and whether it tells of one."""
    first = item.parts[0]
    pattern, stem = _platform(first), _stem(first)
    if pattern:
        match = pattern.fullmatch(stem).groupdict()
        return f"{match['who']} ({match['id']})", int(match.get("again") or 0), True
    if not _ending(first):
        return first, 0, True
    plain = _COPY.sub("", stem)
    for exercise in bank.MODULES:
        left = plain.removeprefix(exercise) if plain.startswith(exercise) else plain.removesuffix(exercise)
        if left != plain:
            left = left.strip("_-. ")
            return (left, 0, True) if left else (stem, 0, False)
    return stem, 0, True


def _learner(raw: str) -> str:
    """The learner as shown; what had to be changed for that gets a mark of its own, so that nobody shares a name."""
    raw = unicodedata.normalize("NFC", raw)
    shown = _shown(raw, _LONGEST_LEARNER).strip()
    return shown if shown == raw else f"{shown} ~{_digest(raw)}".strip()


# What is in it.


def _contents(items: Iterable[tuple[int, _Item]], budget: int) -> Iterator[_Read]:
    """One learner's notebooks, those in zips too, with at most so many bytes in all."""
    for again, outer in items:
        for item in _opened(outer) if outer.is_zip else [outer]:
            if budget <= 0 and not item.problem:
                item = replace(item, problem="was not read: what was read before it fills the memory set aside for it")
            read = _read(item, again)
            budget -= len(read.content)
            yield read


def _read(item: _Item, again: int) -> _Read:
    content, problem = (b"", item.problem) if item.problem else _bounded(item, NOTEBOOK_BYTES)
    name = None
    if not problem:
        try:
            name = exercise_name(notebook_of(content, item.file)["cells"])
        except CourseError as error:
            problem = str(error).removeprefix(item.file).strip()
    own = name if name in bank.MODULES else _exercise_in(item.parts[-1])
    exercise = own or _exercise_of_folder(item)
    if not exercise and not problem:
        problem = "does not tell which exercise it is: its set-up cell and its name hold none of this course"
    return _Read(item, again, exercise, bool(own), content, problem)


def _opened(outer: _Item) -> Iterator[_Item]:
    """A learner's zip as the notebooks in it, or as itself with a problem."""
    content, problem = (b"", outer.problem) if outer.problem else _bounded(outer, LEARNER_BYTES)
    if not problem and content.count(_ENTRY) > ZIP_ENTRIES:  # before zipfile makes an object of each
        problem = f"holds more than {ZIP_ENTRIES:,} entries"
    if problem:
        yield replace(outer, problem=problem)
        return
    try:
        with _archive(io.BytesIO(content)) as archive:
            items = list(_zip_items(lambda: archive, outer.parts, outer.root, outer.file))
            for item in items:
                yield replace(item, problem="is a zip inside a zip, which is not opened") if item.is_zip else item
            if not items:
                yield replace(outer, problem="holds no notebook")
    except CourseError as error:
        yield replace(outer, problem=str(error))


def _bounded(item: _Item, most: int) -> tuple[bytes, str]:
    """The item's bytes, or why there are none."""
    try:
        content = item.read(most + 1)
    except Exception as error:  # of a dozen kinds: a zip may hold any bytes
        return b"", f"cannot be read: {_reason(error)}"
    if len(content) > most:
        return b"", f"is larger than {most // 1_000_000} MB; were its outputs cleared?"
    return content, "" if content else "is empty (0 bytes)"


def _exercise_of_folder(item: _Item) -> str | None:
    """The exercise that the innermost folder tells of, among those that are not just a learner's name."""
    first = item.parts[0]
    folders = [*item.passed, *([first] if _platform(first) or _ending(first) else []), *item.parts[1:-1]]
    return next(filter(None, map(_exercise_in, reversed(folders))), None)


def _exercise_in(name: str) -> str | None:
    """The exercise that a file's or folder's name holds, or begins with the two digits of."""
    pattern, stem = _platform(name), _stem(name)
    own = pattern.fullmatch(stem)["rest"] if pattern else stem
    held = next((exercise for exercise in bank.MODULES if exercise in own), None)
    digits = re.match(r"([0-9]{2})(?![0-9A-Za-z])", own)
    return held or (_DIGITS.get(digits[1]) if digits else None)


# What counts.


def _submission(learner: str, reads: list[_Read]) -> Submission:
    """The one of a learner's notebooks of one exercise that counts; without an exercise, all of them in one."""
    *others, counts = sorted(reads, key=lambda read: read.rank)
    exercise, file = counts.exercise, counts.item.file
    name = f"{safe_name(learner)}--{exercise or 'unknown'}"
    if not exercise:
        lines = [f"{read.item.file} {read.problem}" for read in reversed((*others, counts))]
        return Submission(learner, None, name, file, counts.content, problem=_some(lines, "; "))
    notes = ()
    if others:
        aside = [read.item.file + (f" (it {read.problem})" if read.problem else "") for read in reversed(others)]
        notes = (f"{file} counts; of the same exercise, set aside: {_some(aside, ', ')}",)
    problem = counts.problem and f"{file} {counts.problem}"
    return Submission(learner, exercise, name, file, counts.content, notes, problem)


def _some(lines: list[str], between: str) -> str:
    more = len(lines) - _MOST_NAMED
    return between.join(lines[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


# Names.


def _ending(name: str) -> str:
    """".ipynb", ".zip", or nothing."""
    ending = os.path.splitext(name)[1].lower()
    return ending if ending in (".ipynb", ".zip") else ""


def _stem(name: str) -> str:
    return name[: len(name) - len(_ending(name))]


def _short(name: str) -> str:
    """A name of a length that a file system would take, and nobody else's."""
    return name if len(name) <= 255 else f"{name[:200]}~{_digest(name)}{_ending(name)}"


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _natural(text: str) -> list:
    """Sorts 9 before 10."""
    pieces = re.split(r"([0-9]+)", text.casefold())
    return [(len(it.lstrip("0")), it.lstrip("0")) if place % 2 else it for place, it in enumerate(pieces)]


def _shown(text: str, most: int = _LONGEST_FILE) -> str:
    """Text without what a terminal or page would act on, cut in the middle."""
    clean = "".join("?" if unicodedata.category(letter) in _UNSHOWN else letter for letter in text)
    return clean if len(clean) <= most else f"{clean[: most // 2]}...{clean[3 - most // 2 :]}"


_UNSHOWN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def safe_name(learner: str) -> str:
    """The learner as a file's name; what had to be changed for that gets a mark of its own."""
    plain = unicodedata.normalize("NFKD", learner).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9._-]+", "-", plain).strip(".-_")[:_LONGEST_SLUG] or "learner"
    is_marked = re.search(r"\.[0-9a-f]{10}$", slug)  # nobody can be called as another's mark
    return slug if slug == learner and not is_marked else f"{slug}.{_digest(learner)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def _reason(error: Exception) -> str:
    said = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    return _shown(said)

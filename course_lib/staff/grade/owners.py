"""Which learner each notebook belongs to, by names alone. Standard library; reads no file.

The rule. A notebook, or a zip as a whole, belongs to the learner that the FIRST sub-folder names; at the
top it belongs to the one that its own name gives:

  Moodle    "Jane Doe_12345_assignsubmission_file_", alone or before a file's name: "Jane Doe (12345)"
  Canvas    "doejane_12345_67890_name.ipynb", perhaps with _LATE after the name: "doejane (12345)"
  a folder  as it stands: nbgrader's "ana/02/x.ipynb" is "ana", Gradescope's "submission_123" is itself
  a file    what is left without the exercise's name and a copy's number, "ana_02_data_parallelism (1)"
            is "ana"; else the name without its ending

A first folder that bears an exercise's name is passed over. So is one that holds everything, if there are
several folders in it and nothing beside them (unless all of those are named after exercises), or if
Moodle, Canvas or Gradescope named all that is in it. A zip counts as a folder there. What bears
nothing but an exercise's name, in several of the given paths, is "02_data_parallelism in ana.zip" in each.

The exercise is the one in the notebook's Exercise("..."), else the one that its name, or its innermost
folder's that names one, holds or begins with the two digits of. A learner's folder names none.
"""

import hashlib
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from course_lib.exercises import judges

_LONGEST_LEARNER, _LONGEST_SLUG, _LONGEST_SHOWN, _LONGEST_PART = 80, 50, 200, 255
_MOODLE = re.compile(r"(?P<who>.+?)_(?P<id>[0-9]+)_assignsubmission_[a-z]+_?(?P<rest>.*)", re.S)
_CANVAS = re.compile(r"(?P<who>.+?)(?:_LATE)?_(?P<id>[0-9]+)_[0-9]+_(?P<rest>.+?)(?:-(?P<again>[0-9]{1,4}))?", re.S)
_GRADESCOPE = re.compile(r"submission_[0-9]+")
_COPY = re.compile(r"(?: ?\([0-9]+\)|[-_ ]copy(?: *[0-9]+)?)++$", re.IGNORECASE)
_DIGITS = {name[:2]: name for name in judges.MODULES}
_UNSHOWN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # what a terminal or page would act on


@dataclass(frozen=True)
class Owner:
    """The learner of a notebook or zip.

    learner  as shown; different learners never look the same
    again    Canvas' number of the resubmission; 0 for the first
    labels   the names that may name the exercise: folders from outside in, then its own
    place    its path as far as the name that gives the learner
    """

    learner: str
    again: int
    labels: tuple[str, ...]
    place: tuple[str, ...]


def owners(places: Sequence[tuple[PurePath, tuple[str, ...]]]) -> list[Owner]:
    """The owner of each place, in the same order.

    places  the given path that a notebook or zip was found in, and its path there, folders first
    """
    skips = [int(len(parts) > 1 and parts[0] in judges.MODULES) for _, parts in places]
    inside = defaultdict(list)
    for (root, parts), skip in zip(places, skips):
        inside[root].append(parts[skip:])
    wrapped = {root: _is_wrapped(same) for root, same in inside.items()}
    skips = [skip + wrapped[root] for (root, _), skip in zip(places, skips)]
    people = [_person(parts[skip]) for (_, parts), skip in zip(places, skips)]
    roots = defaultdict(set)
    for (root, _), (name, _) in zip(places, people):
        roots[name].add(root)
    found = []
    for (root, parts), skip, (name, again) in zip(places, skips, people):
        is_shared = len(roots[name]) > 1 and _COPY.sub("", name).strip("_-. ") in judges.MODULES
        learner = _learner(f"{name} in {root.name}" if is_shared else name)
        first = parts[skip]
        labels = parts if _platform(first) or ending(first) else parts[:skip] + parts[skip + 1 :]
        found.append(Owner(learner, again, labels, parts[: skip + 1]))
    return found


def owner_of_folder(name: str) -> str | None:
    """The learner that a folder beside those of others names; an exercise's folder names none."""
    return None if name in judges.MODULES else _learner(_person(name)[0])


def without_notebook(items: Sequence, owned: Sequence[Owner], others: Sequence) -> dict[str, list[str]]:
    """The files of folders beside those of learners that hold no notebook, by the learner that each folder names.

    items, others  notebooks and zips, and all other files: each has a root, parts as in `owners`, and a file
    """
    known = {(item.root, owner.place) for item, owner in zip(items, owned) if len(item.parts) > len(owner.place)}
    levels, found = defaultdict(set), defaultdict(list)
    for root, place in known:
        levels[root].add(place[:-1])
    for item in others:
        for level in levels[item.root]:
            place = item.parts[: len(level) + 1]
            is_beside = place[:-1] == level and len(item.parts) > len(place)
            if is_beside and (item.root, place) not in known and (learner := owner_of_folder(place[-1])):
                found[learner].append(item.file)
    return found


def spelled_twice(names: list[str]) -> tuple[str, ...]:
    """A note where names differ only in how Unicode spells a letter, as one part or two, and so are one learner's."""
    same = unicodedata.normalize("NFC", names[0])
    one = len({unicodedata.normalize("NFC", name) for name in names}) < len(set(names))
    return (f"the name {shown(same)} is spelled in two ways (Unicode's NFC and NFD), and counts as one",) if one else ()


def _is_wrapped(places: list[tuple[str, ...]]) -> bool:
    """Whether all is in one folder that names nobody, as the module's rule says."""
    if len({parts[0] for parts in places}) > 1 or any(len(parts) == 1 for parts in places):
        return False
    seconds = {parts[1] for parts in places}
    if all(_platform(second) or _GRADESCOPE.fullmatch(second) for second in seconds):
        return True
    all_folders = all(len(parts) > 2 or ending(parts[1]) != ".ipynb" for parts in places)
    return all_folders and len(seconds) > 1 and not all(map(_exercise_in, seconds))


def _platform(name: str) -> re.Match | None:
    return _MOODLE.fullmatch(_stem(name)) or _CANVAS.fullmatch(_stem(name))


def _person(first: str) -> tuple[str, int]:
    """The learner that a first folder or file names, and Canvas' number."""
    if match := _platform(first):
        return f"{match['who']} ({match['id']})", int(match.groupdict().get("again") or 0)
    if not ending(first):
        return first, 0
    plain = _COPY.sub("", _stem(first))
    for exercise in judges.MODULES:
        left = plain.removeprefix(exercise).removesuffix(exercise)
        if left != plain:
            return left.strip("_-. ") or _stem(first), 0
    return _stem(first), 0


def _learner(raw: str) -> str:
    """The learner as shown; what had to be changed for that gets a mark, so that nobody shares a name."""
    raw = unicodedata.normalize("NFC", raw)
    clean = shown(raw, _LONGEST_LEARNER).strip()
    return clean if clean == raw else f"{clean} ~{_digest(raw)}".strip()


def exercise_of(in_cell: str | None, labels: Sequence[str]) -> tuple[str | None, bool]:
    """The exercise that a notebook's cell or an owner's labels name, and whether no folder had to."""
    named = [in_cell if in_cell in judges.MODULES else None, *map(_exercise_in, reversed(labels))]
    return next(filter(None, named), None), any(named[:2])


def _exercise_in(name: str) -> str | None:
    """The exercise that a file's or folder's name holds, or begins with the two digits of."""
    match = _platform(name)
    own = match["rest"] if match else _stem(name)
    held = next((exercise for exercise in judges.MODULES if exercise in own), None)
    digits = re.match(r"([0-9]{2})(?![0-9A-Za-z])", own)
    return held or (_DIGITS.get(digits[1]) if digits else None)


def ending(name: str) -> str:
    """ ".ipynb", ".zip", or nothing."""
    found = os.path.splitext(name)[1].lower()
    return found if found in (".ipynb", ".zip") else ""


def _stem(name: str) -> str:
    return name[: len(name) - len(ending(name))]


def is_junk(name: str) -> bool:
    """Whether a file or folder is hidden, or what macOS adds to zips."""
    return name.startswith(".") or name == "__MACOSX"


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a zip entry's name, each of a length that a file system would take, and nobody else's."""
    parts = [part for part in re.split(r"[/\\]", name) if part not in ("", ".", "..")]
    return tuple(it if len(it) <= _LONGEST_PART else f"{it[:200]}~{_digest(it)}{ending(it)}" for it in parts)


def natural(name: str) -> list:
    """A key that sorts 9 before 10, and "x" before "x (1)" whatever their endings."""
    pieces = re.split(r"([0-9]+)", _stem(name).casefold())
    return [(len(it.lstrip("0")), it.lstrip("0")) if place % 2 else it for place, it in enumerate(pieces)]


def shown(text: str, most: int = _LONGEST_SHOWN) -> str:
    """Text without what a terminal or page would act on, cut in the middle to so many characters."""
    clean = "".join("?" if unicodedata.category(letter) in _UNSHOWN else letter for letter in text)
    return clean if len(clean) <= most else f"{clean[: most // 2]}...{clean[3 - most // 2 :]}"


def safe_name(learner: str) -> str:
    """The learner as a file's name; what had to be changed for that gets a mark."""
    plain = unicodedata.normalize("NFKD", learner).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9._-]+", "-", plain).strip(".-_")[:_LONGEST_SLUG] or "learner"
    is_marked = re.search(r"\.[0-9a-f]{10}$", slug)  # nobody can be called as another's mark
    return slug if slug == learner and not is_marked else f"{slug}.{_digest(learner)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]

"""Whose notebook is whose, what is refused in one line, and what an examiner is pointed at."""

import inspect
import io
import json
import os
import random
import re
import resource
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from course_lib.errors import CourseError
from course_lib.exercises import judges, notebook_cells
from course_lib.staff import set_up_cell
from course_lib.staff.grade import submissions
from course_lib.staff.grade.review import LINE_LENGTH, LINES, suspicious
from course_lib.staff.grade.submissions import find

ROOT = Path(__file__).parents[1]
ZERO, TWO, THREE = "00_start_here", "02_data_parallelism", "03_multi_worker"
MOODLE = "Jane Doe_12345_assignsubmission_file_"


def notebook(exercise: str | None = TWO, **more) -> bytes:
    source = f'from course_lib.exercises import Exercise\ncheck = Exercise("{exercise}")' if exercise else "x = 1"
    code = [{"cell_type": "markdown", "source": "# Title"}, {"cell_type": "code", "source": [source]}]
    return json.dumps({"cells": code, "nbformat": 4, **more}).encode()


def tree(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def zipped(files: dict, how: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", how) as archive:
        for name, value in files.items():
            archive.writestr(name, value)
    return content.getvalue()


def only(*paths: Path) -> submissions.Submission:
    (submission,) = find(list(paths))
    return submission


def said(*paths: Path) -> str:
    with pytest.raises(CourseError) as caught:
        find(list(paths))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    return str(caught.value)


# Who owns a notebook. The same in a folder and in a zip.

LAYOUTS = {
    "a folder each": (["ana/x.ipynb", "ben/x.ipynb"], ["ana", "ben"]),
    "nbgrader": (["ana/02/x.ipynb", "ben/02/x.ipynb", "ben/02/timestamp.txt"], ["ana", "ben"]),
    "one learner as in nbgrader": (["ana/02_data_parallelism/x.ipynb", "ana/03/y.ipynb"], ["ana"]),
    "a wrapper": (["week3/ana/x.ipynb", "week3/ben/x.ipynb"], ["ana", "ben"]),
    "a wrapper with something beside": (["week3/ana/x.ipynb", "week3/ben/x.ipynb", "week3/y.ipynb"], ["week3"]),
    "two wrappers are learners": (["a/ana/x.ipynb", "a/ben/x.ipynb", "b/ana/x.ipynb"], ["a", "b"]),
    "a wrapper of zips": (["week3/ana.zip", "week3/ben.zip"], ["ana", "ben"]),
    "a wrapper of one learner is the learner": (["ana/part/x.ipynb"], ["ana"]),
    "an exercise's folder": (["02_data_parallelism/ana.ipynb", "02_data_parallelism/ben.ipynb"], ["ana", "ben"]),
    "an exercise's folder of folders": (["02_data_parallelism/ana/x.ipynb"], ["ana"]),
    "Moodle's folders": (
        [f"{MOODLE}/x.ipynb", "Jane Doe_9_assignsubmission_file/x.ipynb"],
        ["Jane Doe (9)", "Jane Doe (12345)"],
    ),
    "Moodle's files": ([f"{MOODLE}x.ipynb"], ["Jane Doe (12345)"]),
    "Moodle's zips": ([f"{MOODLE}x.zip", "Li_6_assignsubmission_file_y.zip"], ["Jane Doe (12345)", "Li (6)"]),
    "Moodle in a wrapper": ([f"w/{MOODLE}/x.ipynb"], ["Jane Doe (12345)"]),
    "Gradescope": (["assignment_9_export/submission_12/x.ipynb"], ["submission_12"]),
    "Canvas": (["doejane_12345_67890_02_data_parallelism.ipynb", "li_7_8_x.ipynb"], ["doejane (12345)", "li (7)"]),
    "Canvas, late and again": (["doejane_LATE_12345_67890_name-1.ipynb"], ["doejane (12345)"]),
    "Canvas in a wrapper": (["submissions/li_7_8_x.ipynb", "submissions/ng_7_9_x.zip"], ["li (7)", "ng (7)"]),
    "Canvas with underscores in the name": (["van_der_berg_12_34_x.ipynb"], ["van_der_berg (12)"]),
    "a name before the exercise's": (["ana_02_data_parallelism.ipynb"], ["ana"]),
    "a name after it": (["02_data_parallelism_ana (2).ipynb", "02_data_parallelism-ben.ipynb"], ["ana", "ben"]),
    "only the exercise's name": (["02_data_parallelism.ipynb"], [TWO]),
    "a browser's copies of it": (
        ["02_data_parallelism (1).ipynb", "02_data_parallelism-Copy1.ipynb"],
        ["02_data_parallelism (1)", "02_data_parallelism-Copy1"],
    ),
    "a plain name": (["ana.ipynb"], ["ana"]),
    "an ending in capitals": (["ana.IPYNB", "ben.ZIP"], ["ana", "ben"]),
    "numbers in their natural order": (["s10/x.ipynb", "s9/x.ipynb", "S1/x.ipynb"], ["S1", "s9", "s10"]),
    "capitals make another learner": (["Ana/x.ipynb", "ana/x.ipynb"], ["Ana", "ana"]),
}


def layout(paths: list[str]) -> dict[str, bytes]:
    inside = {".ipynb": notebook(), ".zip": zipped({"any/x.ipynb": notebook()}), ".txt": b"x"}
    return {path: inside[os.path.splitext(path)[1].lower()] for path in paths}


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize("paths, learners", LAYOUTS.values(), ids=LAYOUTS)
def test_whose_is_whose(tmp_path, paths, learners, kind):
    files = layout(paths)
    given = tree(tmp_path / "given", files)
    if kind == "zip":
        given = tmp_path / "given.zip"
        given.write_bytes(zipped(files))
    found = find([given])
    names = list(dict.fromkeys(submission.learner for submission in found))
    assert names == learners
    assert all(submission.exercise == TWO and not submission.problem for submission in found)
    assert all(submission.content == notebook() for submission in found)
    prefix = "given.zip: " if kind == "zip" else ""
    assert all(submission.file.startswith(prefix) and "given/" not in submission.file for submission in found)


def test_file_is_what_an_examiner_knows(tmp_path):
    inner = zipped({"a/b.ipynb": notebook()})
    (tmp_path / "week3.zip").write_bytes(zipped({"ana/02.ipynb": notebook(), "ben/w.zip": inner}))
    files = [submission.file for submission in find([tmp_path / "week3.zip"])]
    assert files == ["week3.zip: ana/02.ipynb", "week3.zip: ben/w.zip: a/b.ipynb"]


def test_single_notebook_goes_by_its_name(tmp_path):
    tree(tmp_path, {"ana_02_data_parallelism.ipynb": notebook()})
    submission = only(tmp_path / "ana_02_data_parallelism.ipynb")
    assert (submission.learner, submission.name) == ("ana", f"ana--{TWO}")
    assert submission.file == "ana_02_data_parallelism.ipynb"


def test_notebooks_that_name_nobody_stay_apart(tmp_path):
    """`course grade ana.zip ben.zip`, each with the exercise as it was handed out."""
    for name in ("ana", "ben"):
        (tmp_path / f"{name}.zip").write_bytes(zipped({f"{TWO}.ipynb": notebook()}))
    found = find([tmp_path / "ana.zip", tmp_path / "ben.zip"])
    assert [submission.learner for submission in found] == [f"{TWO} in ana.zip", f"{TWO} in ben.zip"]


def test_folders_that_name_nobody_stay_apart(tmp_path):
    """A browser's copy of the exercise's folder is no learner."""
    for name in ("ana", "ben"):
        files = {f"{TWO} (1)/x.ipynb": notebook(), "later/x.ipynb": notebook()}
        (tmp_path / f"{name}.zip").write_bytes(zipped(files))
    found = find([tmp_path / "ana.zip", tmp_path / "ben.zip"])
    assert [submission.learner for submission in found][:2] == [f"{TWO} (1) in ana.zip", f"{TWO} (1) in ben.zip"]


def test_an_unreadable_folder_does_not_hide_the_learners_beside_it(tmp_path, monkeypatch):
    given = tree(tmp_path, {"week3/ana/02.ipynb": notebook(), "week3/ben/02.ipynb": notebook()})
    really = os.scandir

    def scandir(path):
        if Path(path).name == "ben":
            raise unreadable(path)
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [submission.learner for submission in find([given])] == ["ana", "ben"]


def test_an_exercises_folder_tells_of_what_is_in_zips_too(tmp_path):
    inside = zipped({"a/y.ipynb": notebook(None)})
    given = tree(tmp_path, {"02_data_parallelism/ana/work.zip": inside, "02_data_parallelism/ben.zip": inside})
    assert [(submission.learner, submission.exercise) for submission in find([given])] == [("ana", TWO), ("ben", TWO)]


JUNK = ["__MACOSX/x.ipynb", "ana/.ipynb_checkpoints/x.ipynb", "ana/._x.ipynb", ".x.ipynb", "ana/.progress.jsonl"]


def test_junk_is_passed_over(tmp_path):
    files = {"ana/x.ipynb": notebook()} | dict.fromkeys(JUNK, b"junk") | {"ana/photo.png": b"", "ana/x.py": b""}
    (tmp_path / "given.zip").write_bytes(zipped(files))
    for path in (tree(tmp_path / "given", files), tmp_path / "given.zip"):
        submission = only(path)
        assert submission.learner == "ana" and not submission.notes and not submission.problem


# Which exercise, and which of several.


@pytest.mark.parametrize(
    "path, named, exercise",
    [
        ("ana/x.ipynb", THREE, THREE),
        ("ana/02_data_parallelism.ipynb", THREE, THREE),  # what it checks counts, not how it is called
        ("ana/02_data_parallelism.ipynb", None, TWO),
        ("ana/my 02_data_parallelism final.ipynb", None, TWO),
        ("ana/02_data_parallelism.ipynb", "no_such_exercise", TWO),
        ("ana/02_mine.ipynb", None, TWO),
        ("ana/02.ipynb", None, TWO),
        ("ana/02/x.ipynb", None, TWO),
        ("02_data_parallelism/ana.ipynb", None, TWO),
        ("doejane_1_2_02_work.ipynb", None, TWO),
        (f"{MOODLE}02_work.ipynb", None, TWO),
        ("07_smith/x.ipynb", None, None),  # a learner's name, not an exercise's
        ("ana/2024.ipynb", None, None),
        ("ana/99_x.ipynb", None, None),
        ("ana/x.ipynb", None, None),
    ],
)
def test_exercise_comes_from_the_cell_else_the_name(tmp_path, path, named, exercise):
    submission = only(tree(tmp_path, {path: notebook(named)}))
    assert submission.exercise == exercise
    assert ("does not tell which exercise" in submission.problem) == (exercise is None)
    assert submission.name.endswith(f"--{exercise or 'unknown'}")


NOTEBOOK_OF_ANA = {"ana/02.ipynb": notebook()}


@pytest.mark.parametrize(
    "paths, learners",
    [
        ({"gus/02.ipynb.txt": b"", "gus/notes/a.txt": b""}, ["gus"]),
        ({"ben/02.zip": zipped({"02.ipynb": notebook(), "a.txt": b""}), "gus/a.txt": b""}, ["gus"]),
        (
            {"doe_1_assignsubmission_file_/a.txt": b"", "roe_2_assignsubmission_file_/a.txt": b""},
            ["doe (1)", "roe (2)"],
        ),
        ({"02_data_parallelism/ben/x.ipynb": notebook(), "02_data_parallelism/gus/a.txt": b""}, ["gus"]),
        ({"ana/figures/a.png": b"", "readme.txt": b""}, []),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_learner_without_a_notebook_is_named(tmp_path, paths, learners, kind):
    files = NOTEBOOK_OF_ANA | paths
    (tmp_path / "all.zip").write_bytes(zipped(files))
    found = find([tree(tmp_path / "all", files) if kind == "folder" else tmp_path / "all.zip"])
    assert [one.learner for one in found if one.problem] == learners and "ana" in [
        one.learner for one in found if not one.problem
    ]
    assert all(
        "handed in no notebook (.ipynb)" in one.problem and "a.txt" in one.problem for one in found if one.problem
    )
    assert len({one.name for one in found}) == len(found)


@pytest.mark.parametrize(
    "paths, counts",
    [
        (["doejane_1_5_x.ipynb", "doejane_1_6_a-1.ipynb", "doejane_1_7_x-10.ipynb", "doejane_1_8_x-9.ipynb"], 2),
        (["doejane_1_9_x.ipynb", "doejane_LATE_1_10_a.ipynb"], 1),
        (["ana/x9.ipynb", "ana/x10.ipynb"], 1),
        (["ana/x.ipynb", "ana/x (1).ipynb"], 1),
        (["ana/work.zip", "ana/a.ipynb"], 0),
    ],
)
def test_newest_counts_and_the_rest_is_named(tmp_path, paths, counts):
    submission = only(tree(tmp_path, layout(paths)))
    assert submission.file.startswith(paths[counts]) and not submission.problem
    (note,) = submission.notes
    assert "set aside" in note and all(path in note for path in paths)


@pytest.mark.parametrize(
    "files",
    [
        {"ana/02_a.ipynb": notebook(), "ana/02_b.ipynb": b""},
        {"ana/02_a.ipynb": notebook(), "ana/02_z.zip": b"no zip"},
        {"ana/02/a.ipynb": notebook(), "ana/02/scratch.ipynb": notebook(None)},
    ],
    ids=["empty", "broken zip", "only its folder tells"],
)
def test_a_worse_newer_file_does_not_replace_the_answer(tmp_path, files):
    submission = only(tree(tmp_path, files))
    assert submission.content == notebook() and not submission.problem and "set aside" in submission.notes[0]


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_learner_whose_folder_is_empty_is_named(tmp_path, kind):
    tree(tmp_path / "all", NOTEBOOK_OF_ANA)
    for name in ("zoe", "ana/figures"):
        (tmp_path / "all" / name).mkdir()
    (tmp_path / "all.zip").write_bytes(zipped({**NOTEBOOK_OF_ANA, "zoe/": b"", "ana/figures/": b"", "ana/": b""}))
    found = find([tmp_path / ("all" if kind == "folder" else "all.zip")])
    assert [(one.learner, bool(one.problem)) for one in found] == [("ana", False), ("zoe", True)]
    assert "zoe handed in no notebook (.ipynb), only" in found[1].problem and "zoe/ (empty)" in found[1].problem


def test_one_name_in_two_spellings_is_one_learner_and_said_to_be(tmp_path):
    whole, parts = "\u00e9cole", "e\u0301cole"
    found = find([tree(tmp_path, {f"{whole}/02.ipynb": notebook(TWO), f"{parts}/03.ipynb": notebook(THREE)})])
    assert [(one.learner, one.exercise) for one in found] == [(whole, TWO), (whole, THREE)]
    assert all("is spelled in two ways" in note for one in found for note in one.notes) and found[0].notes
    assert only(tree(tmp_path / "other", {f"{whole}/02.ipynb": notebook(TWO)})).notes == ()


@pytest.mark.parametrize("piece", ["-copy (1)", " (1)", "-copy ", "_1", "1_", "(", "_LATE_1_2_", "é"])
def test_a_long_name_costs_linear_time(tmp_path, piece):
    """In a zip a name may have 65,535 bytes; what is exponential or cubic would not end."""
    name = (piece * 30_000)[:30_000]
    (tmp_path / "all.zip").write_bytes(zipped({f"{name[:200]}.ipynb": notebook(), f"{name}/02.ipynb": notebook()}))
    assert not [one.problem for one in find([tmp_path / "all.zip"]) if one.problem]


def test_a_notebook_of_format_3_is_read():
    cells = [{"cell_type": "code", "input": ["a = 1\n", "b"]}, {"cell_type": "heading", "source": "c"}]
    read = notebook_cells.notebook_of(json.dumps({"worksheets": [{"cells": cells}]}).encode(), "x")["cells"]
    assert [(cell["cell_type"], cell["source"]) for cell in read] == [("code", "a = 1\nb"), ("heading", "c")]


def test_each_exercise_of_a_learner_is_a_submission(tmp_path):
    files = {"a.ipynb": notebook(THREE), "b.ipynb": notebook(TWO), "c.ipynb": notebook(None), "d.ipynb": b"{"}
    tree(tmp_path / "ana", files)
    found = find([tmp_path])
    assert [submission.exercise for submission in found] == [TWO, THREE, None]
    unknown = found[-1].problem
    assert "ana/c.ipynb does not tell" in unknown and "ana/d.ipynb is not JSON" in unknown and "\n" not in unknown


# Files that cannot be read.

PROBLEMS = {
    "empty": ("02.ipynb", b"", "02.ipynb is empty (0 bytes)"),
    "no JSON": ("02.ipynb", b"{", "02.ipynb is not JSON"),
    "no text": ("02.ipynb", b"\xff\xfe\x00", "02.ipynb cannot be read as text"),
    "deep": ("02.ipynb", b"[" * 100_000, "02.ipynb is not JSON"),
    "a number of many digits": ("02.ipynb", b"1" * 10_000, "02.ipynb is not JSON"),
    "format 3": ("02.ipynb", b'{"worksheets": [{}]}', "not a notebook of format 3 or 4"),
    "broken zip": ("02.zip", b"PK\x03\x04 and no more", "02.zip is no readable zip"),
    "empty zip": ("02.zip", zipped({}), "02.zip holds no notebook"),
    "zip without notebooks": ("02.zip", zipped({"a.pdf": b"x"}), "02.zip holds no notebook"),
    "zip in a zip": ("02.zip", zipped({"02.zip": zipped({})}), "02.zip: 02.zip is a zip inside a zip"),
    "zip of zero bytes": ("02.zip", b"", "02.zip is empty"),
}


def header_changed(content: bytes, offset: int, value: bytes) -> bytes:
    """A zip of one entry with bytes of both its headers changed; the offset is the directory's."""
    place = content.index(b"PK\x01\x02") + offset
    content = content[:place] + value + content[place + len(value) :]
    return content[: offset - 2] + value + content[offset - 2 + len(value) :]


WHOLE = zipped({"02.ipynb": notebook()})
PROBLEMS |= {
    "encrypted": ("02.zip", header_changed(WHOLE, 8, b"\x01\x00"), "02.ipynb is encrypted"),
    "method without a bound": ("02.zip", zipped({"02.ipynb": notebook()}, zipfile.ZIP_LZMA), "compressed by method 14"),
    "checksum": ("02.zip", header_changed(WHOLE, 16, b"abcd"), "02.ipynb cannot be read: Bad CRC-32"),
    "larger than it says": ("02.zip", header_changed(WHOLE, 24, b"\5\0\0\0"), "02.ipynb cannot be read: Bad CRC-32"),
}


@pytest.mark.parametrize("name, content, says", PROBLEMS.values(), ids=PROBLEMS)
def test_what_cannot_be_read_gets_one_line(tmp_path, name, content, says):
    """And costs the others nothing."""
    given = tree(tmp_path, {f"ana/{name}": content, "ben/02.ipynb": notebook()})
    ana, ben = find([given])
    assert says in ana.problem and "\n" not in ana.problem and len(ana.problem) < 400
    assert (ana.learner, ana.exercise, ana.name) == ("ana", TWO, f"ana--{TWO}")
    assert ben.content == notebook() and not ben.problem


@pytest.mark.parametrize("cut", range(4, len(WHOLE), 37))
def test_every_cut_of_a_zip_gets_a_line(tmp_path, cut):
    (tmp_path / "ana.zip").write_bytes(WHOLE[:cut])
    (tmp_path / "ben.ipynb").write_bytes(notebook())
    ana, ben = find([tmp_path / "ana.zip", tmp_path / "ben.ipynb"])
    assert "is no readable zip" in ana.problem and not ben.problem
    assert re.search("ana.zip is no readable zip .*: download it again", said(tmp_path / "ana.zip"))


def test_every_changed_byte_of_a_zip_is_survived(tmp_path):
    draw = random.Random(0)
    for _ in range(40):
        broken = bytearray(WHOLE)
        broken[draw.randrange(len(WHOLE))] = draw.randrange(256)
        found = find([tree(tmp_path, {"ana/02.zip": bytes(broken), "ben/02.ipynb": notebook()})])
        assert found[-1].content == notebook() and all("\n" not in submission.problem for submission in found)


def test_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "NOTEBOOK_BYTES", 3_000_000)
    bomb = zipped({"02.ipynb": bytes(4_000_000)})
    files = {"ana/02.ipynb": bytes(3_000_001), "ben/02.zip": bomb, "cem/02.ipynb": notebook(), "dan.zip": bomb}
    given = tree(tmp_path / "given", files)
    (tmp_path / "all.zip").write_bytes(zipped(files))
    for path in (given, tmp_path / "all.zip"):
        problems = [submission.problem for submission in find([path])]
        assert [("larger than 3 MB" in problem) for problem in problems] == [True, True, False, True]
        assert problems[2] == "" and len(bomb) < 10_000


def test_one_learner_cannot_take_the_memory_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "LEARNER_BYTES", 50_000)
    many = {f"{number:02}/x.ipynb": notebook(None, metadata={"pad": "x" * 20_000}) for number in range(9)}
    files = {"ana.zip": zipped(many), "ben.zip": zipped({"02.ipynb": notebook()})}
    *ana, ben = find([tree(tmp_path, files)])
    assert [submission.exercise[:2] for submission in ana] == [f"{number:02}" for number in range(9)]
    read = [bool(submission.content) for submission in ana]
    assert read == [True] * 3 + [False] * 6 and "fills the memory" in ana[-1].problem
    assert ben.content == notebook()
    monkeypatch.setattr(submissions, "TOTAL_BYTES", 1)
    assert "fills the memory" in find([tmp_path])[-1].problem


@pytest.mark.parametrize("entries, is_read", [(20, True), (21, False)])
def test_entries_are_counted(tmp_path, monkeypatch, entries, is_read):
    monkeypatch.setattr(submissions, "ZIP_ENTRIES", 20)
    content = zipped({"02.ipynb": notebook()} | {f"{number}.txt": b"" for number in range(entries - 1)})
    given = tree(tmp_path / "given", {"ana/02.zip": content})
    (tmp_path / "02.zip").write_bytes(content)
    # A learner's is counted before zipfile makes an object of each entry, so its line has no exact number.
    assert only(given).content == (notebook() if is_read else b"")
    if is_read:
        assert only(tmp_path / "02.zip").content == notebook()
    else:
        assert "holds more than 20 entries" in only(given).problem
        assert "holds 21 entries, more than 20" in said(tmp_path / "02.zip")


def test_links_and_special_files_are_never_opened(tmp_path):
    secret = tree(tmp_path / "home", {"02.ipynb": notebook(), "deep/x.ipynb": notebook()})
    given = tree(tmp_path / "given", {"ana/x.txt": b"", "ben/02.ipynb": notebook()})
    (given / "ana" / "02.ipynb").symlink_to(secret / "02.ipynb")
    (given / "cem").symlink_to(secret)
    (given / "ben" / "more").symlink_to(given)
    (given / "dan").mkdir()
    os.mkfifo(given / "dan" / "02.ipynb")
    found = {submission.learner: submission for submission in find([given])}
    assert "ana/02.ipynb is a link, and links are not followed" in found["ana"].problem
    assert "cem is a link" in found["cem"].problem and "is no ordinary file" in found["dan"].problem
    assert len(found) == 4 and found["ben"].content == notebook()
    assert not any(found[learner].content for learner in ("ana", "cem", "dan"))


def test_links_in_zips_are_not_followed(tmp_path):
    link = zipfile.ZipInfo("ana/02.ipynb")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "given.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    submission = only(tmp_path / "given.zip")
    assert "is a link" in submission.problem and submission.content == b""


def unreadable(path: Path):
    """As an ordinary user meets it; root reads everything."""
    return PermissionError(13, "Permission denied", str(path))


def test_unreadable_files_and_folders_get_a_line(tmp_path, monkeypatch):
    given = tree(tmp_path, {"ana/02.ipynb": notebook(), "ben/02.ipynb": notebook(), "cem/02.ipynb": notebook()})
    really, opened = os.scandir, Path.open

    def scandir(path):
        if Path(path).name == "ben":
            raise unreadable(path)
        return really(path)

    def open_(path, *more):
        if path.parent.name == "ana":
            raise unreadable(path)
        return opened(path, *more)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(Path, "open", open_)
    ana, ben, cem = find([given])
    assert ana.problem == "ana/02.ipynb cannot be read: Permission denied" and ana.exercise == TWO
    assert ben.problem == "ben cannot be read: Permission denied" and ben.learner == "ben"
    assert cem.content == notebook()


def test_folders_are_walked_without_recursion(tmp_path):
    tree(tmp_path, {"ana/" + "a/" * 200 + "02.ipynb": notebook()})
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(len(inspect.stack(0)) + 120)
        submission = only(tmp_path)
    finally:
        sys.setrecursionlimit(before)
    assert submission.content == notebook() and len(submission.file) <= 200


def test_many_zips_are_not_open_at_once(tmp_path):
    content = zipped({"x.ipynb": notebook()})
    given = tree(tmp_path, {f"s{number}_02_data_parallelism.zip": content for number in range(60)})
    open_now, limits = len(os.listdir("/dev/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 30, limits[1]))
        found = find(list(given.glob("*.zip")))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not any(submission.problem for submission in found)


# What the user gives.


def test_paths_that_cannot_be_graded_are_named(tmp_path):
    tree(tmp_path, {"empty/a.txt": b"", "a.tar": b"", "link/x.ipynb": notebook()})
    (tmp_path / "none.zip").write_bytes(zipped({"a.txt": b""}))
    (tmp_path / "loop.ipynb").symlink_to(tmp_path / "loop.ipynb")
    os.mkfifo(tmp_path / "pipe.ipynb")
    assert "there is no file or folder" in said(tmp_path / "missing")
    assert "ends in .ipynb or .zip" in said(tmp_path / "empty")
    assert "ends in .ipynb or .zip" in said(tmp_path / "none.zip")
    assert "neither a folder, a .zip nor a .ipynb" in said(tmp_path / "a.tar")
    assert "neither a folder, a .zip nor a .ipynb" in said(tmp_path / "pipe.ipynb")
    assert "loop.ipynb cannot be read" in said(tmp_path / "loop.ipynb")
    assert "cannot be read" in said(Path("a\0b.ipynb"))
    assert "there is no file or folder" in said(tmp_path / "link", tmp_path / "line\nbreak")


def test_order_and_doubles_change_nothing(tmp_path):
    files = layout(["ana/02.ipynb", "ben/02.ipynb", "ben/work.zip", "s10/02.ipynb", "s9/02.ipynb"])
    given = tree(tmp_path / "given", files)
    (tmp_path / "more.zip").write_bytes(zipped({"zoe/x.ipynb": notebook(THREE), "ana/x.ipynb": notebook(ZERO)}))
    (tmp_path / "alias").symlink_to(given)
    paths = [given, tmp_path / "more.zip", given / "ana" / "02.ipynb", given / "s9", tmp_path / "alias"]
    paths += [given / "ana" / ".." / "ana" / "02.ipynb", tmp_path / "more.zip"]
    wanted = find([given, tmp_path / "more.zip"])
    assert [submission.learner for submission in wanted] == ["ana", "ana", "ben", "s9", "s10", "zoe"]
    for seed in range(5):
        random.Random(seed).shuffle(paths)
        assert find(paths) == wanted


def test_a_given_zip_is_no_learners_zip(tmp_path):
    given = tree(tmp_path, {"week3.zip": zipped({"ana/x.ipynb": notebook(), "ben/x.ipynb": notebook()})})
    assert [submission.learner for submission in find([given, given / "week3.zip"])] == ["ana", "ben"]


# Names.


def test_names_are_unique_stable_and_fit_a_file(tmp_path):
    learners = ["ana", "Ana", "José", "josé", "jose", "李雷", "a b", "a-b", "a_b", "..ana", "-rf", "x" * 90, "x" * 89]
    learners += ["a\nb", "a\tb", "a\u202eb", "=1+1", "con", "a;rm", "ana.0123456789", "ana "]
    found = find([tree(tmp_path, {f"{learner}/02.ipynb": notebook() for learner in learners if learner[0] != "."})])
    names = [submission.name for submission in found]
    assert len({submission.learner for submission in found}) == len(set(names)) == len(learners) - 1
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,99}", name) for name in names)
    assert f"ana--{TWO}" in names and f"jose--{TWO}" in names
    assert all(submission.learner.isprintable() for submission in found)
    alone = find([tree(tmp_path / "other", {"Ana/02.ipynb": notebook()})])
    assert alone[0].name in names  # whoever else is there


def test_odd_names_in_zips_are_only_labels(tmp_path, monkeypatch):
    names = ["../../ana/02.ipynb", "/ben/02.ipynb", "c\x1b[31m\u202ed/02.ipynb", "e\\02.ipynb"]
    names.insert(3, f"{'d' * 10_000}/02.ipynb")
    given = tree(tmp_path / "given", {"week3.zip": zipped({name: notebook() for name in names})})
    monkeypatch.chdir(given)
    found = find([given / "week3.zip"])
    assert [submission.learner[:2] for submission in found] == ["an", "be", "c?", "dd", "e"]
    assert all(submission.content == notebook() and not submission.problem for submission in found)
    assert all(len(submission.file) < 250 and submission.file.isprintable() for submission in found)
    assert len({submission.name for submission in found}) == len(names)
    assert list(tmp_path.rglob("*")) == [given, given / "week3.zip"]  # nothing was written


def test_composed_and_decomposed_letters_are_one_learner(tmp_path):
    """macOS spells them otherwise in zips."""
    files = {"Jose\u0301/02.ipynb": notebook(), "Jos\u00e9/03.ipynb": notebook(THREE)}
    (tmp_path / "given.zip").write_bytes(zipped(files))
    assert {submission.learner for submission in find([tmp_path / "given.zip"])} == {"Jos\u00e9"}


# What the cells tell.


@pytest.mark.parametrize("odd", [None, 5, "q1", ["q1"], {"tags": 5}, {"tags": "q1"}, {"tags": [[], None]}])
def test_odd_metadata_is_survived(odd):
    content = json.dumps({"cells": [{"cell_type": "code", "source": "x", "metadata": odd}], "metadata": odd}).encode()
    (cell,) = notebook_cells.notebook_of(content, "x")["cells"]
    assert notebook_cells.question_tags(cell) == [] and notebook_cells.exercise_name([cell]) is None


def test_cells_are_read_from_bytes():
    source = 'check = Exercise( "02_data_parallelism" )\nname = "\ud800"'
    code = [{"cell_type": "markdown", "source": 'Exercise("x")'}, {"cell_type": "code", "source": source}]
    read = notebook_cells.notebook_of(b"\xef\xbb\xbf" + json.dumps({"cells": code}).encode(), "x")["cells"]
    assert notebook_cells.exercise_name(read) == TWO
    assert read[1]["source"].encode().endswith(b'"?"')  # half a surrogate pair is not text


def test_answering_cells_carry_the_tag_or_define_the_name():
    question = judges.questions(ZERO)[0]
    name = question.asks_for[0]
    sources = [f"# {name}", f"def {name}(): pass", "x = 1", f"x = {name}", f"{name} = 1"]
    tagged = {"cell_type": "code", "source": "y = 1", "metadata": {"tags": ["q1"]}}
    code = [{"cell_type": "code", "source": source} for source in sources] + [tagged]
    code += [{"cell_type": "markdown", "source": f"def {name}(): pass", "metadata": {"tags": ["q1"]}}]
    assert notebook_cells.answering_cells(code, question) == [1, 4, 5]


# What an examiner is pointed at.

REACHES = {
    "import numpy as np\nnp.allclose = lambda *a: True": "sets numpy.allclose",
    "import numpy as np\nn = np.testing\nn.assert_allclose = None": "sets numpy.testing.assert_allclose",
    "import tensorflow as tf\ntf.Tensor.device = 1": "sets tensorflow.Tensor.device",
    "import tensorflow as tf\ndel tf.Tensor.device": "sets tensorflow.Tensor.device",
    "import numpy as np\nsetattr(np, 'allclose', print)": "sets numpy.allclose",
    "from numpy import ndarray\ntype.__setattr__(ndarray, 'x', 1)": "sets numpy.ndarray.x",
    "import numpy as np\nnp.__dict__['allclose'] = 1": "sets numpy.__dict__",
    "import numpy as np\nvars(np)['allclose'] = 1": "sets numpy.__dict__",
    "from course_lib.exercises import Exercise\nExercise.__call__ = print": "sets course_lib.exercises.Exercise"
    ".__call__",
    "import numpy as np\nfor np.pi in (1, 2): pass": "sets numpy.pi",
    "type(x).__eq__ = lambda *a: True": "sets __eq__ of a class that it takes from an object",
    "x.__class__.__eq__ = 1": "sets __eq__ of a class that it takes from an object",
    "__import__('numpy').allclose = 1": "sets numpy.allclose",
    "import importlib as i\nm = i.import_module('ctypes')": "imports ctypes",
    "import ctypes": "imports ctypes",
    "from ctypes.util import find_library": "imports ctypes",
    "import socket, json": "imports socket",
    "def f():\n    import subprocess": "imports subprocess",
    "import threading": "imports threading",
    "from unittest import mock": "imports unittest.mock",
    "import gc as g\ng.get_objects()": "uses gc.get_objects",
    "from gc import get_referrers as r": "imports gc.get_referrers",
    "import sys\nf = sys._getframe": "uses sys._getframe",
    "import sys\nsys.modules['numpy'] = 1": "uses sys.modules",
    "import sys\nsys.monitoring.use_tool_id(1, 'x')": "uses sys.monitoring",
    "import sys\nsys.addaudithook(print)": "uses sys.addaudithook",
    "import sys\nsys.meta_path.insert(0, x)": "uses sys.meta_path",
    "from importlib import reload": "imports importlib.reload",
    "import gc\ngc.callbacks.append(f)": "uses gc.callbacks",
    "import signal\nsignal.signal(14, f)": "uses signal.signal",
    "from signal import setitimer as s": "imports signal.setitimer",
    "x.__array_interface__['data'][0]": "uses __array_interface__",
    "from numpy.lib.stride_tricks import as_strided as view": "imports as_strided",
    "import numpy as np\nnp.lib.stride_tricks.as_strided(x, (9,))": "uses as_strided",
    "import types\nf = types.FunctionType(c, {})": "uses FunctionType",
    "from types import CodeType as C": "imports CodeType",
    "from types import *\nCodeType(1)": "uses CodeType",
    "f.f_locals['x'] = 1": "uses f_locals",
    "x.__class__ = float": "sets __class__",
    "class A:\n    __class__ = property(f)": "sets __class__",
    "class A:\n    @property\n    def __class__(self): return float": "sets __class__",
    "object.__setattr__(x, '__class__', float)": "sets __class__",
    "type('A', (), {'__class__': property(f)})": "names __class__",
    "get_ipython().events.register('post_run_cell', f)": "uses get_ipython.events",
    "import IPython\nshell = IPython.get_ipython()\nshell.events": "uses get_ipython.events",
    "shell.ast_transformers.append(x)": "uses ast_transformers",
    "shell.input_transformers_cleanup.append(f)": "uses input_transformers_cleanup",
    "import inspect\ninspect.stack()[1]": "uses inspect.stack",
    "import os\nos.kill(1, 9)": "uses os.kill",
    "import os\nos.execv('/bin/sh', [])": "uses os.execv",
    "import os\nos.fork()": "uses os.fork",
    "error.__traceback__.tb_frame": "uses tb_frame",
    "frame.f_back.f_globals": "uses f_globals",
    "object.__subclasses__()": "uses __subclasses__",
    "check.__call__.__closure__[0].cell_contents": "uses cell_contents",
    "getattr(f, '__code__')": "names __code__",
    "__builtins__.print = 1": "uses __builtins__",
    "from course_lib.exercises import judges": "imports course_lib.exercises.judges",
    "import course_lib.staff.grade.review": "imports course_lib.staff",
    "from course_lib.exercises.check import Exercise": "imports course_lib.exercises.check",
    "import course_lib.exercises\ncourse_lib.exercises.judge.judge": "uses course_lib.exercises.judge",
    "check._questions['q1']": "uses _questions",
    "p = f'/proc/{1}/mem'": "names the path /proc/",
    "open('/tmp/x')": "opens /tmp/x",
    "open('/etc/passwd')": "names the path /etc/passwd",
    "import base64\nexec(base64.b64decode('" + "QUJD" * 60 + "'))": "runs code, and holds a long encoded text",
    "%time\nimport ctypes": "imports ctypes",
    "x = !ls\nimport ctypes": "imports ctypes",
    "!cat /proc/self/maps": "mentions /proc/",
    "def broken(:\n  import ctypes": "mentions ctypes",
    "%%bash\nset -e; python -c 'import gc; gc.get_objects()'": "mentions gc.get_objects",
}


@pytest.mark.parametrize("source, says", REACHES.items())
def test_reaching_for_the_grader_is_told(source, says):
    lines = suspicious([{"cell_type": kind, "source": source} for kind in ("markdown", "code")])
    assert f"cell 2 {says}" in lines and not any("cell 1" in line for line in lines)


@pytest.mark.parametrize(
    "source",
    [
        "x = 'cpu'\nwith tf.device('/device:CPU:0'): pass",
        "import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\nos.kill(os.getpid(), 9)",
        "import jax\njax.config.jax_enable_x64 = True",
        "class Mine:\n    def __init__(self): self.x = 1\nmine = Mine()\nmine.y = 2\nMine.z = 3\nsetattr(mine, 'y', 1)",
        '"""/proc/self and f_back."""\n# import ctypes',
        "from course_lib.exercises.given import recordings\nfrom course_lib.exercises import Exercise, Question",
        "x.__class__.__name__\nclass A:\n    events = 1\nA.events\nget_ipython().run_line_magic('time', '')",
        "import signal\nimport types\nsignal.SIGTERM\ntypes.SimpleNamespace()\nx.strides",
        "import re\nexec('x = 1')\nopen('data.txt')",
        "",
    ],
)
def test_honest_code_gets_no_line(source):
    assert suspicious([{"cell_type": "code", "source": source}]) == ()


EXERCISES = sorted((*ROOT.glob("solutions/*.ipynb"), *ROOT.glob("exercises/*.ipynb")))


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: f"{path.parent.name} {path.stem[:2]}")
def test_the_courses_own_exercises_get_no_line(path):
    assert suspicious(notebook_cells.read_notebook(path)["cells"]) == ()


@pytest.mark.parametrize(
    "old, new, line",
    [
        ('REPOSITORY = ""', 'REPOSITORY = "jane/course@v1"', None),  # as `course badges` writes it
        ("    import sys\n", "    import sys\n    subprocess.run('id')\n", "cell 1 imports subprocess"),
        ("        raise\n", "        subprocess.run('id')\n", "cell 1 imports subprocess"),
        ('REPOSITORY = ""', 'REPOSITORY = "", __import__("subprocess").run("id")', "cell 1 imports subprocess"),
        ("REPOSITORY", "import ctypes\nREPOSITORY", "cell 1 imports ctypes"),
    ],
)
def test_the_set_up_lines_get_no_line_only_as_the_course_wrote_them(old, new, line):
    source = set_up_cell.TEXT.replace(old, new, 1)
    assert source != set_up_cell.TEXT
    lines = suspicious([{"cell_type": "code", "source": source, "id": "a", "metadata": {}}])
    assert line in lines if line else lines == ()


def test_lessons_get_no_line_but_for_what_they_do():
    lines = {
        line
        for path in ROOT.glob("notebooks/*.ipynb")
        for line in suspicious(notebook_cells.read_notebook(path)["cells"])
    }
    of_processes = {"imports threading", "imports subprocess", "imports socket"}
    shown_on_purpose = {"imports unittest.mock", "names the path /proc/cpuinfo"}  # a part left out (08); bfloat16 (09)
    assert {line.split(maxsplit=2)[2] for line in lines} == of_processes | shown_on_purpose


def test_lines_are_few_short_and_printable():
    names = "\n".join(f"np.a{number}{'x' * 300} = 1" for number in range(50))
    lines = suspicious([{"cell_type": "code", "source": f"import numpy as np\n{names}\nopen('/\\x1b[31m')"}])
    assert len(lines) == LINES and lines[-1] == "and 32 lines more"
    assert all(len(line) <= LINE_LENGTH and line.isprintable() and line.isascii() for line in lines)


@pytest.mark.parametrize(
    "source",
    [
        "-" * 50_000 + "1",
        "(" * 50_000,
        "a" + ".b" * 50_000,
        "f" + "()" * 50_000,
        "a\0b",
        "lambda:" * 5_000 + "1",
        "import numpy as np\n" + ("np" + ".b" * 900 + "\n") * 4,
        "=" + " " * 50_000,
        "\ufffd",
        "'\\",
    ],
    ids=range(10),
)
def test_no_source_breaks_the_review(source):
    assert suspicious([{"cell_type": "code", "source": source}]) == ()


def test_endless_code_is_not_looked_through():
    cell = {"cell_type": "code", "source": "x = 1\n" * 100_000}
    assert suspicious([cell, cell]) == ("code from cell 1 on is too long to look through",)

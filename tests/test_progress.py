"""A learner's progress: what is shown, what lesson 00 stores, and a file that outlives versions of the course."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest

from course_lib import cli, progress
from course_lib.exercises import journal, judges
from course_lib.exercises.check import Exercise
from course_lib.exercises.verdict import Verdict

ROOT = Path(__file__).parents[1]
FIRST, SECOND = list(judges.MODULES)[:2]


def answer(folder: Path, exercise: str, *names: str, right: bool = True) -> None:
    for name in names:
        journal.record(folder / journal.FILE, exercise, Verdict(name, "t", right, 1, 1), seed=0)


def names_of(exercise: str) -> list[str]:
    return [question.name for question in judges.questions(exercise)]


# What it says.


def test_a_fresh_learner_starts_with_the_first_question(tmp_path):
    read = progress.read(tmp_path)
    assert read.points == 0 and read.of == sum(one.of for one in read.exercises) > 0
    assert str(read).endswith(f"\n\n0 of {read.of} points\nNext: q1 in exercises/{FIRST}.ipynb")
    assert [one.open for one in read.exercises] == [tuple(names_of(exercise)) for exercise in judges.MODULES]


def test_the_next_step_stays_in_the_exercise_that_was_begun(tmp_path):
    answer(tmp_path, SECOND, "q1")
    assert progress.read(tmp_path).next_step == f"Next: q2 in exercises/{SECOND}.ipynb"
    answer(tmp_path, SECOND, *names_of(SECOND))
    assert progress.read(tmp_path).next_step == f"Next: q1 in exercises/{FIRST}.ipynb"


def test_every_notebook_that_it_names_is_there(tmp_path):
    assert all((ROOT / one.notebook).is_file() for one in progress.read(tmp_path).exercises)


def test_all_right_leads_to_the_certificate(tmp_path):
    for exercise in judges.MODULES:
        answer(tmp_path, exercise, *names_of(exercise))
    read = progress.read(tmp_path)
    assert read.points == read.of and "course certificate --name" in read.next_step
    assert str(read).count(" none") == len(judges.MODULES) and "q1" not in str(read)


def test_an_exercise_is_right_since_its_last_question_was_first_right(tmp_path):
    *others, last = names_of(FIRST)
    lines = [(name, f"2026-01-0{day}T00:00:00+00:00") for day, name in enumerate([*others, last, others[0]], 1)]
    events = [{"time": time, "exercise": FIRST, "question": name, "right": True} for name, time in lines]
    (tmp_path / journal.FILE).write_text("\n".join(map(json.dumps, events)))
    assert progress.read(tmp_path).exercises[0].right_since == lines[-2][1]
    assert progress.read(tmp_path).exercises[1].right_since is None


def test_json_keeps_its_form_and_tells_more(tmp_path, capsys):
    answer(tmp_path, FIRST, "q1")
    assert cli.main(["progress", "--json", "--folder", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    first = printed["exercises"][0]
    assert [first[key] for key in ("exercise", "points", "of", "attempts", "next_open")] == [FIRST, 1, 4, 1, "q2"]
    assert first["open"] == ["q2", "q3", "q4"] and first["notebook"] == f"exercises/{FIRST}.ipynb"
    assert (printed["points"], printed["next_step"]) == (1, f"Next: q2 in exercises/{FIRST}.ipynb")


class Cells(HTMLParser):
    """The texts of a table, by element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self._open.append(" ".join([tag, *(value for name, value in attributes if name == "scope")]))

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, data):
        self.texts.setdefault(self._open[-1], []).append(data)


def test_a_notebook_shows_a_table_with_the_same_words(tmp_path):
    answer(tmp_path, FIRST, *names_of(FIRST))
    shown = Cells(progress.read(tmp_path)._repr_html_()).texts
    assert shown["th col"] == ["Exercise", "Points", "Checks", "Open questions"]
    assert shown["th row"] == list(judges.MODULES)
    assert shown["td"][:6] == ["4 of 4", "4", "none", "0 of 6", "0", ", ".join(names_of(SECOND))]
    notebook = f"exercises/{SECOND}.ipynb"
    assert "".join([*shown["p"], *shown["a"]]) == progress.read(tmp_path).next_step == f"Next: q1 in {notebook}"
    assert f'<a href="../{notebook}">' in progress.read(tmp_path)._repr_html_()


# What lesson 00 stores.


def stored_cell():
    cells = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4).cells
    (cell,) = [cell for cell in cells if cell.cell_type == "code" and "progress.read" in cell.source]
    return cell


def test_lesson_00_stores_a_fresh_learners_state(tmp_path):
    """nbval does not compare this cell, as a learner's own points differ; so it is compared here."""
    cell, fresh = stored_cell(), progress.read(tmp_path)
    assert cell.metadata["tags"] == ["nbval-ignore-output"]
    (shown,) = cell.outputs
    again = "move exercises/.progress.jsonl away, and run `course run-notebooks notebooks/00_start_here.ipynb`"
    assert shown.data["text/html"] == fresh._repr_html_(), again
    names = {"progress": progress}
    assert eval(cell.source.splitlines()[-1].replace("../exercises", str(tmp_path)), names) == fresh


# A file that outlives versions.

ODD = [
    b'{"exercise": "99_gone", "question": "q1", "right": true}',
    b'{"exercise": "00_start_here", "question": "q77", "right": true, "seed": 1}',
    b'{"version": 9, "exercise": "00_start_here", "question": "q2", "right": false, "later": {"deep": [1, 2]}}',
    b'{"version": 9, "event": "something of a later version"}',
    b'{"exercise": ["00_start_here"], "question": "q1", "right": true}',
    b'{"exercise": "00_start_here", "question": "q1", "right": "yes"}',
    b'{"exercise": "00_start_here", "question": "q1", "ri',
    b"[" * 100_000,
    b'{"exercise": "00_start_here", "question": "q1", "right": true, "seed": ' + b"9" * 5000 + b"}",
    b"\xff\xfe\x00",
    b"null",
    b"",
]


@pytest.mark.parametrize("ends_whole", [True, False])
def test_lines_of_other_versions_are_kept_and_do_no_harm(tmp_path, ends_whole):
    file = tmp_path / journal.FILE
    before = b"\n".join(ODD) + b"\n" * ends_whole
    file.write_bytes(before)
    assert progress.read(tmp_path).points == 0
    answer(tmp_path, FIRST, "q1")
    assert "1 of 4 points" in repr(Exercise(FIRST, file=file))
    read = progress.read(tmp_path)
    assert (read.points, read.exercises[0].open) == (1, ("q2", "q3", "q4"))
    assert file.read_bytes().startswith(before), "a line of another version was changed"


def test_a_right_answer_with_fields_of_a_later_version_counts(tmp_path):
    line = {"version": 9, "exercise": FIRST, "question": "q1", "right": True, "time": 5, "later": [1]}
    (tmp_path / journal.FILE).write_text(json.dumps(line))
    assert progress.read(tmp_path).exercises[0].points == 1


def test_a_learners_file_is_never_part_of_the_course():
    assert journal.FILE in (ROOT / ".gitignore").read_text().splitlines()
    assert not re.search(r"progress", (ROOT / "Makefile").read_text().split("\nclean:")[1].split("\n\n")[0])

"""Generate exercises/ and the judges' published answers from solutions/, and leave alone what a learner has touched.

Needs nothing. An answer cell is tagged with its question; what stands between its
BEGIN and END lines becomes a blank, and all outputs go. The same solution always
gives the same bytes.
"""

import ast
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises import judges
from course_lib.exercises.ask import WRITE_HERE
from course_lib.exercises.judges import published
from course_lib.exercises.notebook_cells import checked_questions, question_tags, read_notebook
from course_lib.staff.grade.results import write_whole
from course_lib.staff.store_outputs import cell_metadata, metadata

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


@dataclass(frozen=True)
class Generated:
    """What became of one exercise file; prints as one line."""

    path: Path
    state: str

    def __str__(self) -> str:
        return f"{self.path}: {self.state}"


def generate(solutions_folder: str | Path, exercises_folder: str | Path) -> list[Generated]:
    """Write one exercise per solution, except over a file that somebody edited or ran.

    Raises  CourseError naming the file and cell that do not fit the bank or the
            markers; then nothing is written
    """
    solutions = sorted(Path(solutions_folder).glob("*.ipynb"))
    made = [(path.name, as_bytes(exercise_of(read_notebook(path), path))) for path in solutions]
    folder = Path(exercises_folder)
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / name, content) for name, content in made]


def store_answers(solutions_folder: str | Path) -> None:
    """Write the published answers beside the judges of this very package."""
    published.FILE.write_bytes(published_answers(sorted(Path(solutions_folder).glob("*.ipynb"))))


def published_answers(solutions: list[Path]) -> bytes:
    """What judges.published reads: per exercise its imports, then each question's answer."""
    found = {path.stem: _answers(read_notebook(path)["cells"]) for path in solutions}
    return (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode()


def _answers(cells: list[dict]) -> dict[str, str]:
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    tagged = {question_tags(cell)[0]: cell["source"] for cell in code if question_tags(cell)}
    answers = {"imports": _imports(code[0]["source"])}
    for name in sorted(tagged):
        lines = tagged[name].splitlines()
        answers[name] = "\n".join(line for line in lines if line.strip() not in (BEGIN, END))
    return answers


def _imports(source: str) -> str:
    """The set-up cell's imports and constants: nothing that installs, and where from, makes devices or checks."""
    _, *parts = ast.parse(source).body  # the first names the repository
    kept = (ast.Constant, ast.BinOp, ast.operator, ast.Name, ast.Store)
    return "\n".join(
        ast.unparse(part)
        for part in parts
        if isinstance(part, (ast.Import, ast.ImportFrom))
        and ast.unparse(part) != "from course_lib.exercises import Exercise"
        or isinstance(part, ast.Assign)
        and all(isinstance(node, kept) for value in (part.value, *part.targets) for node in ast.walk(value))
    )


def exercise_of(solution: dict, path: Path) -> dict:
    """The exercise that a solution notebook gives. Raises as generate does."""
    exercise = path.stem
    cells = [_blank_cell(cell, f"{path}, cell {number}") for number, cell in enumerate(solution["cells"], 1)]
    _require_one_each(solution["cells"], [question.name for question in judges.questions(exercise)], path)
    return {
        "cells": cells,
        "metadata": {**metadata(exercise), "course": {"digest": digest(cells), "exercise": exercise}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def as_bytes(notebook: dict) -> bytes:
    """The notebook as Jupyter itself would save it."""
    lines = [{**cell, "source": cell["source"].splitlines(keepends=True)} for cell in notebook["cells"]]
    text = json.dumps({**notebook, "cells": lines}, indent=1, ensure_ascii=False, sort_keys=True)
    return (text + "\n").encode()


def digest(cells: list[dict]) -> str:
    """Changes when a cell is edited or run, and not when Jupyter saves its metadata."""
    kept = [[cell["cell_type"], cell["source"], cell.get("outputs", []), cell.get("execution_count")] for cell in cells]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _write(path: Path, content: bytes) -> Generated:
    if path.exists():
        if path.read_bytes() == content:
            return Generated(path, "up to date")
        if not _is_untouched(path):
            return Generated(path, "edited or run since it was generated: left alone; move it away for a fresh one")
    write_whole(path, content)
    return Generated(path, "written")


def _is_untouched(path: Path) -> bool:
    try:
        notebook = read_notebook(path)
    except CourseError:
        return False
    course = notebook.get("metadata", {}).get("course", {})
    return course.get("digest") == digest(notebook["cells"])


def _blank_cell(cell: dict, place: str) -> dict:
    tags = question_tags(cell)
    if (BEGIN in cell["source"] or END in cell["source"]) and len(tags) != 1:
        raise CourseError(f"{place}: a solution needs exactly one question's tag, and this cell has {tags or 'none'}")
    source = _blank_source(cell["source"], tags[0], place) if tags else cell["source"]
    blank = {"cell_type": cell["cell_type"], "id": cell.get("id"), "metadata": cell_metadata(cell), "source": source}
    if cell["cell_type"] == "code":
        blank |= {"execution_count": None, "outputs": []}
    return blank


def _blank_source(source: str, question: str, place: str) -> str:
    lines, inside = [], False
    for line in source.splitlines():
        marker = line.strip()
        if marker not in (BEGIN, END):
            lines += [] if inside else [line]
            continue
        if inside == (marker == BEGIN):
            raise CourseError(f"{place}: {marker!r} does not match the marker before it")
        inside = not inside
        if inside:
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f'{indent}raise NotImplementedError("{question} is blank: {WRITE_HERE}")')
    if inside:
        raise CourseError(f"{place}: {BEGIN!r} has no {END!r}")
    if lines == source.splitlines():
        raise CourseError(f"{place}: it is tagged {question} but marks no solution with {BEGIN!r}")
    return "\n".join(lines)


def _require_one_each(cells: list[dict], questions: list[str], path: Path) -> None:
    for kind, find in (("answer cells tagged", question_tags), ("cells that check", checked_questions)):
        found = [(name, number) for number, cell in enumerate(cells, 1) for name in find(cell)]
        for name, number in found:
            if name not in questions:
                raise CourseError(f"{path}, cell {number}: {name} is not a question of {path.stem}")
        for name in questions:
            places = [number for other, number in found if other == name]
            if len(places) != 1:
                raise CourseError(f"{path}: {name} needs exactly one of the {kind} it; cells {places or 'none'}")

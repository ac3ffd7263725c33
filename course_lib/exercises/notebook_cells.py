"""Read a notebook's cells: their source, exercise, tags, definitions, checks, and what is odd. Needs nothing."""

import json
import re
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.question import Question

_EXERCISE = re.compile(r"""\bExercise\(\s*["']([\w-]+)["']""")
_QUESTION_TAG = re.compile(r"q\d+")
_CHECK = re.compile(r"""^check\(\s*["'](\w+)["']\s*\)""", re.MULTILINE)


def read_notebook(path: Path) -> dict:
    """The notebook as JSON gives it, its sources joined into one string each.

    Raises  CourseError, in one line, for a file that cannot be read, is not JSON,
            or is not a notebook of format 4
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CourseError(f"there is no file {path}") from None
    except OSError as error:
        raise CourseError(f"{path} cannot be read: {error.strerror or error}") from None
    return notebook_of(content, str(path))


def notebook_of(content: bytes, name: str) -> dict:
    """The notebook in a file's bytes, as read_notebook gives it.

    name    what its complaints call the file
    Raises  CourseError as read_notebook does
    """
    try:
        notebook = json.loads(content.decode("utf-8-sig"))  # some editors on Windows put a mark before the text
    except UnicodeDecodeError as error:
        raise CourseError(f"{name} cannot be read as text: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CourseError(
            f"{name} is not JSON ({error}), so it is not a notebook; save it again, or take a fresh copy"
        ) from None
    cells = _cells_of(notebook) if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not all(map(_is_cell, cells)):
        raise CourseError(f"{name} is JSON but not a notebook of format 3 or 4: save it from Jupyter again")
    for cell in cells:
        # JSON can spell half a surrogate pair, which neither Python's compiler nor a file takes.
        cell["source"] = "".join(cell["source"]).encode("utf-8", "replace").decode()
    return {**notebook, "cells": cells}


def exercise_name(cells: list[dict]) -> str | None:
    """The name in Exercise("..."), which a renamed copy still holds; None when no code cell makes one."""
    named = (_EXERCISE.search(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return next((match[1] for match in named if match), None)


def question_tags(cell: dict) -> list[str]:
    """The questions that the cell is tagged with, such as ["q1"]."""
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    if not isinstance(tags, list):
        return []
    return [tag for tag in tags if isinstance(tag, str) and _QUESTION_TAG.fullmatch(tag)]


def checked_questions(cell: dict) -> list[str]:
    """The questions that the cell checks with check("...")."""
    return _CHECK.findall(cell["source"]) if cell["cell_type"] == "code" else []


def defines(cell: dict, name: str) -> bool:
    """Whether the cell defines or assigns the name at its top level."""
    wanted = rf"^(?:(?:async\s+)?def|class)\s+{name}\b|^{name}\s*(?::[^=\n]*)?=(?!=)"
    return cell["cell_type"] == "code" and bool(re.search(wanted, cell["source"], re.MULTILINE))


def answering_cells(cells: list[dict], question: Question) -> list[int]:
    """Places, from 0, of the code cells that carry the question's tag or define a name it asks for."""
    return [
        place
        for place, cell in enumerate(cells)
        if cell["cell_type"] == "code"
        and (question.name in question_tags(cell) or any(defines(cell, name) for name in question.asks_for))
    ]


def answer_notes(question: Question, cells: list[dict], errors: dict[int, str]) -> list[str]:
    """What was odd about the cells that answer and check a question, one line each.

    errors  a line for each cell that raised, by its number; the first is cell 1
    """
    name, wanted = question.name, " and ".join(question.asks_for)
    tagged = [number for number, cell in enumerate(cells, 1) if name in question_tags(cell)]
    defining = [number for number, cell in enumerate(cells, 1) if any(defines(cell, it) for it in question.asks_for)]
    checking = [number for number, cell in enumerate(cells, 1) if name in checked_questions(cell)]
    notes = [errors[number] for number in sorted({*tagged, *defining}) if number in errors]
    if not tagged and not defining:
        notes.append(f"{name}'s answer cell is gone: no cell is tagged {name}, none defines {wanted}")
    elif not tagged:
        notes.append(f"no cell is tagged {name}; cell {defining[0]} was taken, because it defines {wanted}")
    elif not defining:
        notes.append(f"cell {tagged[0]} is tagged {name} but does not define {wanted}: was it renamed?")
    if len(tagged) > 1 or len(defining) > len(question.asks_for):
        places = ", ".join(map(str, sorted({*tagged, *defining})))
        notes.append(f"{name} is answered in several cells ({places}); the last one run before its check counts")
    if not checking:
        notes.append(f"{name}'s check cell is gone; it was checked all the same")
    elif len(checking) > 1:
        places = ", ".join(map(str, checking))
        notes.append(f"{name} is checked in several cells ({places}); one right answer is enough")
    return notes


def _cells_of(notebook: dict) -> object:
    """The cells; those of format 3 stand in work sheets, and call a code cell's source its input."""
    sheets = notebook.get("worksheets")
    if "cells" in notebook or not isinstance(sheets, list) or not sheets:
        return notebook.get("cells")
    found = [sheet.get("cells") if isinstance(sheet, dict) else None for sheet in sheets]
    if not all(isinstance(cells, list) for cells in found):
        return None
    return [
        {"source": cell["input"], **cell} if isinstance(cell, dict) and "input" in cell else cell
        for cells in found
        for cell in cells
    ]


def _is_cell(cell: object) -> bool:
    if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
        return False
    source = cell.get("source")
    return isinstance(source, str) or isinstance(source, list) and all(isinstance(line, str) for line in source)

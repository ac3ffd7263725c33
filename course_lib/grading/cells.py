"""Read a notebook's cells: their source, tags, definitions and checks. Needs nothing."""

import json
import re
from pathlib import Path

from course_lib.errors import CourseError

_QUESTION_TAG = re.compile(r"q\d+")
_CHECK = re.compile(r"""^check\(\s*["'](\w+)["']\s*\)""", re.MULTILINE)


def read_notebook(path: Path) -> dict:
    """The notebook as JSON gives it, its sources joined into one string each.

    Raises  CourseError, in one line, for a file that cannot be read, is not JSON,
            or is not a notebook of format 4
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CourseError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CourseError(f"{path} cannot be read as text: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CourseError(
            f"{path} is not JSON ({error}), so it is no notebook; save it again, or take a fresh copy"
        ) from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not all(map(_is_cell, cells)):
        raise CourseError(f"{path} is JSON but no notebook of format 4: save it from Jupyter again")
    for cell in cells:
        cell["source"] = "".join(cell["source"])
    return notebook


def question_tags(cell: dict) -> list[str]:
    """The questions that the cell is tagged with, such as ["q1"]."""
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    return [tag for tag in tags or [] if isinstance(tag, str) and _QUESTION_TAG.fullmatch(tag)]


def checked_questions(cell: dict) -> list[str]:
    """The questions that the cell checks with check("...")."""
    return _CHECK.findall(cell["source"]) if cell["cell_type"] == "code" else []


def defines(cell: dict, name: str) -> bool:
    """Whether the cell defines or assigns the name at its top level."""
    wanted = rf"^(?:(?:async\s+)?def|class)\s+{name}\b|^{name}\s*(?::[^=\n]*)?=(?!=)"
    return cell["cell_type"] == "code" and bool(re.search(wanted, cell["source"], re.MULTILINE))


def _is_cell(cell: object) -> bool:
    if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
        return False
    source = cell.get("source")
    return isinstance(source, str) or isinstance(source, list) and all(isinstance(line, str) for line in source)

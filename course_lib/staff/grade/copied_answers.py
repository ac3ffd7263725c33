"""Whether answers are the ones that the course publishes in solutions/. Needs nothing; says nothing without that folder.

A line costs no point, and goes to the examiner alone.
"""

import ast
import functools
from pathlib import Path

from course_lib.exercises import judges
from course_lib.exercises.notebook_cells import answering_cells, read_notebook
from course_lib.exercises.question import Question
from course_lib.staff.grade.review import syntax_tree

SOLUTIONS = Path(__file__).resolve().parents[3] / "solutions"
LEAST = 2  # one short answer may be the same by chance
_COMPARED = 20_000  # characters of an answer; the course's own are a tenth of that


def copied(exercise: str, cells: list[dict]) -> tuple[str, ...]:
    """A line when the code of several answers is the solution's, whatever its comments, docstrings and layout.

    cells    as cells.notebook_of gives them
    Returns  one line, or none
    """
    published = _published(exercise)
    own = {question.name: _code(question, cells) for question in judges.questions(exercise)}
    same = [name for name, code in own.items() if code and code == published[name]]
    return (f"{', '.join(same)}: the code is the published solution's",) if len(same) >= LEAST else ()


@functools.cache
def _published(exercise: str) -> dict[str, str]:
    """Question to code; empty where the course is installed without its notebooks."""
    file = SOLUTIONS / f"{exercise}.ipynb"
    cells = read_notebook(file)["cells"] if file.is_file() else []
    return {question.name: _code(question, cells) for question in judges.questions(exercise)}


def _code(question: Question, cells: list[dict]) -> str:
    """The answer's syntax tree as text, without docstrings; empty when it has none."""
    source = "\n".join(cells[place]["source"] for place in answering_cells(cells, question))
    if len(source) > _COMPARED:
        return ""
    try:
        tree = syntax_tree(source)
        for part in ast.walk(tree):
            if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(part, clean=False) is not None:
                del part.body[0]
        return ast.dump(tree) if tree.body else ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""

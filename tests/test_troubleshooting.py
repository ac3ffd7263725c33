"""TROUBLESHOOTING.md: every message that the course can show a learner has an entry, and no entry is left over.

Which messages: those of exceptions in COURSE_ERRORS that are made anywhere in course_lib, but for the rooms in NOT_MET.
`python tests/test_troubleshooting.py` prints the lines that are missing, and those that are left over.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE, PAGE = ROOT / "course_lib", ROOT / "TROUBLESHOOTING.md"

COURSE_ERRORS = {
    "CourseError",
    "CheckFailed",
    "CellFailed",
    "RunFailed",
    "NoCompiler",
    "StepFailed",
    "SetUpError",
    "Refused",
}
# What no learner runs: the class grader, the makers of exercises and stored notebooks, the planner's own fit,
# the support matrix, and questions' own parts, whose messages reach a learner as a check's line.
NOT_MET = (
    "staff/grade/",
    "staff/new_exercises.py",
    "staff/store_outputs.py",
    "staff/certificate/rerun.py",
    "exercises/judges/ex",
    "exercises/probes/",
    "planner/calibrate.py",
    "planner/tpu_memory.py",
)
FEWEST_WORDS = 3  # a message with fewer words of its own passes on what another one says
CUT = re.compile(r"(?:[:;,] |\. | \()")  # what comes after it is numbers, names or the remedy, which the entry tells
LEAST = 22  # characters before a cut
FROM_OUTSIDE = "## Not from the course"  # entries after it are printed by TensorFlow, Jupyter, the system


def learner_meets(file: Path) -> bool:
    return not file.relative_to(PACKAGE).as_posix().startswith(NOT_MET)


def template(node: ast.expr) -> str | None:
    """A message's fixed words, with … for what varies; None for another expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%(?:\.\d+)?[sfd]", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp):
        left, right = template(node.left), template(node.right)
        if isinstance(node.op, ast.Mod):
            return left
        return None if left is None and right is None else (left or "…") + (right or "…")
    return None


def searchable(text: str) -> str:
    """The part that says what happened: a reader searches for it, or for a word of it."""
    text = text.replace("`", "")  # the page writes each line as code
    for cut in CUT.finditer(text):
        if len(text[: cut.start()].replace("…", "")) >= LEAST:
            return text[: cut.start()].strip()
    return text.strip().rstrip(".")


def messages(source: str) -> set[str]:
    """The searchable part of each message that a module can raise."""
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found: set[str] = set()
    for function in [tree, *functions.values()]:
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in COURSE_ERRORS
                and node.args
            ):
                found |= {searchable(text) for text in _texts(node.args[0], function, functions)}
    return {text for text in found if len(re.findall(r"[^\W\d_]{2,}", text)) >= FEWEST_WORDS}


def _texts(node: ast.expr, function: ast.AST, functions: dict[str, ast.FunctionDef]) -> list[str]:
    """An argument's message, also where a name or a function of the same module holds it."""
    if (text := template(node)) is not None:
        return [text]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
        returns = [
            part.value for part in ast.walk(functions[node.func.id]) if isinstance(part, ast.Return) and part.value
        ]
        return [text for value in returns if (text := template(value))]
    if isinstance(node, ast.Name):
        values = [
            part.value
            for part in ast.walk(function)
            if isinstance(part, ast.Assign)
            and any(isinstance(to, ast.Name) and to.id == node.id for to in part.targets)
        ]
        return [text for value in values if (text := template(value))]
    return []


def wanted() -> dict[str, str]:
    """Message to the module that raises it."""
    files = [file for file in sorted(PACKAGE.rglob("*.py")) if learner_meets(file)]
    return {text: file.relative_to(PACKAGE).as_posix() for file in files for text in messages(file.read_text())}


def entries(page: str) -> list[tuple[list[str], str]]:
    """Of each entry the lines to search for, in code, and the text below them."""
    found = []
    for block in re.split(r"(?m)^(?=#{2,3} )|\n(?=\n- `)", page):
        lines = re.findall(r"(?m)^- `(.+)`$", block)
        if lines:
            found.append((lines, re.split(r"(?m)^- `.+`$", block)[-1].strip()))
    return found


def messages_in(part: str) -> set[str]:
    return {line for lines, _ in entries(part) for line in lines}


def halves() -> tuple[str, str]:
    course, outside = PAGE.read_text().split(FROM_OUTSIDE)
    return course, outside


def own_words() -> str:
    """All text that the course can print, for lines that are no exception's, such as a check's."""
    files = [
        file for file in PACKAGE.rglob("*.py") if not file.relative_to(PACKAGE).as_posix().startswith("staff/grade/")
    ]
    return "\n".join(
        text.replace("`", "")
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if (text := template(node))
    )


@pytest.mark.parametrize("message", sorted(wanted()))
def test_every_message_has_an_entry(message):
    listed = messages_in(halves()[0])
    assert message in listed, f"{wanted()[message]} raises it: add a line `{message}` to TROUBLESHOOTING.md"


def test_every_entry_still_matches_a_message():
    words = own_words()
    left_over = [line for line in messages_in(halves()[0]) - wanted().keys() if line not in words]
    assert left_over == [], "no code says this any more: take the lines out of TROUBLESHOOTING.md"


def test_every_entry_says_the_cause_and_the_remedy():
    for lines, text in entries(PAGE.read_text()):
        sentences = re.findall(r"[.:?!](?:\s|$)", text)
        assert 1 <= len(sentences) <= 6 and len(text) > 60, f"{lines[0]}: {text!r}"


def test_no_line_stands_in_two_entries():
    lines = [line for lines, _ in entries(PAGE.read_text()) for line in lines]
    assert len(lines) == len(set(lines)), sorted(line for line in lines if lines.count(line) > 1)


def test_what_the_environment_prints_is_there():
    assert all(
        word in halves()[1]
        for word in ("oneDNN", "cuda drivers", "OUT_OF_RANGE", "out of memory", "kernel", "Colab", "Windows", "port")
    )


def test_the_extraction_follows_names_functions_and_parts():
    source = """
def sentence(x):
    return f"the model {x} has no weights; add some"
def f(x, y):
    message = "a name holds this message: yes"
    raise CourseError(message)
def g(x):
    raise CourseError(sentence(x))
def h(x):
    raise CourseError(f"the notebook {x} cannot be read " + f"from {x} (gone)")
    raise CourseError("needs Python %s, and has %s" % (x, x))
    raise CourseError(x)
"""
    assert messages(source) == {
        "the model … has no weights",
        "a name holds this message",
        "the notebook … cannot be read from …",
        "needs Python …, and has …",
    }


def test_doctor_points_to_the_page():
    done = subprocess.run([sys.executable, "-m", "course_lib.cli", "doctor"], cwd=ROOT, capture_output=True, text=True)
    assert "TROUBLESHOOTING.md" in done.stdout.splitlines()[-1]


if __name__ == "__main__":
    here = messages_in(halves()[0]) if PAGE.exists() else set()
    modules = wanted()
    for message in sorted(modules.keys() - here, key=lambda one: (modules[one], one)):
        print(f"{modules[message]}: - `{message}`")
    words = own_words()
    for message in sorted(here - modules.keys()):
        if message not in words:
            print(f"left over: - `{message}`")

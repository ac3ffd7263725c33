"""A function's source as text. Standard library only; used by all lessons."""

import ast
import inspect
import textwrap


def source(function) -> str:
    """A function's source without its docstring, so that a lesson shows the code that it runs."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    first = ast.parse("\n".join(lines)).body[0].body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        del lines[first.lineno - 1 : first.end_lineno]
    return "\n".join(line for number, line in enumerate(lines) if line or number != first.lineno - 1)

"""A worker program as text: what a notebook, Slurm and Kubernetes all run. Standard library only.

A function from a notebook travels as its source, not as a pickle: the text can
be read, works under another Python, and fits a Slurm folder or a ConfigMap.
"""

import ast
import builtins
import importlib
import inspect
import json
import linecache
import os
import symtable
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError


@dataclass(frozen=True)
class WorkerProgram:
    """A function by its name in a text, or in a module that every task can import.

    function  its name
    text      the source that defines it, or None
    module    the module that holds it, or None
    file      what a traceback calls the text
    """

    function: str
    text: str | None = None
    module: str | None = None
    file: str = "program.py"

    @classmethod
    def of(cls, program: "WorkerProgram | Callable | str") -> "WorkerProgram":
        """Read a function, "module:function" or "file.py:function".

        Raises  CourseError when it cannot be imported, or needs the notebook's names
        """
        if isinstance(program, WorkerProgram):
            return program
        if isinstance(program, str):
            return _from_text(program)
        if not inspect.isfunction(program) or program.__name__ == "<lambda>":
            raise CourseError(
                f'a program is a function made with def, "module:function" or "file.py:function", not {program!r}.'
            )
        if program.__module__ != "__main__" and program.__qualname__ == program.__name__:
            return cls(program.__name__, module=program.__module__)
        return _from_notebook(program)

    def load(self) -> Callable:
        """The function itself, in this process."""
        if self.module is not None:
            return getattr(importlib.import_module(self.module), self.function)
        # A traceback shows the program's own lines, as if it were a file.
        linecache.cache[self.file] = (len(self.text), None, self.text.splitlines(keepends=True), self.file)
        names = {"__name__": "program", "__file__": self.file}
        exec(compile(self.text, self.file, "exec"), names)
        return names[self.function]

    def imports(self) -> set[str]:
        """The packages that its text imports, at any depth."""
        nodes = list(ast.walk(ast.parse(self.text)))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        return {name.partition(".")[0] for name in names}

    def __str__(self) -> str:
        return f"{self.module or self.file}:{self.function}"


def search_current_folder() -> None:
    """Let a command find "module:function" in the folder that it is typed in, as `python -m` does."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def name_and_value(text: str) -> tuple[str, object]:
    """Read a command's --argument NAME=VALUE; the value is JSON, or else text.

    Raises  CourseError for anything else
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise CourseError(f"--argument takes NAME=VALUE, such as epochs=2, not {text!r}.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _from_text(name: str) -> WorkerProgram:
    place, _, function = name.rpartition(":")
    if not place:
        raise CourseError(f'a program is "module:function" or "file.py:function", not {name!r}.')
    if place.endswith(".py"):
        try:
            program = WorkerProgram(function, text=Path(place).read_text(encoding="utf-8"), file=Path(place).name)
            defined = [part.name for part in ast.parse(program.text).body if isinstance(part, ast.FunctionDef)]
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            raise CourseError(f"the program {place} cannot be read: {error}.") from None
        if function not in defined:
            raise CourseError(
                f"the program {place} defines no {function!r}; name one of its functions after the colon."
            )
        return program
    try:
        found = getattr(importlib.import_module(place), function, None)
    except Exception as error:  # a module runs its own code
        raise CourseError(
            f"the program {name!r} cannot be imported ({type(error).__name__}: {error}); name a module or a file.py."
        ) from None
    if not callable(found):
        raise CourseError(f"the module {place} has no function {function!r}.")
    return WorkerProgram(function, module=place)


def _from_notebook(function: Callable) -> WorkerProgram:
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except OSError:
        raise CourseError(
            f"the source of {function.__name__} cannot be found, and other processes need it: "
            f"define it with `def` in a cell or a file."
        ) from None
    foreign = sorted(
        _global_names(symtable.symtable(text, "program", "exec")) - {function.__name__} - set(dir(builtins))
    )
    if foreign:
        raise CourseError(
            f"{function.__name__} uses {', '.join(foreign)}, which other processes don't have: import modules inside "
            f"the function, pass numbers as arguments, and make the rest in it."
        )
    return WorkerProgram(function.__name__, text=text, file=f"{function.__name__}.py")


def _global_names(table: symtable.SymbolTable) -> set[str]:
    """Names that the text takes from outside, at any depth."""
    top = table.get_type() == "module"
    here = {
        s.get_name()
        for s in table.get_symbols()
        if s.is_referenced() and (top and not s.is_assigned() or s.is_global())
    }
    return here.union(*map(_global_names, table.get_children()))

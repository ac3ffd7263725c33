"""The library's reference, read from its source: one page for each module that a lesson imports. Needs nothing.

Nothing is imported, so no framework is needed. A docstring's prose becomes
paragraphs; its tables of arguments stay as they were typed.
"""

import ast
import inspect
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from course_lib.exercises.notebook_cells import read_notebook

PACKAGE = "course_lib"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_CODE = re.compile(r"``?([^`]+)``?")
_TYPED = re.compile(r"^\s|\S {2,}\S", re.MULTILINE)  # indented, or in columns: to be shown as typed


@dataclass(frozen=True)
class Module:
    """One source file, by the name that a lesson imports."""

    name: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text())


def stage(checkout: Path, folder: Path) -> None:
    """Write the reference's pages, and the index of them."""
    folder.mkdir(parents=True)
    taught = lessons_of_modules(checkout)
    modules = [Module(name, _file(checkout, name)) for name in sorted(taught)]
    for module in modules:
        (folder / f"{module.name}.rst").write_text(module_page(module, sorted(taught[module.name])))
    (folder / "index.rst").write_text(_index(modules))


def lessons_of_modules(checkout: Path) -> dict[str, set[str]]:
    """The lessons' file names without their ending, by the module of the library that they import."""
    taught = defaultdict(set)
    for path in sorted((checkout / "notebooks").glob("*.ipynb")):
        for cell in read_notebook(path)["cells"]:
            if cell["cell_type"] == "code":
                for name in _imported(checkout, cell["source"]):
                    taught[name].add(path.stem)
    return dict(taught)


def module_page(module: Module, lessons: list[str]) -> str:
    """A module's page as reStructuredText.

    lessons  those that import it
    """
    links = ", ".join(f":doc:`{lesson[:2]} </notebooks/{lesson}>`" for lesson in lessons)
    lines = [*_heading(module.name), f".. py:module:: {module.name}", "", *_text(ast.get_docstring(module.tree))]
    lines += [f"Imported by {'lesson' if len(lessons) == 1 else 'lessons'} {links}.", ""]
    for node in _public(module):
        lines += _definition(node)
    return "\n".join(lines) + "\n"


def _imported(checkout: Path, source: str) -> set[str]:
    """Modules of the library that a cell imports; a name taken from a module stands for the module."""
    python = re.sub(r"^(\s*)[%!](?!=).*", r"\1pass", source, flags=re.MULTILINE)
    names = set()
    for node in ast.walk(ast.parse(python)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.add(full if _file(checkout, full) else node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith(f"{PACKAGE}.")}
    return names - {PACKAGE}


def _file(checkout: Path, name: str) -> Path | None:
    stem = checkout.joinpath(*name.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


def _public(module: Module) -> list[Definition]:
    """What a module defines for others; for a package, what its `__all__` names, from the files that define it."""
    if module.path.name != "__init__.py":
        return [node for node in _definitions(module.tree) if not node.name.startswith("_")]
    names, found = _all(module.tree), []
    imports = [node for node in module.tree.body if isinstance(node, ast.ImportFrom)]
    origin = {alias.name: node.module for node in imports for alias in node.names}
    for path in sorted(module.path.parent.glob("*.py")):
        here = f"{module.name}.{path.stem}"
        nodes = _definitions(ast.parse(path.read_text()))
        found += [node for node in nodes if node.name in names and origin.get(node.name, here) == here]
    return sorted(found, key=lambda node: node.name)


def _definitions(tree: ast.Module) -> list[Definition]:
    return [node for node in tree.body if isinstance(node, Definition)]


def _all(tree: ast.Module) -> list[str]:
    """The names in `__all__`, also those that are added to it."""
    names = []
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            names += ast.literal_eval(node.value)
    return names


def _definition(node: Definition, indent: str = "", is_method: bool = False) -> list[str]:
    """A function, or a class with its public methods, as directives of Sphinx's Python domain."""
    inner, decorators = indent + "   ", {ast.unparse(decorator) for decorator in node.decorator_list}
    options, members = [], []
    if isinstance(node, ast.ClassDef):
        head = f"class:: {node.name}({_fields(node)})"
        members = [it for it in node.body if isinstance(it, _FUNCTION) and not it.name.startswith("_")]
    elif decorators & {"property", "cached_property", "functools.cached_property"}:
        head = f"property:: {node.name}"
        options = [f"type: {_annotation(node.returns)}"] if node.returns else []
    else:
        signature = _signature(node, bound=is_method and "staticmethod" not in decorators)
        head = f"{'method' if is_method else 'function'}:: {node.name}{signature}"
        options = [f"{name}:" for name in ("classmethod", "staticmethod") if name in decorators]
        options += ["async:"] if isinstance(node, ast.AsyncFunctionDef) else []
    lines = [f"{indent}.. py:{head}", *(f"{inner}:{option}" for option in options), ""]
    lines += _text(ast.get_docstring(node), inner)
    for member in members:
        if not any(ast.unparse(decorator).endswith(".setter") for decorator in member.decorator_list):
            lines += _definition(member, inner, is_method=True)
    return lines


def _signature(node: ast.FunctionDef, bound: bool) -> str:
    """bound  leaves out the first argument, self or cls"""
    arguments = node.args
    if bound:
        first = arguments.posonlyargs or arguments.args
        del first[:1]
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg) and argument.annotation is not None:
            argument.annotation = ast.parse(_annotation(argument.annotation), mode="eval").body
    returns = f" -> {_annotation(node.returns)}" if node.returns else ""
    return f"({ast.unparse(arguments)}){returns}"


def _fields(node: ast.ClassDef) -> str:
    """What a class is made with: the arguments of its __init__, or a dataclass' fields."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return _signature(method, bound=True).removesuffix(" -> None")[1:-1]
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return ""
    fields = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and not item.target.id.startswith("_"):
            default = "" if item.value is None else f" = {ast.unparse(item.value)}"
            if isinstance(item.value, ast.Call):  # made afresh each time
                default = " = ..."
            fields.append(f"{item.target.id}: {_annotation(item.annotation)}{default}")
    return ", ".join(fields)


def _annotation(node: ast.expr) -> str:
    """A type as text, without the quotes of one that is named before it exists."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


def _text(docstring: str | None, indent: str = "") -> list[str]:
    """A docstring as reStructuredText."""
    lines = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring or "").strip("\n")):
        if _TYPED.search(paragraph):
            lines += [".. code-block:: text", "", *(f"   {line}" for line in paragraph.splitlines())]
        else:
            lines += _prose(paragraph).splitlines()
        lines.append("")
    return [indent + line if line else "" for line in lines]


def _prose(paragraph: str) -> str:
    """Text with what reStructuredText would read as its own escaped, and names between backticks as code."""
    pieces = _CODE.split(paragraph)
    plain = [re.sub(r"([\\*`_|])", r"\\\1", piece) for piece in pieces[::2]]
    code = [f"\\ ``{' '.join(piece.split())}``\\ " for piece in pieces[1::2]]
    return "".join(text for pair in zip(plain, [*code, ""]) for text in pair)


def _heading(title: str) -> list[str]:
    return [title, "=" * len(title), ""]


def _index(modules: list[Module]) -> str:
    lines = [*_heading("The library"), "What the lessons import, read from the library's own docstrings.", ""]
    lines += [".. list-table::", "   :header-rows: 1", "", "   * - Module", "     - What it is"]
    for module in modules:
        summary = inspect.cleandoc(ast.get_docstring(module.tree) or "").split("\n\n")[0]
        lines += [f"   * - :doc:`{module.name}`", f"     - {' '.join(_prose(summary).split())}"]
    lines += ["", ".. toctree::", "   :hidden:", ""]
    return "\n".join(lines + [f"   {module.name}" for module in modules]) + "\n"

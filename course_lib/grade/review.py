"""Lines for an examiner about source that reaches for the grader instead of the question. Needs nothing.

A line costs no point: the sandbox and the judge outside it are the defence. It says where to look when a
mark seems odd. Honest work with frames, processes or patches gets lines too; the course's own does not.
"""

import ast
import re
import warnings
from collections.abc import Iterator

LINES, LINE_LENGTH = 20, 200
_LONGEST_SOURCE = 200_000  # a syntax tree takes some hundred times the memory of its source

_MODULES = (
    "_ctypes", "_posixsubprocess", "_thread", "_xxsubinterpreters", "builtins", "cffi", "ctypes", "multiprocessing",
    "pty", "socket", "subprocess", "threading", "unittest.mock",
)  # fmt: skip
_MEMBERS = (
    "gc.get_objects", "gc.get_referents", "gc.get_referrers", "importlib.reload", "inspect.currentframe",
    "inspect.getclosurevars", "inspect.stack", "inspect.trace", "os.fork", "os.forkpty", "os.kill", "os.killpg",
    "os.popen", "os.system", "signal.pidfd_send_signal", "sys._current_frames", "sys._getframe", "sys.addaudithook",
    "sys.meta_path", "sys.modules", "sys.monitoring", "sys.path_hooks", "sys.setprofile", "sys.settrace",
)  # fmt: skip
_PROCESSES = re.compile(r"os\.(exec|spawn|posix_spawn)\w+")
_INTERNALS = re.compile(
    r"course_lib\.(grade|grading(?!\.(probes|Exercise|CheckFailed|Mistake|Question|Target)\b)\.\w+)\b"
)
_ATTRIBUTES = {
    "__builtins__", "__closure__", "__code__", "__globals__", "__subclasses__", "_questions", "ag_frame",
    "cell_contents", "cr_frame", "f_back", "f_builtins", "f_globals", "f_locals", "gi_frame", "tb_frame",
}  # fmt: skip
_SETTERS = {"setattr", "delattr", "object.__setattr__", "type.__setattr__", "object.__delattr__", "type.__delattr__"}
_PATH = re.compile(r"/(proc|sys|dev|etc|home|root|run|var|usr|opt|mnt|srv)(/|$)|~/")
_ENCODED = re.compile(r"[A-Za-z0-9+/=\s\\x]{200,}")
_MAGIC = re.compile(r"^([ \t]*)[%!?].*$", re.MULTILINE)
_MENTIONED = re.compile(
    rf"""(?<!\w)({"|".join(map(re.escape, (*_MODULES, *_MEMBERS, *_ATTRIBUTES, "/proc/", "course_lib.grade.")))})"""
)


def suspicious(cells: list[dict]) -> tuple[str, ...]:
    """What an examiner should look at in a notebook's code, "cell 7 sets numpy.allclose", in order.

    cells    as cells.notebook_of gives them
    Returns  at most LINES lines of at most LINE_LENGTH characters; the last one tells of more
    """
    lines, aliases = {}, {}
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] == "code":
            lines |= {f"cell {number} {what}"[:LINE_LENGTH]: None for what in _in_source(cell["source"], aliases)}
    if len(lines) > LINES:
        return (*list(lines)[: LINES - 1], f"and {len(lines) - LINES + 1:,} more lines like these")
    return tuple(lines)


def _in_source(source: str, aliases: dict[str, str]) -> list[str]:
    """What one cell does; the names that it gives to modules and their members are added to aliases."""
    if len(source) > _LONGEST_SOURCE:
        return [f"holds {len(source):,} characters of code, too many to look through", *_mentioned(source)]
    magics = [match[0] for match in _MAGIC.finditer(source)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(_MAGIC.sub(r"\1pass", source))
            nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _mentioned(source)
    for node in nodes:
        _learn(node, aliases)
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
    own = {id(node.func) for node in nodes if isinstance(node, ast.Call) and _kills_itself(node, aliases)}
    nodes = [node for node in nodes if id(node) not in prose | own or isinstance(node, ast.Call)]
    return [*_mentioned("\n".join(magics)), *(what for node in nodes for what in _in_node(node, aliases))]


def _mentioned(text: str) -> list[str]:
    return [f"mentions {name}" for name in dict.fromkeys(_MENTIONED.findall(text))]


def _learn(node: ast.AST, aliases: dict[str, str]) -> None:
    if isinstance(node, ast.Import):
        for name in node.names:
            aliases[name.asname or name.name.partition(".")[0]] = name.name if name.asname else name.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom) and node.module:
        aliases.update({name.asname or name.name: f"{node.module}.{name.name}" for name in node.names})
    elif isinstance(node, ast.Assign) and (dotted := _dotted(node.value, aliases)):
        aliases.update({target.id: dotted for target in node.targets if isinstance(target, ast.Name)})


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """The full name of an imported module or of what is in it, "numpy.allclose"; empty for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in aliases:
        parts.append(aliases[node.id])
    elif isinstance(node, ast.Call) and (module := _imported_by_call(node, aliases)):
        parts.append(module)
    else:
        return ""
    return ".".join(reversed(parts))


def _imported_by_call(call: ast.Call, aliases: dict[str, str]) -> str:
    name = call.func.id if isinstance(call.func, ast.Name) else _plain_name(call.func)
    full = aliases.get(name.partition(".")[0], "") + name[len(name.partition(".")[0]) :]
    is_import = name == "__import__" or "importlib.import_module" in (name, full)
    return _text(call.args[0]) if is_import and call.args else ""


def _in_node(node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from _in_import(node)
    elif isinstance(node, ast.Call):
        yield from _in_call(node, aliases)
    elif isinstance(node, ast.Attribute):
        yield from _in_attribute(node, aliases)
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        yield from _in_stored_item(node, aliases)
    elif isinstance(node, ast.Name) and (node.id in _ATTRIBUTES or _is_reaching(aliases.get(node.id, ""))):
        yield f"uses {aliases.get(node.id, node.id)}"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if _PATH.match(node.value):
            yield f"names the path {ascii(node.value[:100])[1:-1]}"
        elif node.value in _ATTRIBUTES:
            yield f"names {node.value} in a text"

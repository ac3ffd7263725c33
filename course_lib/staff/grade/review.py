"""Lines for an examiner about source that reaches for the grader instead of the question. Needs nothing.

A line costs no point: the sandbox, and the judge outside it, are the defence. It says where to look when
marks seem odd; code that hides what it does gets none. Not for the learner.
"""

import ast
import contextlib
import re
import warnings
from collections.abc import Iterator

from course_lib.staff.set_up_cell import AS_IT_IS

LINES, LINE_LENGTH = 20, 200
_LOOKED_THROUGH = 500_000  # characters in a notebook: a syntax tree takes a hundred times its source's memory
_EACH_CELL = 100  # what a cell costs of them by itself
_DEEPEST = 20  # members of members; a chain of thousands is looked up once for each link

_MODULES = (
    "_ctypes _posixsubprocess _thread _xxsubinterpreters builtins cffi ctypes multiprocessing pty socket "
    "subprocess threading unittest.mock"
).split()
_MEMBERS = (
    "gc.callbacks gc.get_objects gc.get_referents gc.get_referrers get_ipython.events importlib.reload "
    "inspect.currentframe inspect.getclosurevars inspect.stack inspect.trace os.fork os.forkpty os.kill os.killpg "
    "os.popen os.system signal.setitimer signal.signal sys._current_frames sys._getframe sys.addaudithook "
    "sys.meta_path sys.modules sys.monitoring sys.path_hooks sys.setprofile sys.settrace"
).split()
_ATTRIBUTES = (
    "CodeType FunctionType LambdaType __array_interface__ __array_struct__ __builtins__ __closure__ __code__ "
    "__globals__ __subclasses__ _questions ag_frame as_strided ast_transformers cell_contents cr_frame f_back "
    "f_builtins f_globals f_locals gi_frame input_transformer_manager input_transformers_cleanup "
    "input_transformers_post tb_frame"
).split()
_TAUGHT = r"given|probes|Exercise|CheckFailed|Mistake|Question|Target"  # what lessons and exercises import themselves
_REACHING = re.compile(
    rf"({'|'.join(map(re.escape, (*_MODULES, *_MEMBERS)))}|os\.(?:exec|spawn|posix_spawn)\w+"
    rf"|course_lib\.staff|course_lib\.exercises\.(?!(?:{_TAUGHT})\b)\w+)(?:\.|$)"
)
_MENTIONED = re.compile(
    rf"(?<!\w)(?:{'|'.join(map(re.escape, (*_MODULES, *_MEMBERS, *_ATTRIBUTES)))}|course_lib\.staff)(?!\w)|/proc/"
)
_SETTERS = ("setattr", "delattr", *(f"{it}.__{verb}attr__" for it in ("object", "type") for verb in ("set", "del")))
_SETTINGS = ("jax.config.", "matplotlib.")  # made to be set
_PATH = re.compile(r"/(proc|sys|dev|etc|home|root|run|var|usr|opt|mnt|srv)(/|$)|~/")
_ENCODED = re.compile(r"[A-Za-z0-9+/=\s]{200,}")
_MAGIC = re.compile(r"^([ \t]*)(?:[%!?].*|[\w.]+\?{1,2}[ \t]*)$|(?<=[^=!<>])=[ \t]*[%!].*$", re.MULTILINE)


def suspicious(cells: list[dict]) -> tuple[str, ...]:
    """What an examiner should look at in a notebook's code, "cell 7 sets numpy.allclose", in order.

    cells    as notebook_cells.notebook_of gives them; the first is cell 1
    Returns  at most LINES lines of at most LINE_LENGTH characters; the last one says how many more there are
    """
    lines, names, left = {}, {}, _LOOKED_THROUGH
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] != "code":
            continue
        left -= _EACH_CELL + len(cell["source"])
        if left < 0:
            lines[f"code from cell {number} on is too long to look through"] = None
            break
        lines |= {f"cell {number} {what}"[:LINE_LENGTH]: None for what in _in_source(cell["source"], names)}
    shown, more = list(lines), len(lines) - LINES + 1
    return tuple(shown if more <= 1 else [*shown[: LINES - 1], f"and {more:,} lines more"])


def _in_source(source: str, names: dict[str, str]) -> list[str]:
    """What one cell does; its names of modules, and of what is in them, are added to names."""
    source = AS_IT_IS.sub("import course_lib\n", source)  # the course's own lines install it
    for text in (source, _MAGIC.sub(lambda it: "= None" if it[1] is None else f"{it[1]}pass", source)):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            tree = syntax_tree(text)
            break
    else:
        return _mentions(source)
    magics = "" if text is source else "\n".join(match[0] for match in _MAGIC.finditer(source))
    nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
    for node in nodes:
        _learn(node, names)
    passed = {id(it) for node in nodes for it in _harmless(node, names)}
    found = [what for node in nodes if id(node) not in passed for what in _in_node(node, names)]
    return [*_mentions(magics), *found, *_in_encoded(nodes)]


def syntax_tree(source: str) -> ast.Module:
    """A cell's tree; Python's warnings are about the learner's text, and stay unsaid. Raises as ast.parse does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def _mentions(text: str) -> list[str]:
    return [f"mentions {name}" for name in dict.fromkeys(match[0] for match in _MENTIONED.finditer(text))]


# What a name stands for.


def _learn(node: ast.AST, names: dict[str, str]) -> None:
    if isinstance(node, ast.Import):
        for it in node.names:
            top = it.name.partition(".")[0]
            names[it.asname or top] = it.name if it.asname else top
    elif isinstance(node, ast.ImportFrom) and node.module:
        names |= {it.asname or it.name: f"{node.module}.{it.name}" for it in node.names}
    elif isinstance(node, ast.Assign) and (full := _full(node.value, names)):
        names |= {target.id: full for target in node.targets if isinstance(target, ast.Name)}


def _full(node: ast.AST, names: dict[str, str]) -> str:
    """The name of an imported module or of what is in it, "numpy.allclose"; empty for anything else."""
    parts = []
    while isinstance(node, ast.Attribute) and len(parts) < _DEEPEST:
        parts.append(node.attr)
        node = node.value
    start = names.get(node.id, "") if isinstance(node, ast.Name) else _imported(node, names)
    return ".".join([start, *reversed(parts)]) if start and start.count(".") < _DEEPEST else ""


def _imported(node: ast.AST, names: dict[str, str]) -> str:
    """The module that __import__ or import_module gives; "get_ipython" for what that gives."""
    called = _called(node, names) if isinstance(node, ast.Call) else ""
    if called in ("__import__", "importlib.import_module") and node.args and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value)
    return "get_ipython" if called.endswith("get_ipython") else ""


def _called(call: ast.Call, names: dict[str, str]) -> str:
    """The name of what is called: a builtin's, a module's member, or "object.__setattr__"."""
    func = call.func
    if isinstance(func, ast.Name):
        return names.get(func.id, func.id)
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        return f"{names.get(func.value.id, func.value.id)}.{func.attr}"
    return ""


# What a node does.


def _harmless(node: ast.AST, names: dict[str, str]) -> Iterator[ast.AST]:
    """Nodes to pass over: what stands alone as a docstring does, and a process that kills itself."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        yield node.value
    elif isinstance(node, ast.Call) and _called(node, names) == "os.kill" and node.args:
        own = node.args[0]
        if isinstance(own, ast.Call) and _called(own, names) == "os.getpid":
            yield node.func


def _in_node(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    match node:
        case ast.Import() | ast.ImportFrom():
            yield from _in_import(node)
        case ast.Call():
            yield from _in_call(node, names)
        case ast.Attribute():
            yield from _in_attribute(node, names)
        case ast.Subscript(
            value=ast.Attribute(value=owner, attr="__dict__") | ast.Call(func=ast.Name(id="vars"), args=[owner])
        ) if _is_changed(node):
            yield from _in_change(owner, "__dict__", names)
        case ast.Name(id=name) if name in _ATTRIBUTES:
            yield f"uses {name}"
        case ast.Name(id="__class__", ctx=ast.Store()) | ast.FunctionDef(name="__class__"):
            yield "sets __class__"
        case ast.Constant(value=str(text)) if _PATH.match(text):
            yield f"names the path {_ascii(text)}"
        case ast.Constant(value=str(text)) if text in (*_ATTRIBUTES, "__class__"):
            yield f"names {text}"


def _in_import(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    module = "" if isinstance(node, ast.Import) else f"{node.module or ''}."
    for it in node.names:
        if reaching := _REACHING.match(f"{module}{it.name}"):
            yield f"imports {reaching[1]}"
        elif it.name in _ATTRIBUTES:
            yield f"imports {it.name}"


def _in_call(node: ast.Call, names: dict[str, str]) -> Iterator[str]:
    if reaching := _REACHING.match(_imported(node, names)):
        yield f"imports {reaching[1]}"
    called = _called(node, names)
    if called in _SETTERS and len(node.args) > 1:
        name = node.args[1].value if isinstance(node.args[1], ast.Constant) else "..."
        yield from _in_change(node.args[0], str(name), names)
    elif called in ("open", "io.open", "os.open") and node.args and isinstance(node.args[0], ast.Constant):
        if (path := str(node.args[0].value)).startswith("/") and not _PATH.match(path):
            yield f"opens {_ascii(path)}"


def _in_attribute(node: ast.Attribute, names: dict[str, str]) -> Iterator[str]:
    if node.attr in _ATTRIBUTES:
        yield f"uses {node.attr}"
    if _is_changed(node):
        yield from _in_change(node.value, node.attr, names)
    elif (reaching := _REACHING.match(_full(node, names))) and reaching[1] not in _MODULES:  # its import has a line
        yield f"uses {reaching[1]}"


def _is_changed(node: ast.Attribute | ast.Subscript) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _in_change(owner: ast.AST, name: str, names: dict[str, str]) -> Iterator[str]:
    """A line when the owner is imported, or the class of something, and so is everybody's."""
    if name == "__class__":
        yield "sets __class__"
    elif isinstance(owner, ast.Call) and _called(owner, names) == "type" or getattr(owner, "attr", "") == "__class__":
        yield f"sets {_ascii(name)} of a class that it takes from an object"
    elif (full := _full(owner, names)) and not f"{full}.".startswith(_SETTINGS):
        yield f"sets {_ascii(f'{full}.{name}')}"


def _in_encoded(nodes: list[ast.AST]) -> Iterator[str]:
    runs = any(isinstance(node, ast.Call) and _called(node, {}) in ("exec", "eval", "compile") for node in nodes)
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))]
    texts = [text if isinstance(text, str) else text.decode("latin-1") for text in texts]
    if runs and any(map(_ENCODED.fullmatch, texts)):
        yield "runs code, and holds a long encoded text"


def _ascii(text: str) -> str:
    return ascii(text[:100])[1:-1]

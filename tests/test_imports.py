"""The package is light to import, and its modules depend on each other in one direction."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "course_lib"

# A module imports those before it, never those after it.
TAUGHT = (
    (
        "errors",
        "table",
        "waiting",
        "show",
        "report",
        "programs",
        "colab_runtime",
        "devices",
        "data",
        "models",
    ),  # every lesson
    ("compare", "profiler", "measure"),  # 01, 02
    ("collectives", "precision", "step_rules", "training"),  # 02, 09
    ("tcp_bytes", "hangs", "cluster", "support_matrix", "parameter_server"),  # 03, 04
    ("layout_maps", "sharding", "tpu"),  # 07, 05
    ("pipeline", "accumulate"),  # 06, 08
    ("planner", "views"),  # 10
)
ORDER = (
    *TAUGHT,
    ("lessons", "exercises", "progress", "doctor"),
    ("bootstrap", "update", "staff", "command_list", "cli"),
)
ROOMS = tuple(room for floor in ORDER for room in floor)
DRAWING = {"matplotlib": "show", "ipywidgets": "views"}  # a library, and the one module that may import it
MAY_READ_ENVIRONMENT = {"devices", "cluster", "cli", "bootstrap"}
NEEDS_NOTHING = {"bootstrap", "errors", "lessons"}

FRAMEWORKS = {"tensorflow", "jax", "keras", "tf_keras", "numpy", "matplotlib", "ipywidgets", "IPython", "sklearn"}


def room(file: Path) -> str:
    """The module's name, or the subpackage it lives in: the unit of the order."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def dotted(file: Path) -> str:
    name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


# Programs to take away are no modules: nothing imports them, and each has its own names.
PROGRAMS = set((PACKAGE / "programs").glob("[!_]*.py"))
FILES = {dotted(file): file for file in sorted(set(PACKAGE.rglob("*.py")) - PROGRAMS)}
each_file = pytest.mark.parametrize("file", FILES.values(), ids=dotted)


def imported(file: Path) -> set[str]:
    """Full names of the modules that a file imports, at its top or inside functions."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} imports relatively; this test reads absolute imports"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {name if name in FILES else node.module for name in full}
    return names


def ours(file: Path) -> set[str]:
    """Those of them that are this package's."""
    return imported(file) & FILES.keys()


@each_file
def test_a_module_imports_only_what_stands_above_it(file):
    if file == PACKAGE / "__init__.py":
        assert ours(file) == set()
        return
    here = room(file)
    assert here in ROOMS, f"{here} has no place in the order: give it one"
    used = {room(FILES[name]) for name in ours(file)} - {here}
    above = set(ROOMS[: ROOMS.index(here)])
    assert used <= above, f"{here} imports {used - above}, which must not stand above it"


def test_no_two_modules_import_each_other():
    """Within a subpackage too, and also through others."""
    edges = {name: ours(file) for name, file in FILES.items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"cycle: {' -> '.join([*path[path.index(name) :], name])}"
        if name not in done:
            for other in edges[name] - {name}:
                visit(other, (*path, name))
            done.add(name)

    for name in edges:
        visit(name, ())


@each_file
def test_only_show_draws_and_only_views_make_widgets(file):
    drawing = {name.split(".")[0] for name in imported(file)} & DRAWING.keys()
    assert {DRAWING[library] for library in drawing} <= {room(file)}


@each_file
def test_the_environment_is_read_in_few_places(file):
    reads = [
        node.lineno
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "putenv"}
    ]
    assert not reads or room(file) in MAY_READ_ENVIRONMENT, f"lines {reads}"


@pytest.mark.parametrize("module", sorted(NEEDS_NOTHING))
def test_modules_that_run_before_anything_is_installed_need_the_standard_library_alone(module):
    tops = {name.split(".")[0] for name in imported(PACKAGE / f"{module}.py")}
    assert tops <= sys.stdlib_module_names


def test_a_public_class_name_means_one_thing():
    places: dict[str, list[str]] = {}
    for name, file in FILES.items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_file_name_means_one_thing():
    """An exercise's probe and judge share its number, and only packages have the two names that Python gives them."""
    places: dict[str, list[str]] = {}
    for name, file in FILES.items():
        if file.stem not in ("__init__", "__main__") and not re.match(r"ex\d\d", file.stem):
            places.setdefault(file.stem, []).append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@each_file
def test_a_module_fits_in_a_head(file):
    most = 700 if file.parent.name == "judges" else 300
    assert len(file.read_text().splitlines()) <= most


def test_what_lessons_teach_stays_small():
    """The floors of ORDER that a learner reads, without what draws, waits, starts and watches processes, installs,
    compiles and plans."""
    behind = {"show", "waiting", "programs", "hangs", "cluster", "colab_runtime", "support_matrix", "tpu", "planner"}
    taught = {name for floor in TAUGHT for name in floor} - behind
    lines = sum(len(file.read_text().splitlines()) for file in FILES.values() if room(file) in taught)
    assert lines <= 5000, f"{lines} lines"


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(
    "module", ["course_lib", "course_lib.cli", "course_lib.devices", "course_lib.doctor", "course_lib.views"]
)
def test_importing_brings_in_no_framework(module):
    loaded = json.loads(python(f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"))
    assert not {name.split(".")[0] for name in loaded} & FRAMEWORKS


def test_importing_the_package_is_quick():
    """Under 100 ms of CPU: time spent by this process alone, the best of five, beyond a bare interpreter."""
    clock = "import time; print(time.process_time())"

    def best(code: str) -> float:
        return min(float(python(code)) for _ in range(5))

    assert best(f"import course_lib; {clock}") - best(clock) < 0.100

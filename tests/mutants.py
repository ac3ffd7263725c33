"""Which small changes of the library do its tests not notice? `make mutants`, or `make mutants ROOMS="compare tpu"`.

mutmut makes the changes (an operator, a number, an argument, a condition) in a copy of the tree, and runs for each the
tests that reach the function, or all where none does in pytest's own process. It does not change what stands outside
functions or what a decorator makes. A seed draws the sample, and changes of texts alone are left out.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from course_lib.table import Table

ROOT = Path(__file__).parents[1]
COPY = ROOT / "build" / "mutants"
# A room of course_lib to the files of tests that hold it, without those that take minutes.
ROOMS = {
    **{room: (room,) for room in ("collectives", "compare", "data", "measure", "models", "pipeline")},
    **{room: (room,) for room in ("parameter_server", "precision", "report", "show", "table", "tpu")},
    "cluster": ("cluster", "cluster_kubernetes", "cluster_rendezvous"),
    "devices": ("devices",),
    "layout_maps": ("sharding",),
    "planner": ("plan_by_hand", "plan", "plan_network"),
    "profiler": ("measure",),
    "sharding": ("sharding",),
    "step_rules": ("step_rules", "training"),
    "training": ("training", "step_rules", "multi_worker"),
    "accumulate": ("accumulate", "jax_only"),
    "views": ("views",),
}
ELSEWHERE = {"layout_maps", "sharding"}  # nearly all their tests run in one process beside pytest's
SETTINGS = """
[tool.mutmut]
source_paths = ["course_lib"]
only_mutate = ["course_lib/{room}.py", "course_lib/{room}/*"]
do_not_mutate_patterns = ["help="]
also_copy = ["notebooks", "solutions", "exercises", "README.md", "TROUBLESHOOTING.md"]
pytest_add_cli_args = ["--override-ini=addopts=", "--override-ini=faulthandler_timeout=0", "-p", "no:cacheprovider"]
pytest_add_cli_args_test_selection = {tests}
process_isolation = "forkserver"
forkserver_warmup = "import"
preload_modules_file = "preload.txt"
use_git_change_detection = false
"""
KILLED, SURVIVED, NOT_REACHED = "killed", "survived", "not reached"


def copied(room: str) -> Path:
    """A fresh copy of the tree, with mutmut's settings for one room."""
    folder = COPY / room
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    tests = [f"tests/test_{name}.py" for name in ROOMS[room]]
    with open(folder / "pyproject.toml", "a") as file:
        file.write(SETTINGS.format(room=room, tests=json.dumps(tests)))
    (folder / "preload.txt").write_text("numpy\nkeras\ntensorflow\n")
    return folder


def mutmut(folder: Path, names: list[str]) -> None:
    """Make all mutants, see which tests reach which function, and try those of these names."""
    with open(folder / "mutmut.log", "a") as log:
        command = [Path(sys.executable).with_name("mutmut"), "run", "--max-children", "2", *names]
        environment = {**os.environ, "PYTHONPATH": str(folder / "mutants")}  # for the processes that tests start
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)


def give_unreached_functions_all_tests(folder: Path, everything: bool) -> None:
    """What runs in a test's other process alone was not seen; the environment tells that process the mutant's name."""
    stored = folder / "mutants" / "mutmut-stats.json"
    stats = json.loads(stored.read_text())
    reached, tests = stats["tests_by_mangled_function_name"], [*stats["duration_by_test"]]
    for function in {name.rpartition("__mutmut_")[0] for name in exit_codes(folder)}:
        reached[function] = tests if everything else reached.get(function) or tests
    stored.write_text(json.dumps(stats))


def leave_out_what_fails_unchanged(folder: Path) -> None:
    """mutmut calls each function through one of its own, which a test of call stacks or sources notices."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "--override-ini=addopts="]
    settings = folder / "pyproject.toml"
    tests = tomllib.loads(settings.read_text())["tool"]["mutmut"]["pytest_add_cli_args_test_selection"]
    environment = {**os.environ, "MUTANT_UNDER_TEST": "none"}
    done = subprocess.run(
        [*command, *tests],
        cwd=folder / "mutants",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    print(f"left out, since they fail in mutmut's copy: {', '.join(failed)}", flush=True)
    options = "".join(f', "--deselect={name}"' for name in failed)
    settings.write_text(settings.read_text().replace('"no:cacheprovider"]', f'"no:cacheprovider"{options}]'))


def exit_codes(folder: Path) -> dict[str, int | None]:
    made = (folder / "mutants" / "course_lib").rglob("*.meta")
    return {name: code for file in made for name, code in json.loads(file.read_text())["exit_code_by_key"].items()}


def changes(folder: Path) -> dict[str, bool]:
    """Each mutant's name, and whether it changes more than a text."""
    found = {}
    for file in (folder / "mutants" / "course_lib").rglob("*.py"):
        module = ".".join(file.relative_to(folder / "mutants").with_suffix("").parts).removesuffix(".__init__")
        functions = [
            n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        code = {one.name: _without_texts(one) for one in functions if "__mutmut_" in one.name}
        for name, text in code.items():
            stem, _, number = name.rpartition("__mutmut_")
            if number != "orig":
                found[f"{module}.{name}"] = text != code[f"{stem}__mutmut_orig"]
    return found


def _without_texts(function: ast.AST) -> str:
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    function.name = ""
    return ast.dump(function)


def verdicts(room: str, sample: int, seed: int) -> dict[str, str]:
    """Try a sample of a room's mutants: name to killed, survived or not reached."""
    folder = copied(room)
    mutmut(folder, ["none"])
    if not (folder / "mutants" / "mutmut-stats.json").exists():
        leave_out_what_fails_unchanged(folder)
        mutmut(folder, ["none"])
    give_unreached_functions_all_tests(folder, everything=room in ELSEWHERE)
    names = sorted(name for name, more in changes(folder).items() if more)
    drawn = random.Random(seed).sample(names, min(sample, len(names)))
    mutmut(folder, drawn)
    codes = exit_codes(folder)
    missing = [name for name in drawn if codes.get(name) is None]
    if missing:
        print(f"{room}: {len(missing)} of {len(drawn)} mutants were not tried; see {folder / 'mutmut.log'}", flush=True)
    meaning = {0: SURVIVED, 33: NOT_REACHED, 5: NOT_REACHED}
    return {name: meaning.get(codes[name], KILLED) for name in drawn if codes.get(name) is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", default=[*ROOMS], metavar="ROOM", help=f"of {', '.join(ROOMS)}")
    parser.add_argument("--sample", type=int, default=40, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows, survivors = [], []
    for room in arguments.rooms or ROOMS:
        found = verdicts(room, arguments.sample, arguments.seed)
        counts = Counter(found.values())
        tried = counts[KILLED] + counts[SURVIVED]
        rows.append(
            (
                room,
                len(found),
                counts[KILLED],
                counts[SURVIVED],
                counts[NOT_REACHED],
                f"{counts[KILLED] / max(1, tried):.0%}",
            )
        )
        survivors += [(room, name) for name, verdict in found.items() if verdict == SURVIVED]
        print(f"{room}: {dict(counts)}", flush=True)
    print(Table(("room", "mutants", KILLED, SURVIVED, NOT_REACHED, "score"), rows))
    for room, name in survivors:
        shown = [Path(sys.executable).with_name("mutmut"), "show", name]
        print(subprocess.run(shown, cwd=COPY / room, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()

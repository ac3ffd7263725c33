"""Which small changes of the library do its tests not notice? `make mutants`, or `make mutants ROOMS="compare tpu"`.

mutmut makes the changes: an operator, a number, an argument, a condition. Each is written into a copy of the tree, and
a fork of a process that has imported the frameworks, and nothing of ours, runs the room's tests until one fails. A seed
draws the sample, and changes of texts alone are left out. A change that leaves the same function stands in mutants.toml
with the reason.
"""

import argparse
import ast
import difflib
import gc
import importlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPY = ROOT / "build" / "mutants"
SAME = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
BY_ITS_NAME = "collectives compare data measure models parameter_server pipeline precision report".split()
BY_ITS_NAME += "sharding show step_rules table tcp_bytes views".split()
# A room of course_lib to the files of tests that hold it, the quickest first, without those that take minutes.
ROOMS = {
    **{room: (room,) for room in BY_ITS_NAME},
    "accumulate": ("step_rules", "accumulate", "jax_only"),
    "cluster": (
        "cluster_by_hand",
        "cluster_kubernetes",
        "cluster_rendezvous",
        "cluster_cli",
        "cluster_slurm",
        "forks",
        "cluster",
        "machine_check",
        "cluster_network",
        "hangs",
    ),
    "devices": ("devices_by_hand", "devices"),
    "hangs": ("hangs_by_hand", "hangs"),
    "layout_maps": ("sharding",),
    "planner": (
        "plan_tables",
        "plan_by_hand",
        "plan_remedies",
        "plan_config",
        "plan_start",
        "plan",
        "plan_network",
        "plan_machine",
        "plan_compiler",
    ),
    "profiler": ("measure",),
    "tpu": ("tpu_by_hand", "plan_tables", "tpu"),
    "training": ("step_rules", "training", "multi_worker", "parameter_server"),
}
FRAMEWORKS = ("numpy", "pytest", "keras", "tensorflow", "matplotlib.figure", "matplotlib.backends.backend_svg")
# What pytest loads of itself in each process: seconds, where a room's tests take less.
FRAMEWORKS += ("anyio.pytest_plugin", "ipywidgets", "nbval.plugin", "xdist.plugin")
VERDICTS = KILLED, HUNG, SURVIVED, SAME_FUNCTION = "killed", "hung", "survived", "the same function"


def changes(folder: Path, room: str, seed: int) -> Iterator[tuple[Path, str, str]]:
    """Changes of a room's modules that are more than another text, shuffled: file, what it says, the new source."""
    from mutmut.mutation.file_mutation import create_mutations

    made = []
    for file in modules(folder, room):
        source = file.read_text(encoding="utf-8")
        module, mutations, *_ = create_mutations(str(file.relative_to(folder)), source)
        made += [(file, source, module, one) for one in mutations]
    random.Random(seed).shuffle(made)
    for file, source, module, one in made:
        changed = module.deep_replace(one.original_node, one.mutated_node).code
        if _without_texts(changed) != _without_texts(source):
            differing = [*difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm="")][3:]
            before, after = (" ".join(line[1:].strip() for line in differing if line[0] == sign) for sign in "-+")
            yield file, f"{before} -> {after}", changed


def _without_texts(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def copied(room: str) -> Path:
    """A fresh copy of the tree, as git sees it."""
    folder = COPY / room
    shutil.rmtree(folder, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def modules(folder: Path, room: str) -> list[Path]:
    inside = folder / "course_lib"
    return sorted((inside / room).rglob("*.py")) or [inside / f"{room}.py"]


def verdict(tests: list[str], seconds: float, log: Path) -> str:
    """What the tests say of the tree as it is, from a fork of this process."""
    child = os.fork()
    if child == 0:
        os.setsid()  # so that what the tests start ends with them
        with log.open("w") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        command = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "--override-ini=addopts=", *tests]
        os._exit(sys.modules["pytest"].main(command))
    end = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.02)
    if not ended[0]:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return HUNG
    return SURVIVED if ended[1] == 0 else KILLED


def room_verdicts(room: str, sample: int, seed: int) -> list[str]:
    """What became of each drawn change; those that survive are printed."""
    folder = copied(room)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ |= {"PYTHONPATH": f"{folder}:{folder / 'tests' / 'startup'}", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True  # a file that changes twice in a second would be taken for the same
    for name in FRAMEWORKS:
        importlib.import_module(name)
    gc.freeze()  # pytest collects garbage at its end, and looks through all that the forks share
    tests, log = [f"tests/test_{name}.py" for name in ROOMS[room]], folder / "log.txt"
    began = time.monotonic()
    if verdict(tests, 1800, log) != SURVIVED:
        sys.exit(f"{room}: its tests fail without any change; see {log}")
    limit = 60 + 5 * (time.monotonic() - began)
    print(f"{room}: all tests take {time.monotonic() - began:.0f} s", flush=True)
    found = []
    for file, change, changed in itertools.islice(changes(folder, room, seed), sample):
        name, source = str(file.relative_to(folder)), file.read_text(encoding="utf-8")
        became = SAME_FUNCTION if change in SAME.get(name, {}) else None
        if not became:
            file.write_text(changed, encoding="utf-8")
            became = verdict(tests, limit, log)
            file.write_text(source, encoding="utf-8")
        if became == SURVIVED:
            print(f"{name}, {change}", flush=True)
        found.append(became)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", default=[*ROOMS], metavar="ROOM", help=f"of {', '.join(ROOMS)}")
    parser.add_argument("--sample", type=int, default=40, help="changes of each room")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = []
    for room in arguments.rooms:
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # a room's modules are imported by no other's tests
            counts = Counter(fresh.submit(room_verdicts, room, arguments.sample, arguments.seed).result())
        noticed = counts[KILLED] + counts[HUNG]
        score = f"{noticed / max(1, noticed + counts[SURVIVED]):.0%}"
        rows.append(
            (room, counts.total(), counts[KILLED], counts[HUNG], counts[SURVIVED], counts[SAME_FUNCTION], score)
        )
    from course_lib.table import Table  # here, so that no room's tests find it imported

    print(Table(("room", "changes", *VERDICTS, "score"), rows))


if __name__ == "__main__":
    main()

"""Strategy x API x feature, executed on the installed stack and compared with the stored table of lesson 03.

Each cell is judged by equality with `fit` on one device. When a verdict
changes, upstream has fixed or broken something: read which, then

    python tests/test_support_matrix.py --write newest    # or colab

stores what is so now and draws the lesson's page again. Without --write the same command prints the comparison.
Takes several minutes, so `make test` leaves it out.
"""

import argparse
import dataclasses
import importlib.metadata
import math
import re
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import support_page
from support_page import Cell, Verdict

from course_lib import cluster, support_matrix
from course_lib.cluster.worker_program import WorkerProgram

sys.path.insert(0, str(Path(__file__).parent))  # for the tasks that import support_features

FLOAT32 = (1e-5, "float32 sums in another order, over 8 steps")
FLOAT16 = (2e-3, "float16 gradients, rounded to 11 bits, of other parts of the batch")

COLUMNS = [
    ("mirrored", "fit"),
    ("mirrored", "loop"),
    ("multi-worker", "fit"),
    ("multi-worker", "loop"),
    ("parameter server", "fit"),
    ("parameter server", "loop"),
    ("jax", "fit"),
]
# `fit` builds the optimizer itself.
CASES = [
    (*column, feature)
    for column in COLUMNS
    for feature in support_page.FEATURES
    if (column[1], feature) != ("fit", "unbuilt")
]

# What is added for the second verdict, where stock Keras fails.
SYNCHRONIZED = "synchronized=True"
REMEDIES = {
    ("mirrored", "fit", "overflow"): ["AgreeingLossScale"],
    ("mirrored", "fit", "uneven"): ["ExactPartialBatches"],
    ("mirrored", "fit", "batch_norm"): [SYNCHRONIZED],
    ("mirrored", "fit", "steps_per_execution"): ["SeveralSteps"],
    **{
        (strategy, "loop", feature): [remedy]
        for strategy in ("mirrored", "multi-worker")
        for feature, remedy in [
            ("unbuilt", "replicated_step"),
            ("uneven", "replicated_step"),
            ("overflow", "AgreeingLossScale"),
            ("batch_norm", SYNCHRONIZED),
        ]
    },
    **{
        ("multi-worker", "fit", feature): ["MultiWorkerFit"]
        for feature in support_page.FEATURES
        if feature != "unbuilt"
    },
    ("multi-worker", "fit", "overflow"): ["MultiWorkerFit", "AgreeingLossScale"],
    ("multi-worker", "fit", "uneven"): ["MultiWorkerFit", "ExactPartialBatches"],
    ("multi-worker", "fit", "batch_norm"): ["MultiWorkerFit", SYNCHRONIZED],
    ("multi-worker", "fit", "steps_per_execution"): ["MultiWorkerFit", "SeveralSteps"],
    ("parameter server", "loop", "count"): ["count_every_update"],
    ("parameter server", "loop", "uneven"): ["asynchronous_step"],
}

NO_XLA = "TensorFlow's own tracker, b/194942685, as the error says"
AVERAGE = "by design: compute_average_loss divides by the full global batch"
JIT, ACCUMULATION, PARTIAL, OVERFLOW = "keras issue 19005", "keras issue 20582", "keras pull 20609", "keras pull 18691"
ISSUES = {
    **{(strategy, api, "accumulation"): ACCUMULATION for strategy, api in COLUMNS if strategy != "jax"},
    **{(strategy, api, "overflow"): OVERFLOW for strategy, api in COLUMNS if strategy != "jax"},
    **{
        (strategy, api, "jit_compile"): JIT for strategy, api in COLUMNS if strategy in ("mirrored", "parameter server")
    },
    **{
        (strategy, api, "batch_norm"): "keras pull 18671" for strategy, api in COLUMNS
    },  # statistics per replica are the default
    **{(strategy, "loop", "uneven"): AVERAGE for strategy in support_page.STRATEGIES},
    ("multi-worker", "loop", "jit_compile"): NO_XLA,
    **{(strategy, "loop", "unbuilt"): "keras issue 23085" for strategy in support_page.STRATEGIES},
    ("mirrored", "fit", "steps_per_execution"): "keras issue 23085",
    ("mirrored", "fit", "uneven"): PARTIAL,
    # Where the remedy is not enough, what is left is what matters.
    **{
        ("multi-worker", "fit", f): "keras issue 20585"
        for f in support_page.FEATURES
        if f not in ("accumulation", "jit_compile")
    },
    ("multi-worker", "fit", "jit_compile"): NO_XLA,
    **{("parameter server", "fit", feature): "keras issue 18624" for feature in support_page.FEATURES},
    ("parameter server", "loop", "count"): "keras issue 18668",
    ("jax", "fit", "uneven"): "keras issue 21167",
}

SHAPES = {
    "one device": {"workers": 1},
    "mirrored": {"workers": 1},
    "multi-worker": {"workers": 2},
    "parameter server": {"workers": 2, "parameter_servers": 1},
    "jax": {"workers": 1, "framework": "jax"},
}
AT_ONCE = 2  # clusters; their processes often wait
LIMIT_SECONDS = 600
# A deadlock shows at its limit alone, so what may deadlock has a cluster of its own and a short one.
MAY_HANG, HANG_SECONDS = {("multi-worker", "loop", "overflow", ())}, 60

Case = tuple[str, str, str, tuple[str, ...]]  # strategy, api, feature, remedies


def cases() -> list[Case]:
    """Stock first, then with remedies."""
    stock = [(*case, ()) for case in CASES]
    return stock + [(*case, tuple(REMEDIES[case])) for case in CASES if case in REMEDIES]


def reference_cases() -> list[Case]:
    return [("one device", "fit", feature, ()) for feature in support_page.FEATURES if feature != "unbuilt"]


def observe(wanted: list[Case], show=lambda text: None) -> dict[Case, object]:
    """Execute cases, each strategy's on a cluster of its own beside the others'.

    Returns  case to its runs, task by task, or to the Verdict of a case that did not return any
    """

    def of_strategy(strategy):
        """One case that ends its processes costs the others a fresh start."""
        own, found = [case for case in wanted if case[0] == strategy], {}
        for hanging, limit in [(False, LIMIT_SECONDS), (True, HANG_SECONDS)]:
            while rest := [case for case in own if (case in MAY_HANG) == hanging and case not in found]:
                show(f"{strategy}: {len(rest)} to run")
                found |= attempt(strategy, rest, limit)
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {case: seen for found in pool.map(of_strategy, SHAPES) for case, seen in found.items()}


def attempt(strategy: str, group: list[Case], limit_seconds: float) -> dict[Case, object]:
    """One cluster, until all its cases are known or one of them ends it."""
    job = cluster.Job(
        WorkerProgram("execute", module="support_features"),  # by name: importing it here would start TensorFlow here
        arguments={"name": strategy, "cases": [[api, feature, remedies] for _, api, feature, remedies in group]},
        environment={"CUDA_VISIBLE_DEVICES": "-1"},
        resources=cluster.Resources(limit_seconds=limit_seconds),
        **SHAPES[strategy],
    )
    end, raised = "", False
    with cluster.start(job, show=None) as running:
        try:
            running.outcome()
        except cluster.RunFailed as failure:
            end, raised = str(failure), bool(failure.cause and failure.cause.error)
    reports = [report for report in running.reports if "case" in report.values]
    found, begun = {}, None
    for case in group:
        own = [report for report in reports if report.values["case"] == "/".join([*case[1:3], "+".join(case[3])])]
        errors = [report.values for report in own if "error" in report.values]
        runs = [report.values["runs"] for report in own if "runs" in report.values]
        begun = case if own else begun
        if errors:
            found[case] = Verdict("raises", error=f"{errors[0]['error']}: {quoted(errors[0]['message'])}")
        elif len(runs) == len(job.programs):
            found[case] = runs
    if end and not raised and begun not in found:
        assert begun, f"{strategy} did not start: {end}"
        found[begun] = Verdict("hangs") if "did not finish" in end else Verdict("aborts", error=end)
    assert found, f"{strategy} made no progress: {end}"
    return found


FRAMES = re.compile(
    r"File |\[\[\{\{|Graph execution error|Detected at node|in user code|Exception encountered|Arguments received"
    r"|Stack trace|\d+ (root|derived) error|[•^]"
)


def quoted(message: str) -> str:
    """The line that says what happened: TensorFlow and Keras put call stacks around it."""
    lines = [line.strip() for line in re.sub(r"\x1b\[\d+m", "", message).splitlines() if line.strip()]
    if lines and FRAMES.match(lines[0]):
        lines = [line for line in lines if not FRAMES.match(line) and re.search(r"\w\s\w.*\s\w", line)][-1:]
    said = re.sub(r"^\(\d+\) [A-Z_]+: +", "", " ".join(lines))
    remote = re.search(r'grpc_message:" *([^"]*)', said)
    said = re.sub(r" \(defined @ [^)]*\)", "", remote[1] if remote else said)  # a path of this machine
    return textwrap.shorten(re.sub(r"\{ .*\}", "{...}", said), 200, placeholder=" ...")


def judge(runs: list[list], reference: list, tolerance: float) -> Verdict:
    """Every run of every task against one device's."""
    expected = [np.asarray(value, "float64") for value in reference[0][0]]
    pairs = [pair for task in runs for run in task for pair in zip(run, expected, strict=True)]
    difference = np.max(
        [relative_difference(np.asarray(value, "float64"), want) for value, want in pairs]
    )  # NaN stays NaN
    if math.isnan(difference):
        return Verdict("wrong")
    return Verdict("equal" if difference <= tolerance else "wrong", float(f"{difference:.1e}"))


def relative_difference(value: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference over the largest magnitude; NaN when a value is not finite."""
    assert value.shape == expected.shape, f"compared {value.shape} with {expected.shape}"
    if not np.isfinite(value).all():
        return math.nan
    return float(np.abs(value - expected).max() / max(np.abs(expected).max(), 1e-30))


def execute(name: str, show=print) -> support_page.Stack:
    """The whole matrix on the installed stack."""
    return tabulate(name, observe(reference_cases() + cases(), show))


def tabulate(name: str, found: dict[Case, object]) -> support_page.Stack:
    """Judge what was observed."""
    cells = []
    for strategy, api, feature in CASES:
        reference = found["one device", "fit", "training" if feature == "unbuilt" else feature, ()]
        tolerance, reason = FLOAT16 if feature == "overflow" else FLOAT32

        stock = verdict(found[strategy, api, feature, ()], reference, tolerance)
        remedies = tuple(REMEDIES.get((strategy, api, feature), ()))
        needed = bool(remedies) and stock.kind != "equal"
        issue = ISSUES.get((strategy, api, feature), "") if stock.kind != "equal" else ""
        fixed = verdict(found[strategy, api, feature, remedies], reference, tolerance) if needed else None
        cells.append(Cell(strategy, api, feature, stock, tolerance, reason, issue, remedies if needed else (), fixed))
    return support_page.Stack(name, versions(), tuple(cells))


def verdict(seen: Verdict | list[list], reference: list, tolerance: float) -> Verdict:
    return seen if isinstance(seen, Verdict) else judge(seen, reference, tolerance)


def versions() -> dict[str, str]:
    return {
        label: next(importlib.metadata.version(name) for name in names if installed(name))
        for label, names in {
            "TensorFlow": ("tensorflow", "tensorflow-cpu"),
            "Keras": ("keras",),
            "JAX": ("jax",),
        }.items()
    }


def installed(name: str) -> bool:
    return any(True for _ in importlib.metadata.distributions(name=name))


def changes(stored: support_page.Stack, now: support_page.Stack) -> list[str]:
    """Where the installed stack no longer behaves as stored."""
    lines = []
    for cell in now.cells:
        old = stored.cell(*cell.key)
        if support_page.kinds(old) != support_page.kinds(cell) or not alike(old.stock, cell.stock):
            detail = f" ({cell.stock.error})" if cell.stock.error else ""
            lines.append(f"{', '.join(cell.key)}: stored {old}; now {cell}{detail}")
    return lines


def alike(old: Verdict, now: Verdict) -> bool:
    """Wrong by about as much: within a factor of 10."""
    if now.kind != "wrong":
        return True
    if old.difference is None or now.difference is None:
        return old.difference == now.difference
    return 0.1 <= now.difference / old.difference <= 10


def stored_for_installed() -> support_page.Stack | None:
    return next((stack for stack in support_page.read().stacks if stack.versions == versions()), None)


@pytest.mark.slow
def test_the_installed_stack_behaves_as_lesson_03_says():
    stored = stored_for_installed()
    assert stored, f"no stored table for {versions()}: run tests/test_support_matrix.py --write newest"
    assert changes(stored, execute(stored.name, show=lambda text: None)) == []


@pytest.mark.parametrize("name", ["newest", "colab"])
def test_a_stored_table_is_whole(name):
    stack = next(stack for stack in support_page.read().stacks if stack.name == name)
    assert [cell.key for cell in stack.cells] == CASES
    assert all(words in repr(stack) and words in stack._repr_markdown_() for words in support_page.FEATURES.values())


def test_a_changed_verdict_is_reported():
    stored = support_page.read().stacks[0]
    assert changes(stored, stored) == []
    at = next(
        i for i, cell in enumerate(stored.cells) if cell.fixed and cell.stock.kind == "wrong" and cell.stock.difference
    )
    for stock, fixed in [
        (Verdict("equal", 0.0), None),  # upstream fixed it
        (stored.cells[at].stock, Verdict("raises", error="ValueError: no")),  # the helper broke
        (Verdict("wrong", 100 * stored.cells[at].stock.difference), stored.cells[at].fixed),
    ]:
        cell = dataclasses.replace(stored.cells[at], stock=stock, fixed=fixed)
        now = dataclasses.replace(stored, cells=(*stored.cells[:at], cell, *stored.cells[at + 1 :]))
        assert [line.split(": stored")[0] for line in changes(stored, now)] == [", ".join(cell.key)]


def test_the_other_stack_shows_where_it_differs():
    first = support_page.read().stacks[0]
    cells = (dataclasses.replace(first.cells[0], stock=Verdict("hangs")), *first.cells[1:])
    other = dataclasses.replace(first, name="other", cells=cells)
    assert (
        f"{len(cells) - 1} of {len(cells)} verdicts agree. The others:\n\n- MirroredStrategy, fit, training: hangs"
        in repr(support_page.Matrix((first, other)))
    )


def test_the_lesson_shows_the_page_of_the_stored_verdicts():
    page, matrix = support_matrix.read(), support_page.read()
    assert (repr(page), page._repr_markdown_()) == (repr(matrix), matrix._repr_markdown_())


def test_a_stack_and_its_page_are_read_as_written(tmp_path):
    matrix = support_page.read()
    support_page.write(matrix.stacks[0], tmp_path)
    assert support_page.read(tmp_path).stacks == matrix.stacks[:1]
    support_page.draw(matrix, tmp_path)
    assert repr(support_matrix.read(tmp_path)) == repr(matrix)


@pytest.mark.parametrize(
    "message, line",
    [
        ("To use this, do that.", "To use this, do that."),
        (
            "Exception encountered when calling Cond.call().\n\n"
            "\x1b[1m`merge_call` called while tracing\x1b[0m\n\nArguments received",
            "`merge_call` called while tracing",
        ),
        (
            "Graph execution error:\n\nDetected at node x\n"
            "(1) INVALID_ARGUMENT:  You must feed a value\n\t [[{{node x}}]]\n0 derived errors ignored.",
            "You must feed a value",
        ),
    ],
)
def test_an_error_is_quoted_without_its_frames(message, line):
    assert quoted(message) == line


def test_a_difference_is_neither_rounding_nor_nan():
    one = [[[[1.0, 2.0]]]]
    assert judge([[[[1.0, 2.000001]]]], one[0:1], 1e-5).kind == "equal"
    assert str(judge([[[[1.0, 2.2]]]], one[0:1], 1e-5)) == "wrong by 1e-01"
    assert str(judge([[[[1.0, math.nan]]]], one[0:1], 1e-5)) == "wrong: NaN"


def main() -> int:
    parser = argparse.ArgumentParser(description="Execute the support matrix on the installed stack.")
    parser.add_argument(
        "--write", metavar="NAME", help="store the verdicts as tests/support_verdicts/NAME.json: newest or colab"
    )
    name = parser.parse_args().write
    now = execute(name or "installed", show=lambda text: print(text, flush=True))
    print(now)
    if name:
        print(f"stored in {support_page.write(now)}")
        support_page.draw(support_page.read())
        return 0
    stored = stored_for_installed()
    found = changes(stored, now) if stored else [f"no stored table for {versions()}"]
    print("\n".join(["", *found]) if found else "\nas stored")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""The support matrix as data and as a page: verdicts stored per stack of versions, and what lesson 03 shows of them.

Standard library only. tests/test_support_matrix.py executes the verdicts; `write` stores them here in
support_verdicts, and `draw` writes the page of course_lib/support_matrix.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib import support_matrix
from course_lib.table import Table

VERDICTS = Path(__file__).parent / "support_verdicts"
STRATEGIES = {
    "mirrored": "MirroredStrategy, 4 replicas in one process",
    "multi-worker": "MultiWorkerMirroredStrategy, 2 worker processes",
    "parameter server": "ParameterServerStrategy, 2 worker processes and 1 server",
    "jax": "Keras on JAX, DataParallel over 4 devices",
}
APIS = {"fit": "fit", "loop": "custom loop"}
FEATURES = {
    "training": "training",
    "unbuilt": "optimizer not built beforehand",
    "count": "every update counted",
    "accumulation": "gradient_accumulation_steps=2",
    "overflow": "float16 overflow on one replica",
    "uneven": "uneven last batch",
    "batch_norm": "BatchNormalization",
    "steps_per_execution": "steps_per_execution=2",
    "jit_compile": "jit_compile=True",
    "callbacks": "callbacks",
    "save_and_restore": "save, restore on other replicas",
    "evaluate": "evaluate",
    "predict": "predict",
}
REMEDIES = {
    "MultiWorkerFit": "course_lib.training",
    "ExactPartialBatches": "course_lib.training",
    "replicated_step": "course_lib.training",
    "asynchronous_step": "course_lib.parameter_server",
    "count_every_update": "course_lib.parameter_server",
    "synchronized=True": "an argument of BatchNormalization",
    "AgreeingLossScale": "course_lib.training",
    "SeveralSteps": "course_lib.training",
}
NOT_RUN = "TPUStrategy: not run here, it needs a TPU with TensorFlow."


@dataclass(frozen=True)
class Verdict:
    """How one execution compares with one device.

    kind        "equal", "wrong" (it ran, and differs), "raises", "hangs" (until its limit) or
                "aborts" (the process ended)
    difference  the largest difference, relative to the largest magnitude of its array; None when it is not a number
    error       the exception and its telling line, or how the process ended
    """

    kind: str
    difference: float | None = None
    error: str = ""

    def __str__(self) -> str:
        if self.kind != "wrong":
            return self.kind
        return "wrong: NaN" if self.difference is None else f"wrong by {self.difference:.0e}"


@dataclass(frozen=True)
class Cell:
    """One feature under one strategy and API.

    stock      stock Keras' verdict
    tolerance  the relative difference that counts as equal
    reason     why that much
    issue      where upstream discusses a failure, as "keras issue 20585", or why there is none; "" when none was found
    remedies   what was added for the second verdict
    fixed     that verdict, or None
    """

    strategy: str
    api: str
    feature: str
    stock: Verdict
    tolerance: float
    reason: str
    issue: str = ""
    remedies: tuple[str, ...] = ()
    fixed: Verdict | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.strategy, self.api, self.feature

    def __str__(self) -> str:
        if not self.fixed:
            return str(self.stock)
        still = "also" if self.fixed.kind == self.stock.kind else f"→ {self.fixed}"
        return f"{self.stock} {still} with {' and '.join(self.remedies)}"


@dataclass(frozen=True, repr=False)
class Stack:
    """All cells of one set of versions; prints one table per strategy.

    name      "newest" or "colab"
    versions  package to version
    """

    name: str
    versions: dict[str, str]
    cells: tuple[Cell, ...]

    def cell(self, strategy: str, api: str, feature: str) -> Cell | None:
        return next((cell for cell in self.cells if cell.key == (strategy, api, feature)), None)

    @property
    def title(self) -> str:
        return f"{self.name}: " + ", ".join(f"{package} {version}" for package, version in self.versions.items())

    @property
    def failures_by_issue(self) -> dict[str, list[Cell]]:
        """Upstream issue to the failures that it is about; those without one come last."""
        failed = sorted((cell for cell in self.cells if cell.stock.kind != "equal"), key=lambda cell: not cell.issue)
        found: dict[str, list[Cell]] = {}
        for cell in failed:
            found.setdefault(cell.issue or "no upstream issue found", []).append(cell)
        return found

    @property
    def notes(self) -> list[str]:
        """What the words of the table mean, and where its remedies are."""
        tolerances = dict.fromkeys((cell.tolerance, cell.reason) for cell in self.cells)
        equal = ", or ".join(f"{tolerance:g} ({reason})" for tolerance, reason in tolerances)
        used = dict.fromkeys(remedy for cell in self.cells for remedy in cell.remedies)
        return [
            "wrong by: the largest difference from fit on one device, "
            "relative to the largest magnitude of the compared array",
            f"equal: at most {equal}",
            *(f"{remedy}: {REMEDIES[remedy]}" for remedy in used),
            NOT_RUN,
        ]

    def __repr__(self) -> str:
        lines = [self.title]
        for strategy, title in STRATEGIES.items():
            apis = [api for api in APIS if any(cell.key[:2] == (strategy, api) for cell in self.cells)]
            rows = [(FEATURES[f], *(self._words(strategy, api, f) for api in apis)) for f in FEATURES]
            if apis:
                lines += ["", title, repr(Table(["", *(APIS[api] for api in apis)], rows, left=range(1 + len(apis))))]
        lines += ["", *self.notes, "", "Upstream:"]
        lines += [f"  {issue}: {_named(cells)}" for issue, cells in self.failures_by_issue.items()]
        return "\n".join(lines)

    def _repr_markdown_(self) -> str:
        """IPython's hook: all strategies in one table, each failure with a link to its issue."""
        columns = list(dict.fromkeys(cell.key[:2] for cell in self.cells))
        header = ["", *(f"{STRATEGIES[strategy].split(',')[0]}, {APIS[api]}" for strategy, api in columns)]
        rows = [
            [words, *(_linked_cell(self.cell(*column, feature)) for column in columns)]
            for feature, words in FEATURES.items()
        ]
        table = ["| " + " | ".join(row) + " |" for row in (header, [":--"] * len(header), *rows)]
        upstream = [f"{_linked(issue)}: {_named(cells)}" for issue, cells in self.failures_by_issue.items()]
        return "\n".join([f"**{self.title}**", "", *table, "", *(f"- {line}" for line in (*self.notes, *upstream))])

    def _words(self, *key: str) -> str:
        return str(self.cell(*key) or "-")


@dataclass(frozen=True, repr=False)
class Matrix:
    """The stacks side by side: the first one whole, and where the others differ from it."""

    stacks: tuple[Stack, ...]

    def __repr__(self) -> str:
        return "\n\n".join([repr(self.stacks[0]), *map(self._differences, self.stacks[1:])])

    def _repr_markdown_(self) -> str:
        return "\n\n".join([self.stacks[0]._repr_markdown_(), *map(self._differences, self.stacks[1:])])

    def _differences(self, stack: Stack) -> str:
        first = self.stacks[0]
        changed = [cell for cell in stack.cells if kinds(cell) != kinds(first.cell(*cell.key))]
        summary = f"{stack.title}: {len(stack.cells) - len(changed)} of {len(stack.cells)} verdicts agree."
        lines = [
            f"- {STRATEGIES[c.strategy].split(',')[0]}, {APIS[c.api]}, {FEATURES[c.feature]}: {c}" for c in changed
        ]
        return "\n".join([f"{summary} The others:", "", *lines] if lines else [summary])


def kinds(cell: Cell | None) -> tuple[str, str] | None:
    """A cell's two verdicts without their numbers, which is what two runs and two stacks must share."""
    return cell and (cell.stock.kind, cell.fixed.kind if cell.fixed else "")


def read(folder: Path = VERDICTS) -> Matrix:
    """The stored stacks of a folder, the newest first."""
    files = sorted(Path(folder).glob("*.json"), key=lambda path: (path.stem != "newest", path.stem))
    return Matrix(tuple(_stack(json.loads(path.read_text(encoding="utf-8"))) for path in files))


def write(stack: Stack, folder: Path = VERDICTS) -> Path:
    """Store a stack as FOLDER/NAME.json."""
    path = Path(folder) / f"{stack.name}.json"
    path.write_text(json.dumps(asdict(stack), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def draw(matrix: Matrix, folder: Path = support_matrix.FOLDER) -> None:
    """Write the page that lesson 03 shows."""
    for name, content in (("page.txt", repr(matrix)), ("page.md", matrix._repr_markdown_())):
        (Path(folder) / name).write_text(content + "\n", encoding="utf-8")


def _stack(fields: dict) -> Stack:
    return Stack(fields["name"], fields["versions"], tuple(map(_cell, fields["cells"])))


def _cell(fields: dict) -> Cell:
    fixed = fields["fixed"] and Verdict(**fields["fixed"])
    return Cell(
        **{**fields, "stock": Verdict(**fields["stock"]), "fixed": fixed, "remedies": tuple(fields["remedies"])}
    )


def _named(cells: Sequence[Cell]) -> str:
    by_column: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        by_column.setdefault((cell.strategy, cell.api), []).append(FEATURES[cell.feature])
    where = "; ".join(
        f"{strategy}, {APIS[api]} ({', '.join(features)})" for (strategy, api), features in by_column.items()
    )
    said = next(
        (verdict.error for cell in cells for verdict in (cell.fixed, cell.stock) if verdict and verdict.error), ""
    )
    quoted = said.replace("`", "'")  # it stands in backticks itself, so that Markdown leaves it alone
    return f"{where}. It says: `{quoted}`" if said else where


def _linked_cell(cell: Cell | None) -> str:
    if cell is None or cell.stock.kind == "equal":
        return str(cell or "-")
    return (
        f"**{cell.stock}**"
        + str(cell).removeprefix(str(cell.stock))
        + (f" ({_linked(cell.issue)})" if cell.issue else "")
    )


def _linked(issue: str) -> str:
    """ "keras issue 20585" as a link; other words as they are."""
    if not issue.startswith("keras "):
        return issue
    _, kind, number = issue.split()
    return f"[{issue}](https://github.com/keras-team/keras/{'pull' if kind == 'pull' else 'issues'}/{number})"

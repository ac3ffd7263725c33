"""A learner's own check from a terminal: run the notebook, collect its verdicts.

Needs nbclient. The notebook is read, never written; what it has lost or doubled is
noted beside each verdict and costs no point by itself.
"""

import dataclasses
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from course_lib.errors import CourseError, telling_line
from course_lib.exercises import judges
from course_lib.exercises.check import VERDICT_MIME
from course_lib.exercises.notebook_cells import answer_notes, checked_questions, exercise_name, read_notebook
from course_lib.exercises.question import Question
from course_lib.exercises.verdict import Verdict

CELL_SECONDS = 600


def check_notebook(
    path: str | Path,
    report: Callable[[Verdict], None] = lambda verdict: None,
    at: Callable[[str], None] = lambda words: None,
) -> list[Verdict]:
    """Run a notebook in a fresh kernel and judge every question of its exercise.

    report     takes each verdict as soon as it is known; once more if a later check changes it
    at       takes where the run is, in words

    Returns  one verdict per question, in order; a right answer counts wherever
             in the notebook it was right
    Raises   CourseError for a file that is not a notebook of a known exercise
    """
    path = Path(path)
    cells = read_notebook(path)["cells"]
    exercise = _exercise_name(cells, path)
    questions = judges.questions(exercise)
    said: dict[str, Verdict] = {}

    def tell(question: Question, run: _Run, verdict: Verdict) -> None:
        verdict = dataclasses.replace(verdict, notes=tuple(answer_notes(question, cells, run.errors)))
        if said.get(question.name) != verdict:
            said[question.name] = verdict
            report(verdict)

    def look(run: _Run) -> None:
        at(f"cell {min(run.number + 1, len(cells))} of {len(cells)}")
        for question in questions:
            if not run.is_open(question.name):
                tell(question, run, run.verdicts[question.name])

    run = _run(cells, path.parent, exercise, [question.name for question in questions], look)
    for question in questions:
        tell(question, run, run.verdicts.get(question.name) or _unchecked(question, run))
    return [said[question.name] for question in questions]


def _exercise_name(cells: list[dict], path: Path) -> str:
    """The name in the set-up cell, so that a renamed copy is still known; else the file's."""
    name = exercise_name(cells) or path.stem
    if name not in judges.MODULES:
        raise CourseError(
            f"{path} is not an exercise of this course ({name!r}); the exercises are {', '.join(judges.MODULES)}"
        )
    return name


@dataclasses.dataclass
class _Run:
    """What a run gave: verdicts by question, a line per cell that raised, the cell it is at, its early end."""

    verdicts: dict[str, Verdict] = dataclasses.field(default_factory=dict)
    errors: dict[int, str] = dataclasses.field(default_factory=dict)
    number: int = 0
    ended_by: str = ""

    def take(self, cell) -> None:
        """Keep the cell's verdicts, a right one for good, and its error if it checks nothing."""
        outputs = cell.get("outputs", [])
        for bundle in (output.get("data", {}).get(VERDICT_MIME) for output in outputs):
            if bundle and not self.is_right(bundle["question"]):
                self.verdicts[bundle["question"]] = Verdict.from_dict(bundle)
        raised = [output for output in outputs if output.output_type == "error"]
        if raised and not checked_questions(cell):
            said = telling_line(raised[0].evalue)
            self.errors[self.number] = f"cell {self.number} raised {raised[0].ename}: {said}"

    def is_right(self, question: str) -> bool:
        return question in self.verdicts and self.verdicts[question].right

    def is_open(self, question: str) -> bool:
        """Its check is gone, or stood above its answer."""
        return question not in self.verdicts or self.verdicts[question].is_missing


def _run(cells: list[dict], folder: Path, exercise: str, questions: list[str], look: Callable[[_Run], None]) -> _Run:
    import nbformat
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    ours, run = nbformat.v4.new_notebook(cells=[_fresh(cell) for cell in cells]), _Run()
    client = _client(ours, folder)

    def execute(cells) -> None:
        for cell in cells:
            run.number += 1
            client.execute_cell(cell, run.number - 1)
            run.take(cell)
            look(run)

    try:
        with client.setup_kernel(cleanup_kc=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            execute(list(ours.cells))
            late = [nbformat.v4.new_code_cell(_late_check(exercise, name)) for name in questions if run.is_open(name)]
            ours.cells += late
            execute(late)
    except DeadKernelError:
        run.ended_by = f"the kernel died in cell {run.number}; out of memory, or an exit() there?"
    except CellTimeoutError:
        run.ended_by = f"cell {run.number} ran for more than {CELL_SECONDS} s and was stopped"
    return run


def _fresh(cell: dict):
    """The cell's code alone: old outputs must not count, nor tags change how it runs."""
    import nbformat

    make = nbformat.v4.new_code_cell if cell["cell_type"] == "code" else nbformat.v4.new_markdown_cell
    return make(cell["source"])


def _client(notebook, folder: Path):
    """A client for a fresh kernel of this very Python, whatever kernels are registered."""
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    class ThisPython(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

    return NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_spec_manager=ThisPython()),
        timeout=CELL_SECONDS,
        allow_errors=True,
        extra_arguments=["--log-level=ERROR"],  # the kernel's own warnings are no answer to the learner
        log=logging.Logger("nbclient", logging.CRITICAL + 1),  # the verdicts say that the kernel died
        resources={"metadata": {"path": str(folder)}},
    )


def _late_check(exercise: str, question: str) -> str:
    return f'from course_lib.exercises import Exercise\nExercise("{exercise}")("{question}")'


def _unchecked(question: Question, run: _Run) -> Verdict:
    reason = run.ended_by or next(iter(run.errors.values()), "its check gave no verdict")
    return Verdict(question.name, question.title, False, 0, question.points, problem=f"was not checked: {reason}")

"""Execute notebooks from the top and store what they show. Needs nbclient; a maintainer's tool.

What is stored holds nothing that changes from run to run without need: no time
stamps, no Python version, no traceback with a machine's paths. A long cell keeps
about how long it took, which JupyterLab shows beside the seconds of the reader's run.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.exercises.notebook_cells import read_notebook
from course_lib.lessons import NOTEBOOKS
from course_lib.staff.grade.results import write_whole
from course_lib.staff.set_up_cell import AS_IT_IS

CELL_SECONDS = 600
WIDGETS = "application/vnd.jupyter.widget-"  # a widget's place and state: both name a kernel that is gone
RAISES = "raises-exception"  # Jupyter's own tag for a cell that fails on purpose
LONG = (5, 10, 20, 30, 45, 60, 90, 120, 180)  # seconds, in steps that another run rarely leaves


class CellFailed(CourseError):
    """A cell did not do as it should, so the notebook was not stored."""


@dataclass(frozen=True)
class Execution:
    """One notebook, run from top to bottom in a fresh kernel; prints as one line.

    seconds     from the first cell to the last, the kernel's start left out
    peak_bytes  the most memory that the kernel's own process held, without its
                children's; None where the system does not tell
    """

    path: Path
    seconds: float
    peak_bytes: int | None

    def __str__(self) -> str:
        peak = "unknown" if self.peak_bytes is None else f"{self.peak_bytes / 2**30:.2f} GiB"
        return f"{self.path}: {self.seconds:.1f} s, peak memory {peak}"


def execute(path: Path, store: bool) -> Execution:
    """Run a notebook in its own folder, and store its outputs when every cell did as it should.

    A cell that is tagged raises-exception has to raise; no other cell may.

    store   False leaves the file as it is
    Raises  CellFailed naming the cell; CourseError for a file that is not a notebook
    """
    import nbformat

    read_notebook(path)  # its complaints are for people
    notebook = nbformat.read(path, as_version=4)
    seconds, peak_bytes = _run(notebook, path)
    if store:
        write_whole(path, nbformat.writes(clean(notebook, path.stem)) + "\n")
    return Execution(path, seconds, peak_bytes)


def metadata(name: str) -> dict:
    """What a lesson's or an exercise's file says of itself: its kernel, and the runtime that Colab opens it in."""
    chip = {"accelerator": "TPU"} if name in NOTEBOOKS and NOTEBOOKS[name].runtime == "TPU" else {}
    colab = {"name": f"{name}.ipynb", "provenance": [], "toc_visible": True}
    return chip | {
        "colab": colab | ({"gpuType": "V5E1"} if chip else {}),
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def cell_metadata(cell: dict) -> dict:
    """What a cell's own metadata keeps: its tags, its seconds, and that Colab folds the set-up cell under its title."""
    folded = {"cellView": "form"} if AS_IT_IS.match(cell["source"]) else {}
    had = cell.get("metadata", {})
    return folded | {name: had[name] for name in ("tags", "seconds") if had.get(name)}


def about(seconds: float, before: int = 0) -> int:
    """A long cell's seconds as they are stored; 0 for a short one; what was stored before, while nearly right."""
    if before / 1.5 <= seconds <= before * 1.5:
        return before
    return min(LONG, key=lambda one: abs(one - seconds)) if seconds >= 4 else 0


def clean(notebook, name: str):
    """The notebook with what would differ on another machine, or in another front end, taken out."""
    for cell in notebook.cells:
        cell.metadata = cell_metadata(cell)
        if cell.cell_type == "code":
            cell.outputs = _merged(cell.outputs)
            for output in cell.outputs:
                if output.output_type == "error":
                    output.traceback = [f"{output.ename}: {output.evalue}"]
                for shown in (output.get("data", {}), output.get("metadata", {})):
                    for kind in [kind for kind in shown if kind.startswith(WIDGETS)]:
                        del shown[kind]
    notebook.metadata = metadata(name)
    return notebook


def _run(notebook, path: Path) -> tuple[float, int | None]:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=CELL_SECONDS,
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],  # the kernel's own log, on the terminal
        resources={"metadata": {"path": str(path.parent)}},
    )
    with client.setup_kernel():
        began = time.perf_counter()
        for number, cell in enumerate(notebook.cells, 1):
            at = time.perf_counter()
            try:
                client.execute_cell(cell, number - 1)
            except CellExecutionError as error:
                line = error.evalue.strip().partition("\n")[0]
                raise CellFailed(f"{path}, cell {number} raised {error.ename}: {line}") from None
            except CellTimeoutError:
                raise CellFailed(f"{path}, cell {number} ran for more than {CELL_SECONDS} s") from None
            except DeadKernelError:
                raise CellFailed(f"{path}, cell {number}: the kernel died; was the memory enough?") from None
            raised = any(output.output_type == "error" for output in cell.get("outputs", ()))
            if RAISES in cell.metadata.get("tags", ()) and not raised:
                raise CellFailed(f"{path}, cell {number} is tagged {RAISES} and did not raise")
            cell.metadata["seconds"] = about(time.perf_counter() - at, cell.metadata.get("seconds", 0))
        return time.perf_counter() - began, _peak_bytes(client)


def _peak_bytes(client) -> int | None:
    """Asked of the kernel itself, the only one who knows on every system."""
    from nbclient.util import run_sync

    unit = "1 if __import__('sys').platform == 'darwin' else 1024"  # getrusage counts bytes there, KiB elsewhere
    expression = f"__import__('resource').getrusage(0).ru_maxrss * ({unit})"
    ask = run_sync(client.kc.execute_interactive)
    reply = ask("", silent=True, user_expressions={"peak": expression}, timeout=CELL_SECONDS)
    text = reply["content"].get("user_expressions", {}).get("peak", {}).get("data", {}).get("text/plain")
    return int(text) if text else None


def _merged(outputs: list) -> list:
    """Neighbouring pieces of one stream made one: where they were cut is the machine's doing."""
    kept = []
    for output in outputs:
        if kept and output.output_type == "stream" and output.name == kept[-1].get("name"):
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept

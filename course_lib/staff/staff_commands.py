"""The subcommands of `course` that need a checkout: what they run, and the arguments they take.

course_lib.cli imports this when one of them is called; what a subcommand needs is imported when it runs.
"""

import argparse
from pathlib import Path

from course_lib.staff.certificate import certificate_command
from course_lib.staff.grade import grade_command

CHECKOUT = Path(__file__).resolve().parents[2]


def new_exercises(arguments: argparse.Namespace) -> int:
    """Write exercises/ from solutions/."""
    from course_lib.staff.new_exercises import generate, store_answers

    for generated in generate(CHECKOUT / "solutions", CHECKOUT / "exercises"):
        print(generated)
    store_answers(CHECKOUT / "solutions")
    return 0


def run_notebooks(arguments: argparse.Namespace) -> int:
    """Execute notebooks and store their outputs, each as soon as it is done."""
    from course_lib.staff.store_outputs import CellFailed, execute

    stored = (path for name in ("notebooks", "solutions") for path in sorted((CHECKOUT / name).glob("*.ipynb")))
    paths, failures = arguments.notebook or list(stored), 0
    for number, path in enumerate(paths, 1):
        print(f"[{number}/{len(paths)}] {path.name}", flush=True)
        try:
            print(f"  {execute(path, store=not arguments.check)}", flush=True)
        except CellFailed as failure:
            failures += 1
            print(f"  {failure}", flush=True)
    print(f"{len(paths) - failures} of {len(paths)} notebooks ran" + ("" if arguments.check else " and are stored"))
    return 1 if failures else 0


def badges(arguments: argparse.Namespace) -> int:
    """Point the Colab badges, and what Colab installs, at your fork on GitHub."""
    from course_lib.staff.fork_badges import point_at

    changed = point_at(arguments.repo, CHECKOUT)
    for pointed in changed:
        print(pointed)
    print(f"{len(changed)} files changed" if changed else f"all files name {arguments.repo} already")
    return 0


def colab(arguments: argparse.Namespace) -> int:
    """Write one self-contained notebook for Colab, with this package inside."""
    from course_lib.staff.colab_copy import write

    out = arguments.out or Path(f"{arguments.notebook.stem}_colab.ipynb")
    write(arguments.notebook, out, CHECKOUT)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB; in Colab, File > Upload notebook opens it")
    return 0


def book(arguments: argparse.Namespace) -> int:
    """Write lessons, exercises and the library's reference as a web site, to read in a browser."""
    from course_lib.staff.site import build

    print(build(CHECKOUT, arguments.out or CHECKOUT / "build" / "book"))
    return 0


def _add_run_notebooks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", nargs="*", type=Path, help="files; all lessons and solutions by default")
    parser.add_argument("--check", action="store_true", help="store nothing, print time and peak memory only")


def _add_badges(parser: argparse.ArgumentParser) -> None:
    text = "the repository on GitHub to open and install"
    parser.add_argument("--repo", required=True, metavar="OWNER/NAME", help=text)


def _add_colab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="a lesson's or an exercise's file")
    text = "the file to write; NAME_colab.ipynb here by default"
    parser.add_argument("--out", type=Path, metavar="FILE", help=text)


def _add_book(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to write; build/book by default")


COMMANDS = {
    **certificate_command.COMMANDS,
    "grade": (grade_command.grade, grade_command.add_arguments, grade_command.EXAMPLE),
    "colab": (colab, _add_colab, "course colab notebooks/02_data_parallelism.ipynb --out 02.ipynb"),
    "badges": (badges, _add_badges, "course badges --repo jane/course"),
    "book": (book, _add_book, "course book --out /tmp/book"),
    "new-exercises": (new_exercises, lambda parser: None, "course new-exercises"),
    "run-notebooks": (run_notebooks, _add_run_notebooks, "course run-notebooks --check notebooks/11_capstone.ipynb"),
}

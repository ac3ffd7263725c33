"""The subcommands of `course` that need a checkout: what they run, and the arguments they take.

course_lib.cli imports this when one of them is called; what a subcommand needs is imported when it runs.
"""

import argparse
import time
from pathlib import Path

from course_lib.errors import CourseError
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
        arguments.at(path.stem)
        try:
            executed = execute(path, store=not arguments.check)
            print(f"  {executed}", flush=True)
        except CellFailed as failure:
            failures += 1
            print(f"  {failure}", flush=True)
    print(f"{len(paths) - failures} of {len(paths)} notebooks ran" + ("" if arguments.check else " and are stored"))
    return 1 if failures else 0


def badges(arguments: argparse.Namespace) -> int:
    """Point the Colab badges, and what Colab installs, at your fork on GitHub."""
    from course_lib.staff.fork_badges import home_of, point_at

    home = home_of(arguments.repo, CHECKOUT)
    changed = point_at(home, CHECKOUT)
    print(f"{len(changed)} files now name {home}" if changed else f"all files name {home} already")
    return 0


def colab(arguments: argparse.Namespace) -> int:
    """Write self-contained notebooks for Colab, with this package inside: one, or all in a zip."""
    from course_lib.staff.colab_copy import write, write_all

    if (arguments.notebook is None) != arguments.all:
        raise CourseError("course colab takes one notebook, or --all")
    began = time.monotonic()
    if arguments.all:
        out = arguments.out or Path("course_colab.zip")
        what = f"{write_all(out, CHECKOUT)} notebooks"
        how = "unpack it; in Colab, File > Upload notebook opens one, or put the folder in Drive"
    else:
        out, what = arguments.out or Path(f"{arguments.notebook.stem}_colab.ipynb"), "one notebook"
        write(arguments.notebook, out, CHECKOUT)
        how = "in Colab, File > Upload notebook opens it"
    print(f"{out}: {what}, {out.stat().st_size / 1e6:.1f} MB, in {time.monotonic() - began:.0f} s; {how}")
    return 0


def book(arguments: argparse.Namespace) -> int:
    """Write lessons, exercises and the library's reference as a web site, to read in a browser."""
    from course_lib.staff.site import build

    print(build(CHECKOUT, arguments.out or CHECKOUT / "build" / "book", arguments.at))
    return 0


def _add_run_notebooks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", nargs="*", type=Path, help="files; all lessons and solutions by default")
    parser.add_argument("--check", action="store_true", help="store nothing, print time and peak memory only")


def _add_badges(parser: argparse.ArgumentParser) -> None:
    text = "the repository on GitHub; by default the git remote origin, and the tag or commit that is checked out"
    parser.add_argument("--repo", metavar="OWNER/NAME[@COMMIT]", help=text)


def _add_colab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", nargs="?", type=Path, metavar="NOTEBOOK", help="a lesson's or an exercise's file")
    parser.add_argument("--all", action="store_true", help="all lessons and exercises, in one zip")
    text = "the file to write; NAME_colab.ipynb or course_colab.zip here by default"
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

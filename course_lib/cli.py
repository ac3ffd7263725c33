"""The `course` command: one subcommand per thing you do from a terminal.

Exit code 0 is a fine answer, 1 a negative one, 2 a mistake in the call. Each
subcommand imports what it needs only when it runs, so `course --help` is quick.
"""

import argparse
import json
import os
import socket
import sys
from pathlib import Path

from course_lib.errors import CourseError

FIRST_PAGE = "/lab/tree/notebooks/00_start_here.ipynb"


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except CourseError as error:
        print(f"course {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"course {arguments.command}: stopped", file=sys.stderr)
        return 130


def doctor(arguments: argparse.Namespace) -> int:
    """Say what this machine has and what each lesson will do on it."""
    from course_lib.doctor import NEEDS, diagnose

    diagnosis = diagnose(NEEDS, Path.cwd())
    _say(diagnosis, arguments.json)
    return 0 if diagnosis.ready else 1


def lab(arguments: argparse.Namespace) -> int:
    """Become JupyterLab, open on the first lesson."""
    if arguments.port is not None:
        _require_free_port(arguments.port)
    os.chdir(_checkout())
    command = lab_command(arguments.port, arguments.browser)
    print("Opening JupyterLab; stop it with Ctrl-C twice.", flush=True)
    os.execv(command[0], command)


def lab_command(port: int | None, browser: bool) -> list[str]:
    """The command line of a JupyterLab that only this machine reaches.

    port  None takes the first free one from Jupyter's own default on
    """
    command = [sys.executable, "-m", "jupyterlab", "--ServerApp.root_dir=.", f"--LabApp.default_url={FIRST_PAGE}"]
    settings = Path(__file__).with_name("lab")  # whole names in the list of lessons, and no question about news
    command += ["--ip=127.0.0.1", f"--LabApp.app_settings_dir={settings}"]
    command += [] if port is None else [f"--port={port}", "--ServerApp.port_retries=0"]
    command += [] if browser else ["--no-browser"]
    # Containers run as root, where Jupyter refuses to start; loopback and its token still guard it.
    return [*command, "--allow-root"]


def check(arguments: argparse.Namespace) -> int:
    """Run an exercise in a fresh kernel and show its verdicts."""
    from course_lib.exercises.run_notebook import check_notebook

    verdicts = check_notebook(_exercise_path(arguments.exercise))
    if arguments.json:
        print(json.dumps([verdict.as_dict() for verdict in verdicts], indent=2))
    else:
        print("\n\n".join(verdict.message for verdict in verdicts))
        earned, of = sum(verdict.points for verdict in verdicts), sum(verdict.of for verdict in verdicts)
        print(f"\n{earned} of {of} points")
    return 0 if all(verdict.right for verdict in verdicts) else 1


def progress(arguments: argparse.Namespace) -> int:
    """Show the points earned so far, what is open, and the next step."""
    from course_lib.progress import read

    _say(read(arguments.folder or _checkout() / "exercises"), arguments.json)
    return 0


def certificate(arguments: argparse.Namespace) -> int:
    """Write your completion certificate: a page that your instructor can verify and sign."""
    from course_lib.staff.certificate.certificate_command import certificate

    return certificate(arguments, arguments.folder or _checkout() / "exercises")


def new_exercises(arguments: argparse.Namespace) -> int:
    """Write exercises/ from solutions/."""
    from course_lib.staff.new_exercises import generate, store_answers

    for generated in generate(_checkout() / "solutions", _checkout() / "exercises"):
        print(generated)
    store_answers(_checkout() / "solutions")
    return 0


def run_notebooks(arguments: argparse.Namespace) -> int:
    """Execute notebooks and store their outputs, each as soon as it is done."""
    from course_lib.staff.store_outputs import CellFailed, execute

    paths, failures = arguments.notebook or _authored_notebooks(), 0
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

    changed = point_at(arguments.repo, _checkout())
    for pointed in changed:
        print(pointed)
    print(f"{len(changed)} files changed" if changed else f"all files name {arguments.repo} already")
    return 0


def colab(arguments: argparse.Namespace) -> int:
    """Write one self-contained notebook for Colab, with this package inside."""
    from course_lib.staff.colab_copy import write

    out = arguments.out or Path(f"{arguments.notebook.stem}_colab.ipynb")
    write(arguments.notebook, out, _checkout())
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB; in Colab, File > Upload notebook opens it")
    return 0


def book(arguments: argparse.Namespace) -> int:
    """Write lessons, exercises and the library's reference as a web site, to read in a browser."""
    from course_lib.staff.site import build

    print(build(_checkout(), arguments.out or _checkout() / "build" / "book"))
    return 0


def _say(answer, as_json: bool) -> None:
    print(json.dumps(answer.as_dict(), indent=2) if as_json else answer)


def _checkout() -> Path:
    """The course's folder, which holds notebooks/ beside this package."""
    folder = Path(__file__).resolve().parent.parent
    if not (folder / "notebooks").is_dir():
        raise CourseError(f"{folder} holds no notebooks; clone the course, and there run `make lab` once")
    return folder


def _authored_notebooks() -> list[Path]:
    return [path for name in ("notebooks", "solutions") for path in sorted((_checkout() / name).glob("*.ipynb"))]


def _exercise_path(exercise: str) -> Path:
    """A file as named, or the one in exercises/ whose name begins so."""
    if exercise.endswith(".ipynb") or os.sep in exercise:
        return Path(exercise)
    found = sorted((_checkout() / "exercises").glob(f"{exercise}*.ipynb"))
    if len(found) != 1:
        names = ", ".join(path.stem for path in found) or "none"
        raise CourseError(f"{len(found)} exercises begin with {exercise!r} ({names}); name one, or its file")
    return found[0]


def _require_free_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Jupyter does: a port just left is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CourseError(
                f"port {port} cannot be used ({error.strerror}); leave --port out to get a free one"
            ) from None


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"a port is a whole number from 1 to 65535, not {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="course", description="Work through the distributed training course.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run, example: str) -> argparse.ArgumentParser:
        text = run.__doc__
        added = commands.add_parser(name, help=text, description=text, epilog=f"Example: {example}")
        added.set_defaults(run=run)
        return added

    def add_json(added: argparse.ArgumentParser) -> None:
        added.add_argument("--json", action="store_true", help="print JSON for a program")

    add_json(command("doctor", doctor, "course doctor --json"))

    added = command("lab", lab, "course lab --port 8890 --no-browser")
    added.add_argument("--port", type=_port, help="use this port of 127.0.0.1; without it, a free one")
    added.add_argument(
        "--no-browser", dest="browser", action="store_false", help="print the address instead of opening it"
    )

    added = command("check", check, "course check 02_data_parallelism")
    added.add_argument("exercise", help="a notebook's file, or how its name in exercises/ begins")
    add_json(added)

    added = command("progress", progress, "course progress --json")
    added.add_argument("--folder", type=Path, help="the folder of your exercise notebooks; exercises/ by default")
    add_json(added)

    command("new-exercises", new_exercises, "course new-exercises")

    added = command("run-notebooks", run_notebooks, "course run-notebooks --check notebooks/02_data_parallelism.ipynb")
    added.add_argument("notebook", nargs="*", type=Path, help="files; all lessons and solutions by default")
    added.add_argument("--check", action="store_true", help="store nothing, print time and peak memory only")

    added = command("badges", badges, "course badges --repo jane/course")
    added.add_argument(
        "--repo", required=True, metavar="OWNER/NAME", help="the repository on GitHub to open and install"
    )

    added = command("colab", colab, "course colab notebooks/02_data_parallelism.ipynb --out 02.ipynb")
    added.add_argument("notebook", type=Path, metavar="NOTEBOOK", help="a lesson's or an exercise's file")
    added.add_argument("--out", type=Path, metavar="FILE", help="the file to write; NAME_colab.ipynb here by default")

    added = command("book", book, "course book --out /tmp/book")
    added.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to write; build/book by default")

    # These import no framework, so that --help stays quick.
    from course_lib.cluster.cluster_command import add_commands
    from course_lib.planner import plan_command as planning
    from course_lib.staff.certificate import certificate_command as certifying
    from course_lib.staff.grade import grade_command as grading
    from course_lib.tpu.compile_command import EXAMPLE, add_arguments, compile_model

    certifying.add_certificate_arguments(command("certificate", certificate, certifying.CERTIFICATE_EXAMPLE))
    certifying.add_verify_arguments(command("verify", certifying.verify, certifying.VERIFY_EXAMPLE))
    grading.add_arguments(command("grade", grading.grade, grading.EXAMPLE))
    add_arguments(command("compile", compile_model, EXAMPLE))
    planning.add_arguments(command("plan", planning.plan, planning.EXAMPLE))

    text = "Run a distributed job on this machine, or write it for Slurm or Kubernetes."
    add_commands(commands.add_parser("cluster", help=text, description=text))
    return parser


if __name__ == "__main__":
    sys.exit(main())

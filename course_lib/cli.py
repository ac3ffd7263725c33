"""The `course` command: one subcommand per thing you do from a terminal. Standard library only.

Exit code 0 is a fine answer, 1 a negative one, 2 a mistake in the call. Only the subcommand that is called imports
what it needs, so that `course --help` is quick and works where nothing but this package is installed.
"""

import argparse
import json
import os
import socket
import sys
from pathlib import Path

from course_lib import command_list
from course_lib.errors import CourseError
from course_lib.waiting import waiting

VERSION = "0.1.0"  # pyproject.toml has the same
READER_GONE = 141  # what a shell says of a program that SIGPIPE ended
FIRST_PAGE = "/lab/tree/notebooks/00_start_here.ipynb"
PACKAGE = Path(__file__).resolve().parent


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in ([], ["help"]):
        argv = [*argv[1:2], "--help"]
    command = " ".join(["course", *argv[:1]])
    try:
        if not argv[0].startswith("-") and argv[0] not in command_list.NAMES:
            raise CourseError(f"there is no such command; {command_list.near(argv[0])}`course --help` names all")
        arguments = _parser().parse_args(argv)
        with waiting(command) as arguments.at:  # takes what the subcommand is at, in words
            answer = arguments.run(arguments)
        sys.stdout.flush()  # a reader that has gone is met here, and not at Python's end
        return answer
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still flushes
        return READER_GONE
    except CourseError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").startswith(PACKAGE.name):
            raise
        print(f"{command}: it needs {error.name}, which is not installed; see `course doctor`", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{command}: stopped", file=sys.stderr)
        return 130


def doctor(arguments: argparse.Namespace) -> int:
    """Say what this machine has and what each lesson will do on it."""
    from course_lib.doctor import diagnose
    from course_lib.lessons import LESSONS

    diagnosis = diagnose(LESSONS.values(), Path.cwd())
    _say(diagnosis, arguments.json)
    return 0 if diagnosis.ready else 1


def lab(arguments: argparse.Namespace) -> int:
    """Open JupyterLab on the first lesson."""
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
    command += [f"--LabApp.extra_labextensions_path={settings / 'extensions'}"]  # our own, of one file
    command += [] if port is None else [f"--port={port}", "--ServerApp.port_retries=0"]
    command += [] if browser else ["--no-browser"]
    # Containers run as root, where Jupyter refuses to start; loopback and its token still guard it.
    return [*command, "--allow-root"]


def check(arguments: argparse.Namespace) -> int:
    """Run an exercise in a fresh kernel and show its verdicts."""
    from course_lib.exercises.run_notebook import check_notebook

    path, show = _exercise_path(arguments.exercise), lambda verdict: print(f"{verdict.message}\n", flush=True)
    show = (lambda verdict: None) if arguments.json else show
    verdicts = check_notebook(path, show, lambda words: arguments.at(f"{path.stem}, {words}"))
    if arguments.json:
        print(json.dumps([verdict.as_dict() for verdict in verdicts], indent=2))
    else:
        earned, of = sum(verdict.points for verdict in verdicts), sum(verdict.of for verdict in verdicts)
        print(f"{earned} of {of} points")
    return 0 if all(verdict.right for verdict in verdicts) else 1


def progress(arguments: argparse.Namespace) -> int:
    """Show the points earned so far, what is open, and the next step."""
    from course_lib.progress import read

    folder = arguments.folder or exercises_folder()
    if not folder.is_dir():
        raise CourseError(
            f"there is no folder {folder}; without --folder, your exercises are looked for where they are"
        )
    _say(read(folder), arguments.json)
    return 0


def update(arguments: argparse.Namespace) -> int:
    """Bring this clone to the newest version, and keep every notebook that you wrote in."""
    from course_lib.update import update as bring

    print(bring(_checkout()))
    return 0


def program(arguments: argparse.Namespace) -> int:
    """Print a plain program to take away; without a name, say which there are."""
    from course_lib import programs

    if arguments.name:
        print(programs.text(arguments.name), end="")
    else:
        print(*(f"{name:<18} {programs.headline(name)}" for name in programs.NAMES), sep="\n")
    return 0


def _say(answer, as_json: bool) -> None:
    print(json.dumps(answer.as_dict(), indent=2) if as_json else answer)


def exercises_folder() -> Path:
    """exercises/ of the checkout; where there is none, the folder that this command runs in."""
    folder = PACKAGE.parent / "exercises"
    return folder if folder.is_dir() else Path.cwd()


def _checkout() -> Path:
    """The course's folder, which holds notebooks/ beside this package."""
    folder = PACKAGE.parent
    if not (folder / "notebooks").is_dir():
        raise CourseError(f"{folder} holds no notebooks; clone the course, and there run `make lab` once")
    return folder


def _exercise_path(exercise: str) -> Path:
    """A file as named, or the one in exercises/ that begins so."""
    if exercise.endswith(".ipynb") or os.sep in exercise:
        return Path(exercise)
    every = sorted(exercises_folder().glob("[0-9]*.ipynb"))
    found = [path for path in every if path.stem.startswith(exercise)]
    if len(found) != 1:
        names = ", ".join(path.stem for path in found or every) or "none"
        raise CourseError(f"{len(found)} exercises begin with {exercise!r}; name one of {names}, or its file")
    return found[0]


def _require_free_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Jupyter does: a port just left is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise CourseError(f"port {port} cannot be used ({error.strerror}); omit --port to get a free one") from None


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"a port is a whole number of 1 to 65535, not {text!r}")
    return int(text)


# What each subcommand takes.


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for a program")


def _add_lab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=_port, help="use this port of 127.0.0.1; without it, a free one")
    text = "print the address instead of opening it"
    parser.add_argument("--no-browser", dest="browser", action="store_false", help=text)


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("exercise", help="a notebook's file, or how its name in exercises/ begins")
    _add_json(parser)


def _add_progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, help="the folder of your exercises; exercises/ by default")
    _add_json(parser)


def _add_program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="such as multi-worker-loop; write it to a file with > train.py")


# Per subcommand: what runs it, what gives its parser the arguments, and a call that parses.
COMMANDS = {
    "doctor": (doctor, _add_json, "course doctor --json"),
    "lab": (lab, _add_lab, "course lab --port 8890 --no-browser"),
    "check": (check, _add_check, "course check 02_data_parallelism"),
    "progress": (progress, _add_progress, "course progress --json"),
    "program": (program, _add_program, "course program multi-worker-loop"),
    "update": (update, lambda parser: None, "course update"),
}


def _found(name: str) -> tuple:
    """The subcommand, as in COMMANDS. Raises CourseError where its part of the course is not installed."""
    if name in COMMANDS:
        return COMMANDS[name]
    if name == "plan":
        from course_lib.planner.plan_command import EXAMPLE, add_arguments, plan

        return plan, add_arguments, EXAMPLE
    if name == "compile":
        from course_lib.tpu.compile_command import EXAMPLE, add_arguments, compile_model

        return compile_model, add_arguments, EXAMPLE
    if name == "cluster":
        from course_lib.cluster.cluster_command import add_commands

        return None, add_commands, "course cluster run train.py:train --workers 2"
    if not (PACKAGE / "staff").is_dir():  # the wheel leaves it out
        raise CourseError(
            "this is for a checkout of the course: `git clone` its repository, run `make lab` there once, and call "
            "the command from there"
        )
    from course_lib.staff.staff_commands import COMMANDS as OTHERS

    return OTHERS[name]


class _LateParser(argparse.ArgumentParser):
    """The parser of one subcommand, which imports what it needs when the subcommand is called."""

    name = ""

    def parse_known_args(self, args=None, namespace=None):
        """As argparse has it."""
        if self.name:
            run, add, example = _found(self.name)
            self.description = run.__doc__ if run else command_list.LEARNERS[self.name]
            self.epilog = f"Example: {example}"
            self.name = ""
            if run:  # the ways of `course cluster` have their own
                self.set_defaults(run=run)
            add(self)
        return super().parse_known_args(args, namespace)


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    texts = {"usage": "course COMMAND ...", "description": command_list.described(), "epilog": command_list.EPILOG}
    parser = argparse.ArgumentParser(prog="course", formatter_class=plain, **texts)
    parser.add_argument("--version", action="version", version=VERSION, help="print the version and exit")
    hidden = {"help": argparse.SUPPRESS, "required": True, "prog": "course"}  # the commands are listed above
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_LateParser, **hidden)
    for name in command_list.NAMES:
        parsers.add_parser(name).name = name
    return parser


if __name__ == "__main__":
    sys.exit(main())

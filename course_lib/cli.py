"""The `course` command: one subcommand per thing you do from a terminal.

Exit code 0 is a fine answer, 1 a negative one, 2 a mistake in the call. Each
subcommand imports what it needs only when it runs, so `course --help` is quick.
"""

import argparse
import sys

from course_lib.errors import CourseError


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="course", description="Work through the distributed training course.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    return parser

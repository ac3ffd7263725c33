"""`course grade` on the command line: what it takes, checked before anything heavy is imported."""

import argparse
from pathlib import Path

from course_lib.staff.grade.sandbox import Limits

EXAMPLE = "course grade week3.zip --out week3-marks --jobs 4"
FORMS = ("canvas", "moodle", "gradescope")


def grade(arguments: argparse.Namespace) -> int:
    """Grade a class: a folder, a zip or single notebooks, each in its own sandbox."""
    from course_lib.staff.grade.grade_class import grade_class

    return grade_class(arguments)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `course grade` takes."""
    limits = Limits()
    parser.add_argument(
        "path",
        nargs="+",
        type=Path,
        help="folders, zips and notebooks; see the README for how each notebook finds its learner",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="marks, feedback pages and stored results come there; the same command goes on from them",
    )
    parser.add_argument(
        "--jobs",
        type=_count,
        default=1,
        metavar="N",
        help="submissions graded at a time, 1 by default; take as many as you have cores",
    )
    parser.add_argument(
        "--secret",
        type=Path,
        metavar="FILE",
        help="a file of yours that the inputs are drawn from; without it, FOLDER/secret, made once",
    )
    parser.add_argument(
        "--export",
        action="append",
        choices=FORMS,
        default=[],
        help="also write the marks as this system imports them; may be repeated",
    )
    for name, unit in (
        ("cell_seconds", "for one cell or check"),
        ("seconds", "for one notebook"),
        ("memory_gib", "for one notebook"),
    ):
        option, default = f"--{name.replace('_', '-')}", getattr(limits, name)
        parser.add_argument(
            option, type=_amount, default=default, metavar="X", help=f"limit {unit}; {default:g} by default"
        )
    parser.add_argument(
        "--slurm", type=_count, metavar="TASKS", help="write and submit an array of so many tasks, and a merge"
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help='an option for sbatch, such as "--partition=cpu"; may be repeated',
    )
    parser.add_argument("--wait", action="store_true", help="with --slurm: wait until the marks are there")
    parser.add_argument(
        "--share",
        type=_share_of,
        metavar="K/N",
        help="grade the K-th of N shares alone, from 0; the tasks of --slurm call it so",
    )
    text = "use no sandbox: learner code can then read and change all that you can"
    parser.add_argument("--run-submissions-as-me", action="store_true", help=text)
    parser.add_argument(
        "--json", action="store_true", help="print the summary's figures as JSON, and progress to stderr"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"a whole number of 1 to 10000 is expected, not {text!r}")
    return int(text)


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = 0
    if not 0 < amount < 1e6:
        raise argparse.ArgumentTypeError(f"a positive number is expected, not {text!r}")
    return amount


def _share_of(text: str) -> tuple[int, int]:
    mine, slash, shares = text.partition("/")
    if not (slash and mine.isdecimal() and shares.isdecimal() and int(mine) < int(shares)):
        raise argparse.ArgumentTypeError(f"a share is K/N with K from 0 to N - 1, such as 0/4, not {text!r}")
    return int(mine), int(shares)

"""`course grade` on the command line: what it takes, checked before anything heavy is imported."""

import argparse
import os
from pathlib import Path

from course_lib.staff.grade.sandbox import Limits

EXAMPLE = "course grade week3.zip --out week3-marks --jobs 4"
FORMS = ("canvas", "moodle", "gradescope")


def grade(arguments: argparse.Namespace) -> int:
    """Grade a class: a folder, a zip or single notebooks, each in its own sandbox."""
    from course_lib.staff.grade.grade_class import grade_class

    before = os.umask(0o077)  # marks and notes are the examiner's alone
    try:
        return grade_class(arguments)
    finally:
        os.umask(before)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `course grade` takes."""
    add, limits = parser.add_argument, Limits()
    add("path", nargs="+", type=Path, help="folders, zips and notebooks; the README says how each finds its learner")
    add("--out", type=Path, required=True, metavar="FOLDER", help="for marks, feedback and stored results")
    add("--jobs", type=count, default=1, metavar="N", help="submissions graded at a time, 1 by default; one per core")
    add("--secret", type=Path, metavar="FILE", help="what inputs are drawn from; by default FOLDER/secret, made once")
    text = "also write the marks as this system imports them; may be repeated"
    add("--export", action="append", choices=FORMS, default=[], help=text)
    units = {"cell_seconds": "for one cell or check", "seconds": "for one notebook", "memory_gib": "for one notebook"}
    for name, unit in units.items():
        default = getattr(limits, name)
        text = f"limit {unit}; {default:g} by default"
        add(f"--{name.replace('_', '-')}", type=_amount, default=default, metavar="X", help=text)
    add("--slurm", type=count, metavar="TASKS", help="write and submit an array of so many tasks, and a merge")
    text = 'an option for sbatch, such as "--partition=cpu"; may be repeated'
    add("--sbatch", action="append", default=[], metavar="OPTION", help=text)
    add("--wait", action="store_true", help="with --slurm: wait until the marks are there")
    text = "grade the K-th of N shares alone, the first is 0; the tasks of --slurm call it so"
    add("--share", type=_share_of, metavar="K/N", help=text)
    text = "use no sandbox: learner code can then read and change all that you can"
    add("--run-submissions-as-me", action="store_true", help=text)
    add("--json", action="store_true", help="print the summary's figures as JSON, and progress to stderr")


def count(text: str) -> int:
    """An argument of 1 to 10,000. Raises ArgumentTypeError for another text."""
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

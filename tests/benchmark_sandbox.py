"""What the sandbox adds to a submission's time: `python tests/benchmark_sandbox.py`. Needs bubblewrap.

Two warmed processes, one sandboxed and one not, grade exercise 00's solution (TensorFlow on four devices) in turns.
At most 1.05. Whole runs of `course grade` can't tell: their start-up is most of their time, and differs by more.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

from unprivileged import CHECKOUT, as_nobody

from course_lib import measure
from course_lib.staff.grade import marking, sandbox_pool, submissions
from course_lib.staff.grade.limits import Limits

WARM_UP = 3
SOLUTION = CHECKOUT / "solutions" / "00_start_here.ipynb"


def graded_in_turn(enclosed: bool, times: int) -> Callable[[], None]:
    """A call that grades the solution once more in the same process."""
    [submission] = submissions.find([SOLUTION])
    backend = sandbox_pool.backend_of(submission.exercise)
    work = [(backend, marking.grading(submission, b"the benchmark's own", Limits(), "")) for _ in range(times)]
    results = sandbox_pool.grade_all(work, 1, enclosed)

    def grade_one() -> None:
        _, result = next(results)
        if result.problem or not all(verdict.right for verdict in result.verdicts):
            sys.exit(f"a solution did not get full marks, so there is no ratio: {result.problem or result.notes}")

    return grade_one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=100, help="gradings in each of the two")
    chosen = parser.parse_args()
    if os.geteuid() == 0:
        sys.exit(subprocess.run(as_nobody([sys.executable, *sys.argv])).returncode)
    ways = {"unsandboxed": False, "sandboxed": True}
    race = measure.side_by_side(
        {name: graded_in_turn(enclosed, WARM_UP + chosen.pairs) for name, enclosed in ways.items()},
        warmup=WARM_UP,
        repeats=chosen.pairs,
    )
    print(race)
    print(
        f"sandbox: {race.ratio('sandboxed', 'unsandboxed'):.3f} times the time without "
        f"(at most 1.05; median of {chosen.pairs} pairs)"
    )


if __name__ == "__main__":
    main()

"""Grade a large class, and again with kills: `python tests/chaos_grade.py --submissions 1000 --kills 3`.

The first run is undisturbed, and tells its memory as it goes: of the processes together, each shared page once. The
second is killed by SIGKILL at seeded places, and started again by the same command. It must end with the same files,
byte by byte; afterwards no process of the class's and no temporary file may be left.
"""

import argparse
import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from test_grade_command import Q1, Q1_WRONG, Q2, command, files, notebook, write_class

JOBS = 2


def results(running: subprocess.Popen) -> Iterator[str]:
    """The lines that name a result, as they come."""
    return (line for line in running.stdout if line.startswith("["))


def start(folder: Path, out: str) -> subprocess.Popen:
    line = command(folder, "in", "--out", out, "--secret", "secret", "--jobs", JOBS)
    own = {**os.environ, "TMPDIR": str(folder / "temporary")}
    return subprocess.Popen(line, cwd=folder, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def mebibytes(process: psutil.Process) -> float:
    """Of a process and all that it started."""
    used = 0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):  # it ended meanwhile
            used += each.memory_full_info().pss
    return used / 2**20


def undisturbed(folder: Path, submissions: int) -> None:
    began, memory = time.perf_counter(), []
    with start(folder, "whole") as running:
        for count, _ in enumerate(results(running), 1):
            memory.append(mebibytes(psutil.Process(running.pid)) if count < submissions else 0)
    if running.returncode:
        sys.exit(f"the undisturbed run ended with exit code {running.returncode}")
    tenth = submissions // 10
    for part in range(0, submissions, tenth):
        print(f"results {part + 1:5,} to {part + tenth:5,}: at most {max(memory[part : part + tenth]):5.0f} MiB")
    print(f"{submissions:,} submissions in {time.perf_counter() - began:.0f} s")


def killed(folder: Path, submissions: int, kills: int, seed: int) -> None:
    share = submissions // (kills + 1)
    for at in (random.Random(seed + kill).randint(share // 2, share) for kill in range(kills)):
        with start(folder, "killed") as running:
            for _ in range(at):
                next(results(running))
            started = psutil.Process(running.pid).children(recursive=True)
            running.kill()
        left = psutil.wait_procs(started, timeout=60)[1]
        print(f"killed after {at:,} results more; {len(left)} of {len(started)} processes left")
        if left or running.returncode != -signal.SIGKILL:
            sys.exit(f"exit code {running.returncode}, left: {left}")
    with start(folder, "killed") as running:
        last = running.stdout.read().strip().splitlines()[-1]
    print(f"resumed: {last}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--submissions", type=int, default=1000, help="copies of two answers, a third of them wrong (1000)"
    )
    parser.add_argument("--kills", type=int, default=3, help="of the second run (3)")
    parser.add_argument("--seed", type=int, default=0, help="draws when (0)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        (folder / "temporary").mkdir()
        texts = {f"{n:05}": notebook(f"# {n}", Q1 if n % 3 else Q1_WRONG, Q2) for n in range(asked.submissions)}
        write_class(folder / "in", texts)
        (folder / "secret").write_text("fedcba9876543210")
        undisturbed(folder, asked.submissions)
        killed(folder, asked.submissions, asked.kills, asked.seed)
        points = sum(
            int(row["points"]) for row in csv.DictReader((folder / "whole/results.csv").open(encoding="utf-8-sig"))
        )
        wanted = sum(2 if n % 3 else 1 for n in range(asked.submissions))
        print(f"{points:,} points of {wanted:,} earned")
        same = files(folder / "whole") == files(folder / "killed")
        left = sorted(path.name for path in (folder / "temporary").iterdir())
        print(f"the same {len(files(folder / 'whole')):,} files: {same}; temporary files: {', '.join(left) or 'none'}")
    sys.exit(points != wanted or not same or bool(left))


if __name__ == "__main__":
    main()

"""Kill random tasks of a small training job at random moments: `python tests/chaos_cluster.py --runs 100`.

A job trains, saves and recovers. Each run must end with the losses of the
undisturbed run, to 1e-6 relative, or within its limit with one clear line;
afterwards no process, port or temporary folder may be left. Seeded: the same
seed kills the same tasks at the same moments. `--program` takes another program,
for example one that trains under MultiWorkerMirroredStrategy: it reports step=1, 2, ...
and returns its list of losses.
"""

import argparse
import importlib.util
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from course_lib import cluster
from course_lib.cluster import processes
from course_lib.cluster.worker_program import WorkerProgram

TOLERANCE = 1e-6  # relative, the issue's own


@dataclass(frozen=True)
class Workload:
    """A program that reports step=1 ... steps and returns its losses, and how to run it."""

    program: WorkerProgram
    arguments: dict
    steps: int
    resources: cluster.Resources = cluster.Resources(memory_gib=0.1, limit_seconds=60)
    workers: int = 2
    saves: bool = True  # it reports saving=step and finished=1 as well
    restarts: int = 2

    def job(self) -> cluster.Job:
        return cluster.Job(
            self.program,
            workers=self.workers,
            arguments=self.arguments,
            resources=self.resources,
            restarts=self.restarts,
            environment={"OMP_NUM_THREADS": "1"},  # threads of several processes on few cores spend their time waiting
        )


@dataclass
class Tally:
    recovered: int = 0
    ended: int = 0
    kills: int = 0
    restarts: int = 0
    messages: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def _numpy_training() -> WorkerProgram:
    def train(task, steps):
        """Least squares by full gradients over shards, summed in a fixed order by worker 0; saves every other step."""
        import os
        import pickle
        import socket
        import time

        import numpy as np

        def connect():
            host, port = task.addresses["worker 0"].split(":")
            while True:
                try:
                    return socket.create_connection((host, int(port)))
                except ConnectionRefusedError:
                    time.sleep(0.01)  # worker 0 does not listen yet

        def tell(peer, value):
            pickle.dump(value, peer)
            peer.flush()

        draw = np.random.default_rng(0)
        inputs = draw.normal(size=(10_000, 64))  # large enough that kills land within steps
        wanted = inputs @ draw.normal(size=64)
        mine = slice(task.index, None, task.workers)
        saved = task.folder / "point.pickle"
        state = {"step": 0, "weights": np.zeros(64), "losses": []}
        task.report(started=1)
        if task.index == 0:
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(("", int(task.addresses[task.name].split(":")[1])))
                server.listen()
                peers = [server.accept()[0].makefile("rwb") for _ in range(task.workers - 1)]
            if saved.exists():
                state = pickle.loads(saved.read_bytes())
            for peer in peers:
                tell(peer, state)
        else:
            peers = [connect().makefile("rwb")]
            state = pickle.load(peers[0])
        while state["step"] < steps:
            error = inputs[mine] @ state["weights"] - wanted[mine]
            part = np.append(error @ inputs[mine], error @ error) / len(wanted)
            if task.index == 0:
                total = sum([part, *map(pickle.load, peers)])
                for peer in peers:
                    tell(peer, total)
            else:
                tell(peers[0], part)
                total = pickle.load(peers[0])
            state["step"] += 1
            state["weights"] = state["weights"] - 0.1 * total[:-1]
            state["losses"] = [*state["losses"], float(total[-1])]
            task.report(step=state["step"], loss=state["losses"][-1])
            if state["step"] % 2 == 0:
                task.report(saving=state["step"])
                if task.index == 0:
                    content, part_file = pickle.dumps(state), task.folder / "point.part"
                    with open(part_file, "wb") as file:
                        file.write(content[: len(content) // 2])
                        file.flush()
                        file.write(content[len(content) // 2 :])
                    os.replace(part_file, saved)
        task.report(finished=1)
        return state["losses"]

    return WorkerProgram.of(train)


NUMPY = Workload(_numpy_training(), {"steps": 40}, steps=40)


def storm(
    workload: Workload, runs: int, seed: int, root: Path, say: Callable[[str], None] = lambda line: None
) -> Tally:
    """Run the workload undisturbed, then `runs` times under random kills.

    root  where this process' temporary folders go
    """
    draw, tally = random.Random(seed), Tally()
    expected = cluster.run(workload.job(), show=None).result
    assert len(expected) == workload.steps
    for number in range(runs):
        _one_run(workload, draw, expected, tally, root)
        say(
            f"run {number + 1}: {tally.recovered} recovered, {tally.ended} ended with a message, "
            f"{len(tally.wrong)} wrong, {len(tally.left)} left"
        )
    return tally


def _one_run(workload: Workload, draw: random.Random, expected: list[float], tally: Tally, root: Path) -> None:
    addresses: list[str] = []
    try:
        with cluster.start(workload.job(), show=None) as running:
            addresses = list(running.addresses.values())
            for _ in range(draw.choice([1, 1, 1, 2, 2, 3, 4])):
                _kill(running, draw, workload)
                tally.kills += 1
            done = running.outcome()
    except cluster.RunFailed as failure:
        tally.ended += 1
        tally.messages.append(str(failure))
        if "\n" in str(failure) or "Traceback" in str(failure):
            tally.wrong.append(str(failure))
    else:
        tally.restarts += done.restarts
        equal = [np.allclose(losses, expected, rtol=TOLERANCE, atol=0) for losses in done.results.values()]
        if all(equal) and all(len(losses) == len(expected) for losses in done.results.values()):
            tally.recovered += 1
        else:
            tally.wrong.append(f"losses {done.results}")
    tally.left += left_behind(root, addresses)


def _kill(running: cluster.LocalCluster, draw: random.Random, workload: Workload) -> None:
    """One kill: whom, when (an event, then up to 0.3 s), and by us or behind our back."""
    task = draw.choice(running.job.tasks)
    watched = draw.choice(running.job.tasks)
    even = 2 * draw.randint(1, workload.steps // 2)
    moments = [{}, {"step": even}] + ([{"started": 1}, {"saving": even}, {"finished": 1}] if workload.saves else [])
    moment, delay, outside = draw.choice(moments), draw.choice([0, draw.uniform(0, 0.3)]), draw.random() < 0.3
    if moment:
        running.wait_report(watched, **moment)
    threading.Event().wait(delay)  # a random moment, not a synchronisation
    if outside:
        with suppress(ProcessLookupError):
            os.kill(running.pids[task], signal.SIGKILL)
    else:
        running.kill(task)


def ours(root: Path) -> list[psutil.Process]:
    """The supervisors and tasks of clusters below a folder, and what the tasks started."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            marks = [process.environ().get(processes.MARK, ""), *process.cmdline()]
            if process.pid != os.getpid() and any(mark.startswith(f"{root}/course-cluster-") for mark in marks):
                found.append(process)
    return found


def left_behind(root: Path, addresses=()) -> list[str]:
    """Processes, temporary folders and ports that should be gone; closed connections in TIME_WAIT do not count."""
    left = [f"process {process}" for process in ours(root)] + [
        f"folder {folder}" for folder in root.glob("course-cluster-*")
    ]
    for address in addresses:
        number = int(address.rpartition(":")[2])
        try:
            for held in processes.hold_port(number):
                held.close()
        except Exception as error:
            left.append(f"port {error}")
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", number)) == 0:
                left.append(f"listener {number}")
    return left


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--program", help='another program, "module:function" or "file.py:function"')
    parser.add_argument("--arguments", type=json.loads, default={}, help="its arguments, JSON")
    parser.add_argument("--steps", type=int, default=40, help="how many steps it reports and losses it returns")
    parser.add_argument("--limit", type=float, default=180, help="seconds for one of its runs")
    chosen = parser.parse_args()
    workload = NUMPY
    if chosen.program:
        resources = cluster.Resources(limit_seconds=chosen.limit)
        workload = Workload(WorkerProgram.of(chosen.program), chosen.arguments, chosen.steps, resources, saves=False)
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        tally = storm(workload, chosen.runs, chosen.seed, Path(folder).resolve(), print)
        tempfile.tempdir = None
    for message in sorted(set(tally.messages)):
        print(f"  {tally.messages.count(message)} x {message}")
    for problem in tally.wrong + tally.left:
        print(f"  WRONG: {problem}")
    print(
        f"{chosen.runs} runs, {tally.kills} kills, {tally.restarts} restarts: "
        f"{tally.recovered} recovered to {TOLERANCE:g}, {tally.ended} ended with one line, "
        f"{len(tally.wrong)} wrong, {len(tally.left)} processes, ports and folders left"
    )
    return 1 if tally.wrong or tally.left else 0


if __name__ == "__main__":
    sys.exit(main())

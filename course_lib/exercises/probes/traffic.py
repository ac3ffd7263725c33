"""What the tasks of a running job send to others, counted by the kernel and not by them. Needs psutil."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from course_lib import cluster, tcp_bytes
from course_lib.hangs import evidence

EVERY_SECONDS = 0.05  # a connection that closes takes its count along


@contextlib.contextmanager
def counted_bytes(running: cluster.LocalCluster) -> Iterator[Callable[[], list[int]]]:
    """The most that each task's open TCP connections had sent, in the order of tasks; empty where no kernel counts.

    Each call of what it gives looks once more.
    """
    counts = _kernel_counts()
    most, over = dict.fromkeys(running.pids, 0), threading.Event()

    def look() -> list[int]:
        for task, pid in dict(running.pids).items():
            most[task] = max(most[task], evidence.sent_bytes(pid) or 0)
        return list(most.values())

    def look_again_and_again() -> None:
        while not over.wait(EVERY_SECONDS):
            look()

    watcher = threading.Thread(target=look_again_and_again, daemon=True)
    watcher.start()
    try:
        yield lambda: look() if counts else []
    finally:
        over.set()
        watcher.join()


def _kernel_counts() -> bool:
    """Not outside Linux, nor where a sandbox such as gVisor answers for the kernel."""
    try:
        tcp_bytes.sent_bytes({})
    except OSError:
        return False
    return sys.platform == "linux"

"""The memory that a call needs, read from another process too: what the call does cannot set that back. Linux."""

import os
import subprocess
import sys
from collections.abc import Callable

from course_lib import measure

SET_BACK = 1.25  # so many times what the high-water mark says; two counts of the same pages differ by less
# Reads every 2 ms, and looks for the processes that this one has started; on every byte that it gets it tells the most
# pages since the last one.
_PROGRAM = """
import os, select, sys, time

def pages(process):
    with open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1])

def started(process):
    for thread in os.listdir(f"/proc/{process}/task"):
        with open(f"/proc/{process}/task/{thread}/children") as file:
            for one in file.read().split():
                if int(one) != os.getpid():
                    yield one
                    yield from started(one)

def of_others():
    found = 0
    try:
        for one in started(sys.argv[1]):
            found += pages(one)
    except OSError:  # one has ended, or the kernel does not tell
        pass
    return found

most, others, looked = 0, 0, 0.0
while True:
    if time.monotonic() > looked + 0.05:
        others, looked = of_others(), time.monotonic()
    most = max(most, pages(sys.argv[1]) + others)
    if select.select([0], [], [], 0.002)[0]:
        if not os.read(0, 1):
            break
        os.write(1, b"%d\\n" % most)
        most = 0
"""


class Outside:
    """A second process that watches this one and those that it starts, for as long as a `with` lasts."""

    def __enter__(self) -> "Outside":
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid())]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0)
        return self

    def __exit__(self, *_) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """measure.peak_memory_bytes of the call, or what samples have seen, where the call has set the mark back.

        Samples miss what is short. Where they see more than the mark says all the same, it has been set back.
        """
        sampled = []
        marked = measure.peak_memory_bytes(lambda: sampled.append(self._sampled_bytes(call)))
        return sampled[0] if sampled[0] > SET_BACK * marked else marked

    def _sampled_bytes(self, call: Callable[[], object]) -> int:
        held, files = _pages()
        self._most_pages()
        call()
        most = self._most_pages()
        met = max(0, _pages()[1] - files)
        return max(0, most - held - met) * os.sysconf("SC_PAGE_SIZE")

    def _most_pages(self) -> int:
        """Since it was last asked; 0 where the other process has ended."""
        try:
            self._process.stdin.write(b"?")
            return int(self._process.stdout.readline() or 0)
        except OSError:
            return 0


def _pages() -> tuple[int, int]:
    """Resident, and those of files among them."""
    with open("/proc/self/statm") as file:
        _, resident, of_files, *_ = map(int, file.read().split())
    return resident, of_files

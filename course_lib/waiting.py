"""One line on a terminal that says what a command is at and for how long. Standard library only."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

FIRST_SECONDS = 1.0  # what is done sooner shows nothing


@contextlib.contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """While the block runs, a line on stderr that is written again each second and gone at its end.

    Where stderr is a file or a pipe nothing is shown. The block gets a function
    that takes what it is at now, such as "cell 3 of 20", and clears the line, so
    that something can be printed.

    what  the work in a few words
    """
    if not sys.stderr.isatty():
        yield lambda now: None
        return
    began, over, at, lock = time.monotonic(), threading.Event(), [""], threading.Lock()

    def write(line: str) -> None:
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)  # over the line that is there

    def show() -> None:
        with lock:
            if not over.is_set():
                write(", ".join(filter(None, (what, at[0], f"{time.monotonic() - began:.0f} s"))))

    def watch() -> None:
        while not over.wait(FIRST_SECONDS):
            show()

    def now(words: str) -> None:
        at[0] = words
        with lock:
            write("")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield now
    finally:
        over.set()
        watcher.join()
        write("")

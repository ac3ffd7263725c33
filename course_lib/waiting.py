"""One line on a terminal that says what a command is at and for how long. Standard library only."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

FIRST_SECONDS = 1.0  # what is done sooner shows nothing


class _Clearing:
    """A stream of the terminal that takes the line away before anything else is written there."""

    def __init__(self, stream, clear: Callable[[], None]):
        self._stream, self._clear = stream, clear

    def write(self, text: str) -> int:
        self._clear()
        return self._stream.write(text)

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """While the block runs, a line on stderr that is written again each second, and makes way for what is printed.

    Where stderr is a file or a pipe nothing is shown. The block gets a function
    that takes what it is at now, such as "cell 3 of 20".

    what  the work in a few words
    """
    terminal = sys.stderr
    if not terminal.isatty():
        yield lambda now: None
        return
    began, over, at, shown = time.monotonic(), threading.Event(), [""], [False]
    lock = threading.RLock()  # a signal's handler may print while the line is written

    def write(line: str) -> None:
        with lock:
            if line or shown[0]:
                print(f"\r\033[K{line}", end="", file=terminal, flush=True)  # over the line that is there
            shown[0] = bool(line)

    def watch() -> None:
        while not over.wait(FIRST_SECONDS):
            write(", ".join(filter(None, (what, at[0], f"{time.monotonic() - began:.0f} s"))))

    def now(words: str) -> None:
        at[0] = words

    def clear() -> None:
        write("")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with contextlib.redirect_stdout(_Clearing(sys.stdout, clear)):
        with contextlib.redirect_stderr(_Clearing(terminal, clear)):
            try:
                yield now
            finally:
                over.set()
                watcher.join()
                clear()

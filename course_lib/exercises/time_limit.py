"""End code that goes on for ever, in this very process. Standard library only.

By a Unix signal, which the main thread alone can take: elsewhere nothing is ended.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

AGAIN_SECONDS = 1.0  # code that catches everything is stopped again
STUCK_SECONDS = 5.0  # between bytecodes of Python a signal is served sooner


class OutOfTime(BaseException):
    """Raised where the code stands; no Exception, which the code may catch."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise OutOfTime in the code under `with` after so many seconds; None sets no limit."""
    if seconds is None or not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return
    stuck = threading.Timer(seconds + STUCK_SECONDS, _say_that_it_is_stuck, (seconds + STUCK_SECONDS,))
    stuck.daemon = True

    def stop(number, frame):
        stuck.cancel()
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    stuck.start()
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        stuck.cancel()


def _say_that_it_is_stuck(seconds: float) -> None:
    print(
        f"This has not ended after {seconds:g} s and waits inside a framework, where no interrupt reaches it; "
        "restart the kernel.",
        file=sys.stderr,
    )

"""How long has nothing moved, and is that a hang? Standard library only."""

import time
from collections.abc import Mapping

COMPUTES = 0.1  # cores of one task, on average: it imports, compiles, or is in a long step; waiting takes a hundredth
LONGER = 3  # times as long for a task that computes


class Stillness:
    """Looks at the same things again and again.

    seconds  without a change that are a hang; three times as long while something computes
    pause    between two looks
    busy     by name, cores that were used on average since the last change
    """

    def __init__(self, seconds: float):
        self.seconds, self.pause = seconds, min(1.0, seconds / 10)
        self.busy: dict[str, float] = {}
        self._seen: object = None
        self._since = time.monotonic()
        self._cpu: Mapping[str, float] = {}

    def hangs(self, seen: object, cpu_seconds: Mapping[str, float]) -> bool:
        """Whether nothing has changed for too long.

        seen         whatever grows or changes as work goes on
        cpu_seconds  used so far, by name
        """
        if seen != self._seen:
            self._seen, self._since, self._cpu = seen, time.monotonic(), dict(cpu_seconds)
        quiet = time.monotonic() - self._since
        self.busy = {name: (used - self._cpu.get(name, used)) / (quiet or 1) for name, used in cpu_seconds.items()}
        computes = any(cores >= COMPUTES for cores in self.busy.values())
        return quiet >= self.seconds * (LONGER if computes else 1)

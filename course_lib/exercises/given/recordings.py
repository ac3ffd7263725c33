"""Three recorded profiles whose bottleneck is known, for exercise 10's q4. Standard library only.

tests/record_profiles.py recorded them once.
"""

import functools
import json
from pathlib import Path

from course_lib.profiler import Event

FILE = Path(__file__).with_name("recordings.json")


@functools.lru_cache(maxsize=1)
def by_bottleneck() -> dict[str, tuple[Event, ...]]:
    """The events of each recording, by its bottleneck: "input", "compute" and "communication"."""
    stored = json.loads(FILE.read_text())
    return {
        kind: tuple(
            Event(found["names"][name], "/host:CPU", found["threads"][thread], start, duration)
            for name, thread, start, duration in found["events"]
        )
        for kind, found in stored.items()
    }

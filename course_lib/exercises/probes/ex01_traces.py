"""The traces that exercise 01's q4 is asked about, of distributed runs whose bottleneck is known. Needs NumPy."""

import math
from dataclasses import replace

import numpy as np

from course_lib.exercises.probes.cases import shuffled
from course_lib.profiler import Event

KINDS = ("input", "compute", "all-reduce")
GRID = 4096  # a second has as many places
REPLICAS = 4


def traces(seed: int) -> list[tuple[str, list[Event]]]:
    """Distributed runs whose bottleneck is known, a tiny one, then one per kind and trap: (bottleneck, events).

    Wall-clock seconds per step, roughly, but for the last run's milliseconds, on a grid that float64 adds up exactly.
    `pieces` cuts a replica's compute into that many events; `before` is an input event ahead of the first step;
    `first` is how many times as long the first step computes, and `stall` how many times as long the third one waits
    for its input, so that most steps have another bottleneck than the run.
    """
    rng = np.random.default_rng(seed)
    return [
        ("compute", shuffled(rng, [Event(name, "/host:CPU", *span) for name, *span in TINY_TRACE])),
        ("input", _trace(rng, input=1.5, compute=4.0, all_reduce=1.0, stall=200)),
        ("compute", _trace(rng, input=3.0, compute=4.5, all_reduce=1.0, pieces=6, gap=0.0)),
        ("all-reduce", _trace(rng, input=2.0, compute=3.0, all_reduce=6.0, first=60)),
        ("compute", _trace(rng, input=2.0, compute=6.0, all_reduce=3.0, before=300.0)),
        ("all-reduce", _of_milliseconds(_trace(rng, input=2.0, compute=3.0, all_reduce=5.0, gap=0.0))),
    ]


def _of_milliseconds(events) -> list[Event]:
    short = 2**-10  # the sums stay exact
    return [
        replace(e, start_seconds=short * e.start_seconds, duration_seconds=short * e.duration_seconds) for e in events
    ]


TINY_TRACE = [  # name, thread, start, length
    *(("train", "python", 0, 6), ("input", "python", 0, 3), ("compute", "replica 0", 3, 2)),
    *(("train", "python", 6, 10), ("input", "python", 6, 4), ("compute", "replica 0", 10, 3)),
    *(("compute", "replica 1", 12, 3), ("all-reduce", "replica 0", 15, 1), ("all-reduce", "replica 1", 15, 1)),
]


def _trace(rng, input, compute, all_reduce, pieces=1, before=0.0, first=1, stall=1, gap=0.5):
    """Events of a run in no particular order; in a step the input comes first, and an all-reduce before compute ends.

    No replica works in step with another, each has a plane, a piece may lie inside another of its thread, all may wait
    at once, a step's last event ends with it, every kind is also met between the steps, up to their very ends, and its
    name is a part of other names. Without a gap each step begins when the one before ends, and every kind has an event
    that ends at that very moment and one that begins at it.
    """
    now, events = 1.0, []

    def add(name, thread, start, seconds):
        plane = f"/device:GPU:{thread[-1]}" if thread in replicas else "/host:CPU"
        start, seconds = round(start * GRID) / GRID, round(seconds * GRID) / GRID
        events.append(Event(name, plane, thread, start, seconds))

    def add_part(name, seconds, start, threads, pieces=1):
        """Returns when the last thread is done."""
        ends = []
        for thread in threads:
            begin = start + (rng.uniform(0.05, 0.2) * seconds if ends else 0)
            for _ in range(pieces):
                piece = rng.uniform(0.8, 1.2) * seconds / pieces
                add(name, thread, begin, piece)
                add(name, thread, begin + 0.2 * piece, piece / 4)  # inside the other
                add(name, thread, begin + 0.7 * piece, piece / 2)  # reaches beyond it
                add("MatMul", thread, begin + 0.25 * piece, piece / 2)
                begin += 1.2 * piece
            ends.append(begin)
        add(name, threads[-1], max(ends) + 0.1 * seconds, 0.1 * seconds)  # after all have waited
        return max(ends) + 0.2 * seconds + 0.01

    replicas = [f"replica {replica}" for replica in range(REPLICAS)]
    if before:
        add("input", "python", now, before)
        now += before + 0.1
    for number in range(int(rng.integers(4, 8))):
        begin, jitter = math.ceil(now * GRID) / GRID, rng.uniform(0.5, 1.5) * rng.uniform(0.8, 1.2, 3)
        now = add_part("input", input * jitter[0] * (stall if number == 2 else 1), begin, ["python", "loader"])
        done = add_part("compute", compute * jitter[1] * (first if number == 0 else 1), now, replicas, pieces)
        add_part("all-reduce", all_reduce * jitter[2], (now + done) / 2, replicas)
        now = max(event.end_seconds for event in events)
        add("train", "python", begin, now - begin)
        add(f"{KINDS[number % 3]}/queue", "python", begin, 0.9 * (now - begin))  # a kind's name is a part of this one
        for kind in KINDS:
            thread = replicas[0] if kind != "input" else "python"
            add(kind, thread, now, rng.uniform(0.1, 0.3))  # from the step's very end
            if number:
                add(kind, thread, begin - 0.125, 0.125)  # up to its very beginning
        now += gap
    return shuffled(rng, events)

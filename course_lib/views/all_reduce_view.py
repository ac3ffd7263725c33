"""An all-reduce, round by round. Needs NumPy and matplotlib when it is shown; used in notebooks/02."""

import functools

from course_lib.views.controls import Choice, Range
from course_lib.views.explorer import View, explorer

BUFFER_BYTES = 840  # what 2 to 8 workers divide alike
ALGORITHMS = ("naive", "tree", "ring")


@functools.cache
def network(algorithm: str, workers: int):
    """The `collectives.Network` that summed one buffer of BUFFER_BYTES per worker."""
    import numpy as np

    from course_lib import collectives

    buffers = [np.ones(BUFFER_BYTES, "uint8")] * workers  # one byte a number: only their count matters
    return getattr(collectives, f"{algorithm}_all_reduce")(buffers)[1]


@explorer(
    algorithm=Choice("algorithm", ALGORITHMS),
    workers=Range("workers", 2, 8),
    round=Range("rounds so far", 0, lambda values: network(values["algorithm"], values["workers"]).rounds, plays=True),
)
def all_reduce(algorithm: str = "ring", workers: int = 4, round: int = 3) -> View:
    """Who has sent what to whom after so many rounds, and the bytes that each worker sent and received.

    algorithm  "naive", "tree" or "ring"
    workers    2 to 8
    round      rounds so far, from 0 to all
    """
    from course_lib import show

    whole = network(algorithm, workers)
    done = whole.until(round)
    counts = [
        (done.sent_bytes(worker), done.received_bytes(worker), whole.sent_bytes(worker)) for worker in range(workers)
    ]
    busiest, most = max(sent for sent, _, _ in counts), max(in_all for _, _, in_all in counts)
    caption = (
        f"{algorithm.capitalize()} all-reduce of {BUFFER_BYTES} B on each of {workers} workers, after {round} of "
        f"{whole.rounds} rounds: a worker has sent at most {busiest:,} B, {busiest / BUFFER_BYTES:.3g} of its buffer. "
        f"In all the busiest sends {most / BUFFER_BYTES:.3g} buffers, "
        f"and {whole.critical_bytes / BUFFER_BYTES:.3g} pass one after another."
    )
    rows = [[f"worker {w}", f"{sent:,}", f"{got:,}", f"{in_all:,}"] for w, (sent, got, in_all) in enumerate(counts)]
    headers = ("", "sent so far, B", "received so far, B", "sends in all, B")
    return View(
        show.messages({f"{algorithm}, round {round} of {whole.rounds}": whole}, caption, rounds=round), headers, rows
    )

"""Probes of exercise 05: a layout that fits, tiles, rows per host; q1's is in ex05_batches, q5's in ex05_slices.

Needs NumPy, and the TPU compiler for q2 where there is one. The inputs are functions of the seed.
"""

import dataclasses
import re

import numpy as np

from course_lib import tpu
from course_lib.errors import CourseError
from course_lib.exercises.ask import Stopped
from course_lib.exercises.given.wide_block import wide_block
from course_lib.exercises.probes.cases import ask_or_refused
from course_lib.exercises.probes.salted_hash import alike_in_processes

TOPOLOGY, ROWS = "v5e:2x4", 8192  # of q2: the slice and the global batch
LAYOUT_PARTS = ("mesh", "layout", "shards")  # what q2 lets one choose
KERNELS = ("up/kernel", "down/kernel")  # of q2's block
CUT_BY_HAND = (*KERNELS, "down/bias")


# q2: a layout that fits


def block_sizes(seed: int) -> dict[str, int]:
    """q2's block: 1.9 to 2.4 billion parameters."""
    width = int(np.random.default_rng(seed).choice([15360, 16384, 17408]))
    return {"width": width, "inner": 4 * width}


def probe_fit(names, seed):
    """What the TPU compiler makes of the learner's layout; `compiled` is False where there is no such compiler."""
    answer = names["chip_layout"]()
    if unknown := sorted(set(answer) - set(LAYOUT_PARTS)):
        line = f"chip_layout chooses {', '.join(LAYOUT_PARTS)} and leaves {unknown[0]!r} as it is"
        raise Stopped("raised", line, line)
    chosen = {
        "mesh": {str(axis): int(size) for axis, size in answer.get("mesh", {}).items()},
        "layout": str(answer.get("layout", "data")),
        "shards": {str(key): list(axes) for key, axes in answer.get("shards", {}).items()},
    }
    asked = {"chosen": chosen, "axes": _axes(chosen["shards"])}
    try:
        report = tpu.compile_step(wide_block, TOPOLOGY, ROWS, loss="mse", arguments=block_sizes(seed), **chosen)
    except tpu.NoCompiler:
        return {**asked, "compiled": False}
    except CourseError as error:
        raise Stopped("raised", str(error), str(error)) from None
    return {
        **asked,
        "compiled": True,
        "fits": report.fits,
        "verdict": report.verdict,
        "state_bytes": report.state_bytes,
        "seconds": report.roofline_seconds,
        "flops": report.flops,
    }


def _axes(shards) -> dict[str, list[str | None]]:
    """The mesh axis of each dimension of the kernels and the last bias, or None, here two each.

    A learner's regular expressions run here alone.
    """
    found = {}
    for path in CUT_BY_HAND:
        key = next((key for key in shards if re.fullmatch(key, path)), None)
        found[path] = [*shards.get(key, ()), None, None][:2]
    return found


# q3: tiles


def matrices(seed: int) -> list[tuple[int, int, int]]:
    """q3's matrices: rows, columns and bytes of a number; some just past a tile, and some better on their side.

    The first ones take few tiles, and the judge shows what is wanted there.
    """
    rng = np.random.default_rng(seed)
    just_past = [128 * int(n) + 1 for n in rng.integers(1, 6, size=2)]
    drawn = [(int(a), int(b)) for a, b in rng.integers(8, 1500, size=(4, 2))]
    narrow = (int(rng.integers(700, 2000)), int(rng.integers(9, 16)))
    # Smaller with its shorter side along the 128.
    short_side_up = (int(rng.integers(129, 160)), int(rng.integers(90, 121)))
    shapes = [
        *drawn,
        tuple(just_past),
        (128 * int(rng.integers(2, 9)), 130),
        narrow,
        narrow[::-1],
        (24, 384),
        short_side_up,
    ]
    tiny = [(8, 128, 2), (9, 128, 2), (8, 129, 2), (129, 8, 2)]
    return [*tiny, *((*shape, itemsize) for shape in shapes for itemsize in (4, 2)), *_large_matrices(rng)]


def _large_matrices(rng) -> list[tuple[int, int, int]]:
    """Of more than 2 GiB, more than 4 GiB, and so many tiles that float32 has no such number."""
    rows, columns = (int(n) for n in rng.integers(30_000, 32_000, size=2))
    tiles = 2 * int(rng.integers(125_000, 130_000)) + 1, 71  # two odd numbers, whose product is more than 2**24
    return [
        (rows, 20_000 + columns % 5_000, 4),
        (2 * rows, 2 * columns, 2),
        (8 * tiles[0] - int(rng.integers(8)), 128 * tiles[1] - int(rng.integers(8)), 4),
    ]


def budgets(seed: int) -> list[dict[str, int]]:
    """q3's searches: two kernels' outer sides and a budget. One width is not a multiple of 128, the last fits none.

    The first budgets are whole tiles, and one is a byte less. One budget is nearly 2 GiB, no more: bytes in 32
    bits with a sign never exceed a larger one, and a search for it never ends. With even seeds one width is beyond
    2**20.
    """
    rng = np.random.default_rng([seed, 1])
    tiny = [(8, 8, 8192), (8, 8, 8191), (128, 128, 8192), (128, 24, 16384), (8, 128, 12288), (8, 8, 409_600)]
    cases = [{"inputs": n, "outputs": m, "itemsize": 4, "budget_bytes": budget} for n, m, budget in tiny]
    for itemsize in (4, 2, 4):
        inputs, outputs = (int(n) for n in rng.integers(130, 1000, size=2))
        width = 128 * int(rng.integers(2, 5)) + int(rng.integers(20, 110))
        cases.append(
            {
                "inputs": inputs,
                "outputs": outputs,
                "itemsize": itemsize,
                "budget_bytes": (inputs + outputs + 90) * width * itemsize,
            }
        )
    # Whole tiles, so that only the width is rounded to 8.
    inputs, outputs = (128 * int(n) for n in rng.integers(2, 7, size=2))
    width = 128 * int(rng.integers(2, 5)) + 8 * int(rng.integers(2, 15))
    cases.append({"inputs": inputs, "outputs": outputs, "itemsize": 2, "budget_bytes": (inputs + outputs) * width * 2})
    lowest = (131_100, 16_400)[seed % 2]  # wider than 1,048,576, or than 131,072, where a search takes less time
    wide = 8 * int(rng.integers(lowest, lowest + 400))
    cases.append({"inputs": 8, "outputs": 8, "itemsize": 2, "budget_bytes": 2 * 16 * wide})
    # Hundreds of megabytes, and a byte too few for one width more: in float32 both are the same.
    inputs, outputs = (128 * int(n) for n in rng.integers(150, 200, size=2))
    width = 8 * int(rng.integers(500, 560))
    budget = (inputs + outputs) * width * 4 - 1
    cases.append({"inputs": inputs, "outputs": outputs, "itemsize": 4, "budget_bytes": budget})
    outer = 128 * int(rng.integers(290, 300))
    budget = 2 * outer * 8 * int(rng.integers(850, 870)) * 4 + 7
    cases.append({"inputs": outer, "outputs": outer, "itemsize": 4, "budget_bytes": budget})
    return [*cases, {"inputs": 300, "outputs": 300, "itemsize": 4, "budget_bytes": 9000}]


def probe_tiles(names, seed):
    """The learner's bytes for each matrix, and the width for each budget."""
    return {
        "bytes": [names["stored_bytes"](*matrix) for matrix in matrices(seed)],
        "widths": [ask_or_refused(names["widest"], case) for case in budgets(seed)],
    }


# q4: rows per host


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Hosts with the same number of chips each, numbered host by host, and a mesh of these chips in that order.

    Neighbouring chips of the mesh are along `model`; `data` cuts the batch.
    """

    hosts: int
    data: int
    model: int

    @property
    def chips(self) -> int:
        """Of one host."""
        return self.data * self.model // self.hosts

    def parts(self, host: int) -> range:
        """The parts of the batch, of `data` equal ones, that this host's chips compute."""
        return range(host * self.chips // self.model, ((host + 1) * self.chips - 1) // self.model + 1)


CLUSTERS = (Hosts(1, 8, 1), Hosts(4, 8, 1), Hosts(2, 4, 2), Hosts(4, 2, 4), Hosts(8, 4, 4), Hosts(8, 2, 4))


def data_set(seed: int) -> dict[str, int]:
    """q4's data set: examples that fill no last batch, a batch that eight divides, epoch and seed."""
    rng = np.random.default_rng(seed)
    batch, steps = 8 * int(rng.integers(2, 4)), int(rng.integers(4, 7))
    left_over = int(rng.integers(1, batch))
    return {
        "examples": batch * steps + left_over,
        "global_batch": batch,
        "epoch": 0,  # where a product of epoch and seed forgets the seed
        "seed": int(rng.integers(1, 999)),
    }


def other_orders(seed: int) -> list[dict[str, int]]:
    """More orders of q4's data set: small and large seeds and epochs, one in which a turn by one example returns.

    Two of the seeds are alike in the last 30 bits.
    """
    rng = np.random.default_rng([seed, 1])
    seeds = 0, 1, 2**30 + 1, int(rng.integers(1000, 9999)), 2**31 - 1
    epochs = 0, 1, 2, data_set(seed)["examples"], 2**8, 2**16, 2**31 - 1
    return [{"seed": one, "epoch": epoch} for one in seeds for epoch in epochs]


def large_data_set(seed: int) -> dict[str, int]:
    """q4's data set of more examples than 16 bits can number."""
    rng = np.random.default_rng([seed, 2])
    return {
        "examples": int(rng.integers(70_000, 72_000)),
        "global_batch": 8 * int(rng.integers(900, 1000)),
        "epoch": 3,
        "seed": int(rng.integers(10_000, 99_999)),
    }


WIDE = Hosts(512, 1024, 2)
ASKED_OF_WIDE = (0, 300, 511)  # its hosts


def wide_data_set(seed: int) -> dict[str, int]:
    """q4's data set for the hosts of WIDE: two batches, and some examples more."""
    rng = np.random.default_rng([seed, 3])
    batch = 2 * WIDE.data
    return {"examples": 2 * batch + int(rng.integers(1, batch)), "global_batch": batch, "epoch": 1, "seed": 2}


def probe_hosts(names, seed):
    """What every host of each cluster reads; what one host reads again, in the next epoch, with the next seed.

    "no_rest" is what it reads of a data set that batches fill, "other_orders" in more epochs and with more seeds, and
    "large" of a large data set. "wide" is what some hosts of hundreds read, and last one host in their place. "dtypes"
    are all that the numbers have.
    """

    host_examples = alike_in_processes(names["host_examples"])

    dtypes = set()

    def ask(cluster, host, **changed):
        read = np.asarray(host_examples(host, **dataclasses.asdict(cluster), **(data_set(seed) | changed)))
        dtypes.add(str(read.dtype))
        return read

    one = CLUSTERS[0]
    answers = {
        "read": [[ask(cluster, host) for host in range(cluster.hosts)] for cluster in CLUSTERS],
        "again": ask(one, 0),
        "next_epoch": ask(one, 0, epoch=data_set(seed)["epoch"] + 1),
        "next_seed": ask(one, 0, seed=data_set(seed)["seed"] + 1),
        "no_rest": ask(one, 0, examples=3 * data_set(seed)["global_batch"]),
        "other_orders": [ask(one, 0, **other) for other in other_orders(seed)],
        "large": ask(one, 0, **large_data_set(seed)),
        "wide": [ask(WIDE, host, **wide_data_set(seed)) for host in ASKED_OF_WIDE]
        + [ask(one, 0, **wide_data_set(seed))],
    }
    return answers | {"dtypes": sorted(dtypes)}

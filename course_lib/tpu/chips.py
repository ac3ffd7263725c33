"""TPU chips, their published figures, and the slices that the TPU compiler knows. Standard library only.

A figure is per chip and from the page named in `source`. The interconnect's is what a chip can
send over all its links at once: half of the page's bidirectional figure.
"""

import difflib
import math
from dataclasses import dataclass

from course_lib.errors import CourseError

GIB = 2**30
PAGES = "https://cloud.google.com/tpu/docs/"
FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16")


@dataclass(frozen=True)
class TpuChip:
    """One generation of TPU.

    flops_per_second  peak of bfloat16 matrix products
    memory_bytes      HBM
    read_per_second   bytes between HBM and the chip
    sent_per_second   bytes out of the chip over all its interconnect links
    shapes            slices that the documentation lists, the largest last
    devices           how many devices JAX sees on each chip
    """

    name: str
    flops_per_second: float
    memory_bytes: int
    read_per_second: float
    sent_per_second: float
    shapes: tuple[str, ...]
    source: str
    devices: int = 1


CHIPS = {
    chip.name: chip
    for chip in (
        # v4's interconnect, 6 links of 50 GB/s each way: Jouppi and others (2023), "TPU v4", arXiv 2304.01433, table 4.
        TpuChip("v4", 275e12, 32 * GIB, 1200e9, 300e9, CUBES, PAGES + "v4"),
        TpuChip("v5e", 197e12, 16 * GIB, 819e9, 200e9, FLAT, PAGES + "v5e"),
        TpuChip("v5p", 459e12, 95 * GIB, 2765e9, 600e9, CUBES, PAGES + "v5p"),
        TpuChip("v6e", 918e12, 32 * GIB, 1600e9, 400e9, FLAT, PAGES + "v6e"),
        TpuChip("tpu7x", 2307e12, 192 * GIB, 7380e9, 600e9, CUBES, PAGES + "tpu7x", devices=2),
    )
}


@dataclass(frozen=True)
class Slice:
    """Chips joined by their interconnect, as "v5e:2x4" names them."""

    chip: TpuChip
    shape: tuple[int, ...]

    @property
    def chips(self) -> int:
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        return self.chips * self.chip.devices

    @property
    def device_memory_bytes(self) -> int:
        return self.chip.memory_bytes // self.chip.devices

    @property
    def compiler_options(self) -> dict[str, object]:
        """What jax.experimental.topologies.get_topology_desc needs beside the name."""
        # One device per v4 chip, as Cloud TPU runs it.
        options = {"chip_config_name": "megacore"} if self.chip.name == "v4" else {}
        return {**options, "chips_per_host_bounds": (1, 1, 1)} if self.chips == 1 else options

    def __str__(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"


def names() -> list[str]:
    """Every slice that `find_slice` knows."""
    return [f"{chip.name}:{shape}" for chip in CHIPS.values() for shape in chip.shapes]


def find_slice(topology: str) -> Slice:
    """The slice of a name such as "v5e:2x4" or "v5p:8x8x8".

    Raises  CourseError for an unknown name, with the names nearest to it
    """
    name, _, shape = topology.partition(":")
    if topology not in names():
        candidates = [known for known in names() if known.startswith(f"{name}:")] or names()
        near = difflib.get_close_matches(topology, candidates, n=4, cutoff=0.3) or candidates[:4]
        raise CourseError(f"no TPU topology is called {topology!r}; near ones are {', '.join(near)}.")
    return Slice(CHIPS[name], tuple(map(int, shape.split("x"))))

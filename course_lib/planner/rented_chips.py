"""Chips that people rent, and clusters of them. Standard library only; taught in notebooks/10.

Figures are per chip, of dense matrices, as they are quoted from the maker's data sheet; `source` is the page for it.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.errors import CourseError
from course_lib.tpu.chips import CHIPS as TPUS
from course_lib.tpu.chips import GIB, TpuChip, find_slice

MEASURED = "measured"  # the family of this machine's devices
TPU = "tpu"  # the family of all TPUs


@dataclass(frozen=True)
class Chip:
    """One device of a cluster.

    family            chips of one architecture: they reach the same share of their peaks
    memory_bytes      its own memory; a GPU's as nvidia-smi shows it
    flops_per_second  peak of matrix products, by the format of their factors. float32's is
                      TF32's where the chip has it, as TensorFlow and JAX use it
    read_per_second   bytes between its memory and the chip
    per_node          chips that share the fast links; for a TPU, chips of the largest slice
    within, between   bytes per second that one chip sends inside its node, and to other nodes
    host              bytes per second to its host's memory, and as many back: assumed to be three quarters of
                      what the link has on paper; of PCIe 4 by default, and not known of a TPU
    """

    name: str
    family: str
    memory_bytes: float
    flops_per_second: Mapping[str, float]
    read_per_second: float
    per_node: int
    within: float
    between: float
    source: str
    host: float = 24e9

    @property
    def usual_precision(self) -> str:
        """The Keras policy that people train with on it."""
        kinds = ("bfloat16", "float16")
        return next((f"mixed_{kind}" for kind in kinds if kind in self.flops_per_second), "float32")


@dataclass(frozen=True)
class Cluster:
    """Equal chips in equal nodes; `chips` is their number."""

    chip: Chip
    chips: int

    @property
    def measured(self) -> bool:
        """True for this machine, whose steps are predicted by trying their pieces."""
        return self.chip.family == MEASURED

    def link(self, devices: int, apart: int = 1) -> float:
        """Bytes per second around a ring of so many devices, which takes every `apart`-th chip.

        Across nodes a ring uses the outer link of each of its chips in a node.
        """
        chip = self.chip
        if devices * apart <= chip.per_node:
            return chip.within
        return min(chip.within, chip.between * max(1, chip.per_node // apart))

    def hop(self, devices: int) -> float:
        """Bytes per second from one chip to the same place of the next pipeline stage, in a layout of so many chips."""
        return self.chip.within if devices <= self.chip.per_node else self.chip.between


PCIE = {"volta": 12, "ampere": 24, "hopper": 48}  # versions 3 to 5: 16, 32, 64 x 10^9 bytes per second on paper


def _gpu(name, family, gib, read, within, between, page, per_node=8, host=0, **tera: float) -> Chip:
    """tera: 10^12 flops per second by format; read, within, between, host: 10^9 bytes per second, one direction."""
    rates = {kind: rate * 1e12 for kind, rate in tera.items()}
    nvidia = f"https://www.nvidia.com/en-us/{page if page.startswith('geforce') else f'data-center/{page}'}/"
    source = page if page.startswith("https") else nvidia
    return Chip(
        name,
        family,
        gib * GIB,
        rates,
        read * 1e9,
        per_node,
        within * 1e9,
        between * 1e9,
        source,
        (host or PCIE[family]) * 1e9,
    )


def _tpu(tpu: TpuChip) -> Chip:
    name = tpu.name if tpu.name.startswith("tpu") else f"tpu-{tpu.name}"
    largest = find_slice(f"{tpu.name}:{tpu.shapes[-1]}").chips
    rates, sent = {"bfloat16": tpu.flops_per_second}, tpu.sent_per_second
    return Chip(name, TPU, tpu.memory_bytes, rates, tpu.read_per_second, largest, sent, sent, tpu.source)


VOLTA = {"float32": 15.7, "float16": 125}
AMPERE = {"float32": 156, "bfloat16": 312, "float16": 312}
HOPPER = {"float32": 494.5, "bfloat16": 989, "float16": 989, "float8": 1979}
BLACKWELL = {"float32": 1125, "bfloat16": 2250, "float16": 2250, "float8": 4500}
GRACE_BLACKWELL = {"float32": 1250, "bfloat16": 2500, "float16": 2500, "float8": 5000}  # a rack's, by its 72 GPUs
C2C = 337  # NVLink to the Grace processor's memory: three quarters of 450
MI300X = "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"
CDNA3 = {
    "float32": 163.4,
    "bfloat16": 1307.4,
    "float16": 1307.4,
    "float8": 2614.9,
}  # float32 without TF32, as ROCm does
# T4 (Turing), L4 (Ada) and B200 (Blackwell) count with the family before theirs, and MI300X with Hopper, because no
# whole run on them is among the published ones. MI300X has a link to each other chip of its node. Between nodes: one
# network card per chip, of 100, 200, 400 Gbit/s as in the makers' reference systems.
CHIPS = {
    chip.name: chip
    for chip in (
        _gpu("v100-16gb", "volta", 15.8, 900, 150, 12.5, "v100", **VOLTA),
        _gpu("v100-32gb", "volta", 31.7, 900, 150, 12.5, "v100", **VOLTA),
        _gpu("t4", "volta", 15, 320, 16, 6.25, "tesla-t4", 4, float32=8.1, float16=65),
        _gpu("l4", "ampere", 22.5, 300, 32, 12.5, "l4", float32=60, bfloat16=121, float16=121, float8=242),
        _gpu("a10-24gb", "ampere", 22.5, 600, 32, 12.5, "products/a10-gpu", float32=62.5, bfloat16=125, float16=125),
        _gpu("a100-40gb", "ampere", 40, 1555, 300, 25, "a100", **AMPERE),
        _gpu("a100-80gb", "ampere", 80, 2039, 300, 25, "a100", **AMPERE),
        _gpu("h100-80gb", "hopper", 79.6, 3350, 450, 50, "h100", **HOPPER),
        _gpu("h200-141gb", "hopper", 140.4, 4800, 450, 50, "h200", **HOPPER),
        _gpu("h100-96gb", "hopper", 95.6, 4000, 450, 50, "grace-hopper-superchip", host=C2C, **HOPPER),
        _gpu("b200-180gb", "hopper", 179, 8000, 900, 50, "dgx-b200", **BLACKWELL),
        _gpu("gb200-186gb", "hopper", 185, 8000, 900, 50, "gb200-nvl72", 72, host=C2C, **GRACE_BLACKWELL),
        _gpu("l40s-48gb", "ampere", 44.5, 864, 32, 25, "l40s", float32=183, bfloat16=362, float16=362, float8=733),
        # Consumer cards: dense products that sum in float32 (NVIDIA's Ampere and Ada architecture papers); no NVLink.
        _gpu("rtx3090-24gb", "ampere", 24, 936, 16, 3.2, "geforce", 4, float32=35.6, bfloat16=71, float16=71),
        _gpu("rtx4090-24gb", "ampere", 24, 1008, 16, 3.2, "geforce", 4, float32=82.6, bfloat16=165.2, float16=165.2),
        _gpu("mi300x-192gb", "hopper", 191.9, 5325, 7 * 64, 50, MI300X, **CDNA3),
        *map(_tpu, TPUS.values()),
    )
}


# Where a user's own chip begins: the family of most GPUs, PCIe 4 inside a node, 100 gigabit/s between nodes.
OWN = Chip("your chip", "ampere", 0, {}, 0, 8, 25e9, 12.5e9, "your own figures")


def slice_sizes(chip: Chip) -> list[int]:
    """Numbers of chips that a slice of this TPU can have, the smallest first."""
    tpu = TPUS[chip.name.removeprefix("tpu-")]
    return sorted({find_slice(f"{tpu.name}:{shape}").chips for shape in tpu.shapes})


def find_chip(name: str) -> Chip:
    """The chip of a name such as "h100-80gb" or "tpu-v5e".

    Raises  CourseError for an unknown name, with the names nearest to it
    """
    plain = name.lower().replace("_", "-").replace(" ", "-").replace("rtx-", "rtx")
    if plain not in CHIPS:
        close = difflib.get_close_matches(plain, CHIPS, n=3, cutoff=0.4)
        near = close or [known for known in CHIPS if plain[:2] in known] or list(CHIPS)
        raise CourseError(f"no chip is called {name!r}; near ones are {', '.join(near)}.")
    return CHIPS[plain]

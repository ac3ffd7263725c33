"""Every collective of a compiled program: kind, count, bytes, and mesh axis. Needs NumPy.

Source of what a chip sends: Patarasuk & Yuan (2009), JPDC 69(2), for rings; course_lib.collectives sends it and
counts the same.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from course_lib.tpu.compile_report import Collective
from course_lib.tpu.hlo import HloProgram, Instruction

# Bytes that each of N chips sends around a ring, of a buffer of one byte.
SENT = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "ragged-all-to-all": lambda n: (n - 1) / n,
    "collective-broadcast": lambda n: 1,
    "collective-permute": lambda n: 1,
}
NAMED_GROUPS = r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?\s*\{([^}]*)\}"


def find_collectives(program: HloProgram, mesh: Mapping[str, int]) -> tuple[Collective, ...]:
    """The collectives of a program compiled for a mesh (axis name to devices), the largest sender first."""
    found: dict[tuple[str, str, int], list[int]] = {}
    for name, times in program.executions().items():
        computation = program.computations[name]
        for kind, one in _starts(name, computation):
            groups = _groups(one, math.prod(mesh.values()))
            devices = groups.shape[1]
            buffer = sum(shape.bytes for operand in one.operands for shape in computation[operand].shapes)
            if kind == "all-gather":
                buffer *= devices
            totals = found.setdefault((kind, _axis(groups, mesh), devices), [0, 0, 0])
            for position, amount in enumerate((1, buffer, round(SENT[kind](devices) * buffer))):
                totals[position] += times * amount
    rows = [Collective(*key, *totals) for key, totals in found.items() if key[2] > 1]
    return tuple(sorted(rows, key=lambda row: (-row.sent_bytes, row.kind, row.axis)))


def _starts(name: str, computation: Mapping[str, Instruction]) -> Iterator[tuple[str, Instruction]]:
    """Each collective once: XLA repeats an asynchronous one in every fusion that runs beside it, until it is done."""
    going_on = any("AsyncCollectiveDone" in i.attributes for i in computation.values())
    scatters = "all-reduce-scatter" in name  # TPU's reduce-scatter: a fusion of an all-reduce and a slice
    for instruction in computation.values():
        kind = instruction.opcode.removesuffix("-start")
        beside = re.search(r'"async_collective_fusion_config":\{"flag_start":"(?!-1)', instruction.attributes)
        if kind in SENT and not going_on and not beside:
            yield ("reduce-scatter" if scatters and kind == "all-reduce" else kind), instruction


def _groups(instruction: Instruction, devices: int) -> np.ndarray:
    """Who takes part together: (groups, devices in each) positions in the mesh; for a permute, (pairs, 2)."""
    text = instruction.attributes
    if pairs := re.search(r"source_target_pairs=\{([\d,{} ]*)\}", text):
        return np.array(_numbers(pairs[1])).reshape(-1, 2)
    if iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        shape, source, order = iota.groups()
        return _iota(source, order).reshape(_numbers(shape))
    if named := re.search(NAMED_GROUPS, text):
        mesh, source, order, axes = named.groups()
        return _iota(source or str(devices), order)[_named_groups(mesh, axes)]
    if listed := re.search(r"replica_groups=\{((?:\{[\d,]+\},?)+)\}", text):
        return np.array([_numbers(group) for group in listed[1].split("},")])
    if "replica_groups={}" in text or "replica_groups=" not in text:
        return np.arange(devices)[None]
    raise ValueError(f"cannot read these replica groups: {re.search('replica_groups=.{,80}', text)[0]}")


def _iota(shape: str, order: str | None) -> np.ndarray:
    """0, 1, 2, ... in this shape, transposed to this order of dimensions, in one row."""
    ids = np.arange(np.prod(_numbers(shape))).reshape(_numbers(shape))
    return (ids.transpose(_numbers(order)) if order else ids).ravel()


def _named_groups(mesh: str, axes: str) -> np.ndarray:
    """Positions, from mesh['axis_0'=4,'axis_1'=2] {'axis_0'}.

    'axis_0':(2)4 is the 4 in the middle of a longer axis, after a 2.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    parts = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes)
    chosen = {name: (int(before or 1), int(size or sizes[name])) for name, before, size in parts}
    lengths, together = [], []
    for name, size in sizes.items():
        before, taken = chosen.get(name, (size, 1))
        together.append(len(lengths) + 1)
        lengths += [before, taken, size // before // taken]
    ids = np.arange(np.prod(lengths)).reshape(lengths)
    members = math.prod(lengths[dimension] for dimension in together)
    return np.moveaxis(ids, together, range(-len(together), 0)).reshape(-1, members)


def _axis(groups: np.ndarray, mesh: Mapping[str, int]) -> str:
    """The fewest mesh axes within which every group stays."""
    names, sizes = [name for name, size in mesh.items() if size > 1], tuple(mesh.values())
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    for axes in (axes for count in range(len(names)) for axes in itertools.combinations(names, count + 1)):
        others = [number for number, name in enumerate(mesh) if name not in axes]
        lines = np.moveaxis(ids, others, range(len(others))).reshape(-1, math.prod(mesh[name] for name in axes))
        line_of = np.empty(ids.size, int)
        line_of[lines] = np.arange(len(lines))[:, None]
        if (line_of[groups] == line_of[groups[:, :1]]).all():
            whole = groups.shape[1] == lines.shape[1] or groups.shape[1] == 2
            return ("" if whole else "part of ") + "+".join(axes)
    return "none"


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]

"""Arithmetic and memory traffic of a compiled program, with every turn of its loops. Needs NumPy.

XLA's own cost analysis counts a loop's body once, and so a scanned
transformer's first layer alone. What the other turns add is counted here from
the program's text.
"""

import math
import re
from collections.abc import Mapping

import numpy as np

from course_lib.tpu.hlo import Instruction, Program, Shape

FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "call",
    "after-all",
    "partition-id",
}
SLICES = {"dynamic-slice", "slice", "gather"}


def repeated_flops(program: Program) -> int:
    """Matrix products of every turn of every loop but the first, which XLA's cost analysis has counted."""
    return sum(
        (times - 1) * sum(_product_flops(i, program.computations[name]) for i in program.computations[name].values())
        for name, times in program.executions().items()
    )


def hbm_bytes(program: Program) -> int:
    """Bytes read from and written to HBM; what stays in the chip's own memories costs nothing here."""
    inside = {
        i.calls["calls"]
        for c in program.computations.values()
        for i in c.values()
        if i.opcode == "fusion" and "calls" in i.calls
    }
    total = 0
    for name, times in program.executions().items():
        if name not in inside:
            computation = program.computations[name]
            total += times * sum(_traffic(i, computation, program) for i in computation.values())
    return total


def _product_flops(instruction: Instruction, computation: Mapping[str, Instruction]) -> int:
    """2 flops for each multiplication whose factors are both there, as XLA counts; 0 for what is no matrix product."""
    if instruction.opcode == "dot":
        (left, *_) = (computation[name].shapes[0] for name in instruction.operands)
        contracted = [
            left.lengths[int(n)] for n in re.findall(r"\d+", instruction.attribute("lhs_contracting_dims") or "")
        ]
        return 2 * math.prod(instruction.shapes[0].lengths) * math.prod(contracted)
    if instruction.opcode != "convolution":
        return 0
    left, kernel = (computation[name].shapes[0].lengths for name in instruction.operands)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    lengths = [
        dict(zip(names, sizes)) for names, sizes in zip(labels.groups(), (left, kernel, instruction.shapes[0].lengths))
    ]
    pairs = [
        _overlaps(lengths[0][d], lengths[1][d], lengths[2][d], _window(instruction, int(d)))
        for d in labels[2]
        if d.isdigit()
    ]
    return 2 * lengths[2]["b"] * lengths[2]["f"] * lengths[1]["i"] * math.prod(pairs)


def _window(instruction: Instruction, dimension: int) -> dict[str, int]:
    """Stride, padding and dilations along one dimension, as in window={size=3x3 pad=1_1x1_1}."""
    text = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    given = dict(re.findall(r"(\w+)=(\S+)", text[1])) if text else {}
    at = lambda name: given[name].split("x")[dimension] if name in given else None  # noqa: E731
    low = int((at("pad") or "0_0").split("_")[0])
    return {
        "stride": int(at("stride") or 1),
        "low": low,
        "left": int(at("lhs_dilate") or 1),
        "right": int(at("rhs_dilate") or 1),
    }


def _overlaps(left: int, kernel: int, out: int, window: Mapping[str, int]) -> int:
    """Pairs of an output and a kernel position that meet an input, not padding and not a dilation's gap."""
    place = np.arange(out)[:, None] * window["stride"] + np.arange(kernel) * window["right"] - window["low"]
    inside = (place >= 0) & (place <= (left - 1) * window["left"])
    return int((inside & (place % window["left"] == 0)).sum())


def _traffic(instruction: Instruction, computation: Mapping[str, Instruction], program: Program) -> int:
    if instruction.opcode in FREE or instruction.opcode.endswith(("-done", "-update")):
        return 0
    operands = [computation[name].shapes for name in instruction.operands if name in computation]
    if instruction.opcode in (
        "copy-start",
        "slice-start",
    ):  # shapes of destination, source and semaphore, in either order
        moved = min((shape.bytes for shape in instruction.shapes[:2]), default=0)
        return moved * sum(shape.in_hbm for shape in instruction.shapes[:2])
    if instruction.opcode == "fusion" and "calls" in instruction.calls:
        return _fusion_traffic(instruction, operands, program.computations[instruction.calls["calls"]])
    if instruction.opcode in SLICES:
        return 2 * _in_hbm(instruction.shapes)
    if instruction.opcode == "dynamic-update-slice":
        return 2 * _in_hbm(operands[1])
    return _in_hbm(instruction.shapes) + sum(map(_in_hbm, operands))


def _fusion_traffic(fusion: Instruction, operands: list[tuple[Shape, ...]], body: Mapping[str, Instruction]) -> int:
    """A fusion reads only the slices that it takes, and writes only those that it updates in place."""
    parameters = {int(i.inside): i.name for i in body.values() if i.opcode == "parameter"}
    read = sum(
        _read(parameters[number], shapes, body) for number, shapes in enumerate(operands) if number in parameters
    )
    (root,) = (i for i in body.values() if i.root)
    results = [body[name] for name in root.operands] if root.opcode == "tuple" else [root]
    written = sum(_written(result, shape, body) for result, shape in zip(results, fusion.shapes))
    return read + written


def _read(parameter: str, shapes: tuple[Shape, ...], body: Mapping[str, Instruction]) -> int:
    users = [i for i in body.values() if parameter in i.operands]
    if users and all(i.opcode in SLICES and i.operands[0] == parameter for i in users) and shapes[0].in_hbm:
        return sum(shape.bytes for i in users for shape in i.shapes)
    updated = users and all(i.opcode == "dynamic-update-slice" and i.operands[0] == parameter for i in users)
    return 0 if updated else _in_hbm(shapes)


def _written(result: Instruction, shape: Shape, body: Mapping[str, Instruction]) -> int:
    while result.opcode == "bitcast":
        result = body[result.operands[0]]
    if result.opcode == "dynamic-update-slice":
        return body[result.operands[1]].shapes[0].bytes if shape.in_hbm else 0
    return 0 if result.opcode == "parameter" else _in_hbm((shape,))


def _in_hbm(shapes: tuple[Shape, ...]) -> int:
    return sum(shape.bytes for shape in shapes if shape.in_hbm)

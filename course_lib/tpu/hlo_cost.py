"""Arithmetic and memory traffic of a compiled program, with every turn of its loops. Needs NumPy.

XLA's own cost analysis counts a loop's body once, and so only the first layer of a scanned transformer.
What the other turns add is counted here from the program's text.
"""

import math
import re
from collections.abc import Mapping

import numpy as np

from course_lib.tpu.hlo import HloProgram, Instruction, Shape

NO_TRAFFIC = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"}
NO_TRAFFIC |= {"while", "conditional", "call"}  # what they call has its own
SLICES = {"dynamic-slice", "slice", "gather"}


def repeated_flops(program: HloProgram) -> int:
    """Matrix products of every turn of every loop but the first, which XLA's cost analysis has counted."""
    total = 0
    for name, times in program.executions().items():
        computation = program.computations[name]
        total += (times - 1) * sum(_product_flops(one, computation) for one in computation.values())
    return total


def hbm_bytes(program: HloProgram) -> int:
    """Bytes read from and written to HBM; what stays in the chip's own memories costs nothing here."""
    instructions = (one for computation in program.computations.values() for one in computation.values())
    fused = {one.calls.get("calls") for one in instructions if one.opcode == "fusion"}
    total = 0
    for name, times in program.executions().items():
        if name not in fused:
            computation = program.computations[name]
            total += times * sum(_traffic(one, computation, program) for one in computation.values())
    return total


def _product_flops(instruction: Instruction, computation: Mapping[str, Instruction]) -> int:
    """2 flops for each multiplication of two numbers, none of them padding, as XLA counts; 0 for other instructions."""
    if instruction.opcode not in ("dot", "convolution"):
        return 0
    left, right = (computation[name].shapes[0].lengths for name in instruction.operands)
    out = instruction.shapes[0].lengths
    if instruction.opcode == "dot":
        contracted = re.findall(r"\d+", instruction.attribute("lhs_contracting_dims") or "")
        return 2 * math.prod(out) * math.prod(left[int(n)] for n in contracted)
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    left, right, out = (dict(zip(names, lengths)) for names, lengths in zip(labels.groups(), (left, right, out)))
    window = _window(instruction)
    pairs = (_overlaps(left[d], right[d], out[d], window, int(d)) for d in out if d.isdigit())
    return 2 * out["b"] * out["f"] * right["i"] * math.prod(pairs)


def _window(instruction: Instruction) -> dict[str, list[str]]:
    """What stands in window={size=3x3 pad=1_1x1_1}, by name, dimension by dimension."""
    text = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    return {name: value.split("x") for name, value in re.findall(r"(\w+)=(\S+)", text[1] if text else "")}


def _overlaps(left: int, kernel: int, out: int, window: Mapping[str, list[str]], dimension: int) -> int:
    """Pairs of an output and a kernel position that meet an input, not padding and not a dilation's gap."""

    def given(name: str) -> int:
        return int(window[name][dimension]) if name in window else 1

    low = int(window["pad"][dimension].split("_")[0]) if "pad" in window else 0
    place = np.arange(out)[:, None] * given("stride") + np.arange(kernel) * given("rhs_dilate") - low
    inside = (place >= 0) & (place <= (left - 1) * given("lhs_dilate"))
    return int((inside & (place % given("lhs_dilate") == 0)).sum())


def _traffic(instruction: Instruction, computation: Mapping[str, Instruction], program: HloProgram) -> int:
    opcode, shapes = instruction.opcode, instruction.shapes
    if opcode in NO_TRAFFIC or opcode.endswith(("-done", "-update")):
        return 0
    operands = [computation[name].shapes for name in instruction.operands if name in computation]
    if opcode in ("copy-start", "slice-start"):  # shapes of destination, source and semaphore, in either order
        moved = min((shape.bytes for shape in shapes[:2]), default=0)
        return moved * sum(shape.in_hbm for shape in shapes[:2])
    if opcode == "fusion" and "calls" in instruction.calls:
        return _fusion_traffic(instruction, operands, program.computations[instruction.calls["calls"]])
    if opcode in SLICES:
        return 2 * _in_hbm(shapes)
    if opcode == "dynamic-update-slice":
        return 2 * _in_hbm(operands[1])
    return _in_hbm(shapes) + sum(map(_in_hbm, operands))


def _fusion_traffic(fusion: Instruction, operands: list[tuple[Shape, ...]], body: Mapping[str, Instruction]) -> int:
    """A fusion reads only the slices that it takes, and writes only those that it updates in place."""
    parameters = {int(one.inside): one.name for one in body.values() if one.opcode == "parameter"}
    given = enumerate(operands)
    read = sum(_read(parameters[number], shapes, body) for number, shapes in given if number in parameters)
    (root,) = (one for one in body.values() if one.root)
    results = [body[name] for name in root.operands] if root.opcode == "tuple" else [root]
    return read + sum(_written(result, shape, body) for result, shape in zip(results, fusion.shapes))


def _read(parameter: str, shapes: tuple[Shape, ...], body: Mapping[str, Instruction]) -> int:
    users = [one for one in body.values() if parameter in one.operands]
    first = {one.opcode for one in users} if all(one.operands[0] == parameter for one in users) else set()
    if first == {"dynamic-update-slice"}:
        return 0
    if first and first <= SLICES and shapes[0].in_hbm:
        return sum(shape.bytes for one in users for shape in one.shapes)
    return _in_hbm(shapes)


def _written(result: Instruction, shape: Shape, body: Mapping[str, Instruction]) -> int:
    while result.opcode == "bitcast":
        result = body[result.operands[0]]
    if result.opcode == "dynamic-update-slice":
        return body[result.operands[1]].shapes[0].bytes if shape.in_hbm else 0
    return 0 if result.opcode == "parameter" else _in_hbm((shape,))


def _in_hbm(shapes: tuple[Shape, ...]) -> int:
    return sum(shape.bytes for shape in shapes if shape.in_hbm)

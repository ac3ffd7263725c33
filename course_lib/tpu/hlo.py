"""Reads the text of a compiled XLA program (HLO): its instructions, and how often each runs. Standard library only.

Written for what libtpu 0.0.21 and 0.0.42 print; tests/test_tpu.py keeps real snippets.
"""

import functools
import math
import re
from collections import Counter
from dataclasses import dataclass

BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128, "token": 0}
CALLED = re.compile(r"\b(calls|body|condition|to_apply)=%?([\w.\-]+)")
SHAPE = re.compile(r"(?<![\w.])([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?")


@dataclass(frozen=True)
class Shape:
    """An array as one device holds it; `in_hbm` is False for the chip's own small memories."""

    kind: str
    lengths: tuple[int, ...]
    in_hbm: bool = True

    @property
    def bytes(self) -> int:
        bits = BITS[self.kind] if self.kind in BITS else int(re.search(r"\d+", self.kind)[0])  # s32: 32, f8e4m3fn: 8
        return math.prod(self.lengths) * bits // 8


@dataclass(frozen=True)
class Instruction:
    """One line: %name = shapes opcode(operands), attributes. `shapes` has one item, or a tuple's items."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    inside: str
    attributes: str
    root: bool

    def attribute(self, name: str) -> str | None:
        """The value of name=value, up to the comma that ends it."""
        found = re.search(rf"\b{name}=((?:\{{[^=]*?\}}|[^,{{])+)", self.attributes)
        return found and found[1]

    @property
    def calls(self) -> dict[str, str]:
        """The computations that it runs, by role; what a reduction applies to each pair of numbers is left out."""
        if self.opcode == "conditional":
            return dict(enumerate(re.findall(r"%([\w.\-]+)", self.attribute("branch_computations") or "")))
        called = dict(CALLED.findall(self.attributes))
        if self.opcode != "call":
            called.pop("to_apply", None)
        return called


@dataclass(frozen=True)
class HloProgram:
    """The computations of a compiled program by name, each with its instructions by name."""

    computations: dict[str, dict[str, Instruction]]
    entry: str

    def executions(self) -> Counter[str]:
        """How often each computation runs in one call of the program: a loop's body once for each turn."""
        runs: Counter[str] = Counter()

        def enter(name: str, times: int) -> None:
            runs[name] += times
            for instruction in self.computations[name].values():
                turns = (self.turns(instruction, name) or 1) if instruction.opcode == "while" else 1
                for called in instruction.calls.values():
                    enter(called, times * turns)

        enter(self.entry, 1)
        return runs

    def unknown_loops(self) -> int:
        """Loops whose number of turns the text does not show; they are counted as one turn."""
        each = ((one, name) for name in self.executions() for one in self.computations[name].values())
        return sum(one.opcode == "while" and self.turns(one, name) is None for one, name in each)

    def turns(self, loop: Instruction, computation: str) -> int | None:
        """A loop's number of turns: as the compiler notes it, or from a condition `counter < constant`."""
        if known := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(known[1])
        condition = self.computations[loop.calls["condition"]]
        (test,) = (i for i in condition.values() if i.root)
        if test.opcode != "compare" or test.attribute("direction") != "LT":
            return None
        counter, limit = (self._source(condition, name) for name in test.operands)
        position = counter.attribute("index")
        state = self.computations[computation][loop.operands[0]]
        if limit.opcode != "constant" or position is None or state.opcode != "tuple":
            return None
        start = self._source(self.computations[computation], state.operands[int(position)])
        return int(limit.inside) - int(start.inside) if start.opcode == "constant" else None

    @staticmethod
    def _source(computation: dict[str, Instruction], name: str) -> Instruction:
        """The instruction that a value comes from, copies left out."""
        while computation[name].opcode in ("copy", "bitcast", "copy-done", "copy-start"):
            name = computation[name].operands[0]
        return computation[name]


def parse(text: str) -> HloProgram:
    """The program that `compiled.as_text()` prints."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry = ""
    for line in text.splitlines():
        header = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if header:
            current = computations[header[2]] = {}
            entry = header[2] if header[1] else entry
        elif re.match(r"\s+(ROOT )?%?[\w.\-]+ = ", line):
            instruction = _instruction(line)
            current[instruction.name] = instruction
    return HloProgram(computations, entry)


def _instruction(line: str) -> Instruction:
    head, _, rest = line.partition(" = ")
    shapes, rest = _balanced(rest) if rest.startswith("(") else rest.split(" ", 1)
    opcode, _, rest = rest.strip().partition("(")
    inside, attributes = _balanced("(" + rest)
    root, _, name = head.strip().rpartition(" ")
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    return Instruction(name.lstrip("%"), opcode, _shapes(shapes), operands, inside[1:-1], attributes, bool(root))


def _balanced(text: str) -> tuple[str, str]:
    """Split after the parenthesis that closes the first one."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: position + 1], text[position + 1 :]
    raise ValueError(f"unbalanced: {text[:80]}")


@functools.lru_cache(10_000)
def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(
        Shape(kind, tuple(map(int, re.findall(r"\d+", lengths))), not re.search(r"S\([1-9]", layout))  # S(1): on-chip
        for kind, lengths, layout in SHAPE.findall(text)
    )

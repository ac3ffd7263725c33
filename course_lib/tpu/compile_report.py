"""The compiler's answer to a train step, per device: a table as text and as HTML. Standard library only."""

from dataclasses import asdict, dataclass
from html import escape

from course_lib.table import Table
from course_lib.tpu.chips import GIB
from course_lib.tpu.compile_request import Request

ROWS = {
    "parameters": "parameters",
    "optimizer": "optimizer state",
    "others": "other variables",
    "batch": "batch",
    "padding": "padding of these to tiles",
    "outputs": "outputs",
    "temporaries": "activations and temporaries",
    "program": "program",
}


@dataclass(frozen=True)
class CompiledMemory:
    """Bytes of one device, from the compiler's memory analysis; `total` is arguments, outputs, temporaries and program.

    Buffers that are never alive at once can share memory, so the total can be more than the chip has:
    `peak` is what is alive at the fullest moment. It also counts what lies in the chip's own small memory.

    parameters, optimizer, others, batch  counted from the layout: trained variables, the optimizer's,
                 the model's other variables, and this device's rows
    padding      what the chip's tiles add to all of these
    outputs      results that take no argument's place: the loss
    temporaries  activations, gradients and whatever else lives within the step
    program      the machine code
    peak         the compiler's own figure, not a part of the total
    """

    parameters: int
    optimizer: int
    others: int
    batch: int
    padding: int
    outputs: int
    temporaries: int
    program: int
    peak: int

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in ROWS)


@dataclass(frozen=True)
class Shortage:
    """Why the compiler refuses a step: needed and available bytes of one device's memory, and its own words.

    needed  bytes; None when it does not say
    of      what needs them: "temporaries", or "the whole program"
    """

    needed: int | None
    available: int | None
    of: str
    message: str

    def __str__(self) -> str:
        if self.needed is None:
            return self.message
        room = f" and the chip has room for {self.available / GIB:.2f} GiB" if self.available else ""
        return f"{self.of} {'need' if self.of.endswith('s') else 'needs'} {self.needed / GIB:.2f} GiB{room}"


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind along the same mesh axes, in one step.

    axis          the mesh axis, or several as "data+model"; "part of" one when XLA
                  splits an axis, as it does to use a torus' dimensions in turn
    devices       that take part together
    count         per step, a loop's turns included
    buffer_bytes  per device and step: what is reduced, or the result that is gathered
    sent_bytes    that each device sends for it, by the ring's formula
    """

    kind: str
    axis: str
    devices: int
    count: int
    buffer_bytes: int
    sent_bytes: int


@dataclass(frozen=True, repr=False)
class CompileReport:
    """One compiled train step; everything is per device and per step.

    parameter_count  of the whole model
    state_bytes      parameters and optimizer state of one device, counted from the layout
    memory           None when it does not fit, and then `shortage` says why
    flops            arithmetic, as XLA's cost analysis counts it, with every turn of the loops
    hbm_bytes        counted from the program: between HBM and the chip, with every turn of the loops
    collectives      the largest sender first
    unknown_loops    loops whose number of turns the program does not show, counted as one turn
    compiler         "libtpu 0.0.42.1"
    compile_seconds  of lowering and compiling
    stored           True for a result that was stored on another machine
    """

    request: Request
    parameter_count: int
    state_bytes: int
    memory: CompiledMemory | None
    shortage: Shortage | None
    flops: float = 0
    hbm_bytes: int = 0
    collectives: tuple[Collective, ...] = ()
    unknown_loops: int = 0
    compiler: str = ""
    compile_seconds: float = 0
    stored: bool = False

    @property
    def fits(self) -> bool:
        return self.memory is not None

    @property
    def sent_bytes(self) -> int:
        return sum(row.sent_bytes for row in self.collectives)

    @property
    def roofline_seconds(self) -> dict[str, float]:
        """The least time that each part can take at the chip's published peaks."""
        chip = self.request.slice.chip
        return {
            "compute": self.flops * chip.devices / chip.flops_per_second,
            "memory": self.hbm_bytes * chip.devices / chip.read_per_second,
            "interconnect": self.sent_bytes * chip.devices / chip.sent_per_second,
        }

    @property
    def roofline_shares(self) -> dict[str, float]:
        """Each part's share of their sum, as if nothing overlapped."""
        seconds = self.roofline_seconds
        whole = sum(seconds.values()) or 1
        return {part: value / whole for part, value in seconds.items()}

    def as_dict(self) -> dict:
        derived = {"fits": self.fits, "roofline_seconds": self.roofline_seconds if self.fits else None}
        return {**asdict(self), **derived, "total_bytes": self.memory.total if self.memory else None}

    @classmethod
    def of(cls, fields: dict) -> "CompileReport":
        """A report from `as_dict`, also after a round trip through JSON."""
        own = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        own["request"] = Request(**own["request"])
        own["memory"] = own["memory"] and CompiledMemory(**own["memory"])
        own["shortage"] = own["shortage"] and Shortage(**own["shortage"])
        own["collectives"] = tuple(Collective(**row) for row in own["collectives"])
        return cls(**own)

    @property
    def title(self) -> str:
        part = self.request.slice
        chips = "1 chip" if part.chips == 1 else f"{part.chips:,} chips"
        origin = f"{'stored result, ' if self.stored else ''}compiled by {self.compiler}"
        return (
            f"{self.request.words}; {self.parameter_count:,} parameters\n"
            f"{part}, {chips}, {self.request.layout_words}; {origin}"
        )

    @property
    def verdict(self) -> str:
        room = f"{self.request.slice.device_memory_bytes / GIB:.0f} GiB of {self._unit}"
        if self.fits:
            return f"Fits: at the fullest moment {self.memory.peak / GIB:.2f} GiB of the {room}."
        state = f"Parameters and optimizer state alone take {self.state_bytes / GIB:.2f} GiB."
        return f"Does not fit the {room}: {self.shortage}. {state}"

    @property
    def _unit(self) -> str:
        devices = self.request.slice.chip.devices
        return "a chip" if devices == 1 else f"a device, 1/{devices} of a chip"

    def _tables(self) -> list[Table]:
        if not self.fits:
            return []
        amounts = [(words, getattr(self.memory, name)) for name, words in ROWS.items()]
        amounts += [("total", self.memory.total), ("alive at the fullest moment", self.memory.peak)]
        memory = [(words, f"{amount:,}", f"{amount / GIB:.3f}") for words, amount in amounts]
        sent = [
            (row.kind, row.axis, row.devices, f"{row.count:,}", f"{row.buffer_bytes:,}", f"{row.sent_bytes:,}")
            for row in self.collectives
        ]
        work = (f"{self.flops:.4g} flops", f"{self.hbm_bytes:,} B", f"{self.sent_bytes:,} B")
        least, shares = self.roofline_seconds, self.roofline_shares
        roofline = [(part, did, f"{1e3 * least[part]:.3g}", f"{shares[part]:.0%}") for part, did in zip(least, work)]
        collectives = "Collectives in a step" if sent else "Collectives in a step: none"
        return [
            Table(("", "bytes", "GiB"), memory, f"Memory of {self._unit}"),
            Table(("kind", "mesh axis", "devices", "count", "buffer bytes", "sent bytes"), sent, collectives, (0, 1)),
            Table(
                ("", "work", "least ms", "share"), roofline, f"Roofline, peaks from {self.request.slice.chip.source}"
            ),
        ]

    @property
    def _notes(self) -> list[str]:
        if not self.unknown_loops:
            return []
        return [f"{self.unknown_loops} loop(s) do not show their number of turns and are counted once."]

    def __repr__(self) -> str:
        tables = [line for table in self._tables() for line in ("", repr(table))]
        return "\n".join([self.title, self.verdict, *tables, *self._notes])

    def _repr_html_(self) -> str:
        title = "<br>".join(map(escape, self.title.splitlines()))
        tables = "".join(table._repr_html_() for table in self._tables())
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes)
        return f"<p>{title}</p><p><b>{escape(self.verdict)}</b></p>{tables}{notes}"

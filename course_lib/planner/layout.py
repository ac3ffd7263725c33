"""How a training step is spread over its chips, as data. Standard library only; taught in notebooks/10."""

import math
from dataclasses import dataclass

from course_lib.errors import CourseError

RECOMPUTE = ("none", "selective", "full")
ZERO = (0, 1, 2, 3)
DEGREES = ("data", "tensor", "pipeline", "sequence")  # their product is the number of chips
OFFLOAD = ("optimizer", "activations")


@dataclass(frozen=True)
class Precision:
    """Formats of a training step, and what a parameter costs in them.

    format     of the factors of matrix products
    compute    bytes of a number in the forward pass
    weights    bytes per parameter, of the copy that the forward pass reads
    gradients  bytes per parameter, until the update
    master     bytes per parameter beside the optimizer's slots, divided with them by ZeRO:
               a float32 master copy, and in float16 the gradients' float32 copy
    compiled   the step is one program; otherwise Python starts each operation
    """

    format: str
    compute: int
    weights: int
    gradients: int
    master: int
    compiled: bool = False

    @property
    def adam_bytes(self) -> int:
        """Per parameter, with Adam's two float32 numbers and no ZeRO."""
        return self.weights + self.gradients + self.master + 2 * 4


# Keras and MaxText keep float32 variables and cast them where they are used; so does PyTorch's FSDP with a
# mixed-precision policy. The others keep half precision for the forward pass and a float32 master copy beside the
# optimizer. DeepSpeed's gradients stay in half precision (Rajbhandari and others 2020, section 3.1); Megatron-Core's
# are float32 (its distributed optimizer's documentation counts 18 bytes); BLOOM and nanotron hold both (their logs).
PRECISIONS = {
    "float32": Precision("float32", 4, 4, 4, 0, compiled=True),
    "mixed_bfloat16": Precision("bfloat16", 2, 4, 4, 0, compiled=True),
    "mixed_float16": Precision("float16", 2, 4, 4, 0, compiled=True),
    "bfloat16_fsdp": Precision("bfloat16", 2, 4, 4, 0),
    "bfloat16_deepspeed": Precision("bfloat16", 2, 2, 2, 4),
    "bfloat16_megatron": Precision("bfloat16", 2, 2, 4, 4),
    "bfloat16_master": Precision("bfloat16", 2, 2, 2 + 4, 4),
    "float16_master": Precision("float16", 2, 2, 2, 4 + 4),
    "float8_master": Precision("float8", 2, 2, 2 + 4, 4),
    "float8_megatron": Precision("float8", 2, 2, 4, 4),
    "float8_fsdp": Precision("float8", 2, 4, 4, 0),
}


@dataclass(frozen=True)
class Layout:
    """One way to spread a training step over chips.

    data         replicas, each with an equal share of the global batch
    tensor       devices that share each matrix product
    pipeline     stages, as one forward, one backward runs them
    sequence     devices that share the tokens of one example (context parallelism)
    micro_batch  examples of one replica that go through the model together
    recompute    "none"; "selective": the attention's scores again in the backward pass;
                 "full": keep only each block's input
    zero         ZeRO stage: 1 divides the optimizer's state over the replicas, 2 the
                 gradients too, 3 the parameters too (FSDP)
    precision    one of PRECISIONS
    interleave   chunks of the model per stage
    split_norms  tensor parallelism also divides what lies between its matrix products
                 (Megatron's sequence parallelism)
    keep_gathered  with split_norms: keep the all-gathered input of a matrix product, as nanotron does,
                 instead of repeating the all-gather in the backward pass, as Megatron does
    chunked_loss  the logits are made, used and dropped in chunks, an eighth at a time (torchtune's and
                 torchtitan's default number; fused kernels such as Liger's do the same)
    shard        under ZeRO-3: neighbouring replicas that divide the states among them, each group holding all
                 (hybrid sharding, HSDP); all replicas by default
    expert       neighbouring replicas that deal out a layer's experts among them (expert parallelism)
    offload      of OFFLOAD: what is kept in the host's memory instead of the chip's. The optimizer's state is updated
                 there (ZeRO-Offload, arXiv 2101.06840); activations are sent there until the backward pass
    Raises       CourseError for a size below 1, a word that is not known, or groups that don't divide the replicas
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    sequence: int = 1
    micro_batch: int = 1
    recompute: str = "none"
    zero: int = 0
    precision: str = "mixed_bfloat16"
    interleave: int = 1
    split_norms: bool = False
    keep_gathered: bool = False
    chunked_loss: bool = False
    shard: int | None = None
    expert: int = 1
    offload: tuple[str, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "offload", tuple(self.offload))
        for name in (*DEGREES, "micro_batch", "interleave", "expert", "shard"):
            given = getattr(self, name)
            if name == "shard" and given is None:
                continue
            if not isinstance(given, int) or given < 1:
                raise CourseError(f"Layout.{name} must be a whole number of at least 1, not {given!r}.")
        for name, known in {"recompute": RECOMPUTE, "zero": ZERO, "precision": tuple(PRECISIONS)}.items():
            given, words = getattr(self, name), ", ".join(map(str, known))
            if given not in known:
                raise CourseError(f"Layout.{name} must be one of {words}, not {given!r}.")
        if not set(self.offload) <= set(OFFLOAD):
            raise CourseError(f"Layout.offload must hold some of {', '.join(OFFLOAD)}, not {self.offload!r}.")
        for name, size in {"shard": self.sharing, "expert": self.expert}.items():
            if self.replicas % size:
                raise CourseError(
                    f"{self.replicas} replicas can't be cut into groups of {size} by {name}: take a divisor."
                )
        if self.shard and self.zero != 3:
            raise CourseError(
                f"groups of {self.shard} replicas divide their states by ZeRO-3, not by ZeRO-{self.zero}."
            )

    @property
    def chips(self) -> int:
        return math.prod(getattr(self, name) for name in DEGREES)

    @property
    def replicas(self) -> int:
        """Devices that hold the same part of the model, and so share ZeRO's state and sum their gradients."""
        return self.data * self.sequence

    @property
    def sharing(self) -> int:
        """Replicas that divide among them what ZeRO divides."""
        return self.shard or self.replicas

    @property
    def sharing_experts(self) -> int:
        """Of these, replicas that hold the same experts."""
        return max(1, self.sharing // self.expert)

    @property
    def numbers(self) -> Precision:
        return PRECISIONS[self.precision]

    def micro_batches(self, global_batch: int) -> int:
        """m: micro-batches that each replica takes one after another in a step.

        Raises  CourseError when the global batch does not divide
        """
        together = self.data * self.micro_batch
        if global_batch < 1 or global_batch % together:
            raise CourseError(
                f"a global batch of {global_batch:,} does not divide into {self.data} replicas x micro-batches of "
                f"{self.micro_batch}: take a multiple of {together}."
            )
        return global_batch // together

    def __str__(self) -> str:
        parts = [f"{name} {getattr(self, name)}" for name in DEGREES if getattr(self, name) > 1]
        parts.append(f"micro-batch {self.micro_batch}")
        if self.recompute != "none":
            parts.append(f"recompute {self.recompute}")
        if self.zero:
            parts.append(f"ZeRO-{self.zero}" + (f" in groups of {self.shard}" if self.shard else ""))
        if self.expert > 1:
            parts.append(f"expert {self.expert}")
        if self.interleave > 1:
            parts.append(f"interleave {self.interleave}")
        parts += [f"{part} in the host's memory" for part in self.offload]
        return ", ".join([*parts, self.precision])

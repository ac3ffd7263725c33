"""Memory that the TPU compiler needs for the course's transformer, from a few formulas.

Standard library only. memory.py counts what a step has to keep. XLA keeps more: this module counts the program
that tpu.compile_step makes of models.transformer with Adam, whose blocks are one scanned block. Which tensors
live was read from the loops of compiled programs. In mixed_bfloat16 a block keeps s b h (68 + 6 a s / h) bytes,
about twice the 34 + 5 a s / h of Korthikanti and others (2022), arXiv 2205.05198: Keras' norms keep three float32
results each, and there are four numbers around the activation function where the paper counts two.
"""

from dataclasses import dataclass, replace

from course_lib.errors import CourseError
from course_lib.planner.layout import Layout
from course_lib.planner.memory import Memory
from course_lib.planner.transformer import Transformer

MIB = 2**20
# What no formula gives. Chosen on 21 compiled steps, none of them among those of tests/test_plan_compiler.py: models of
# 17 to 118 million parameters on v5e, in every layout of compile_step.
ON_CHIP_BYTES = 96 * MIB  # of the temporaries, what finds a place in v5e's 128 MiB of on-chip memory instead of HBM
RESERVED_BYTES = 256 * MIB  # of a v5e's 16 GiB the compiler offers 15.75
AROUND = (0.9, 1.1)  # the compiler's figure over the planner's, except where compiled_memory says "falls short"
PROGRAM_BYTES = 20 * MIB  # machine code: 6 to 30 MiB, whatever the number of blocks
UNSHARED = 0.6  # of the blocks' gradients, what the compiler counts beside buffers that are dead by then; 0 to 1
# A logit on its way to the gradient: in bfloat16 XLA fuses the softmax with the products on both sides, in
# float32 the logits and their gradient are tensors of their own.
LOGIT_BYTES = {"mixed_bfloat16": 2, "float32": 4 + 4}


@dataclass(frozen=True)
class CompiledStep:
    """The tensors of one device's train step, in bytes unless a line says numbers.

    micro_batches  that share one update, one after another
    Leaves out     under FSDP, what is gathered of a block's matrices
    """

    model: Transformer
    layout: Layout
    micro_batches: int

    @property
    def shards(self) -> int:
        """Parts that FSDP makes of every parameter, gradient and slot."""
        return self.layout.data if self.layout.zero == 3 else 1

    @property
    def hidden(self) -> int:
        """Numbers of one tensor between two layers, b s h; tensor parallelism does not divide it."""
        return self.layout.micro_batch * self.model.sequence_length * self.model.hidden

    @property
    def block_matrices(self) -> float:
        """Numbers in the matrices of all blocks: four of the attention, two of the feed-forward layer."""
        h, ffn = self.model.hidden, self.model.ffn
        return self.model.layers * (4 * h * h + 2 * h * ffn) / self.layout.tensor / self.shards

    @property
    def head(self) -> float:
        """Numbers in the output's matrix; FSDP gathers it, and does not divide its gradient until it is scattered."""
        return self.model.vocabulary * self.model.hidden / self.layout.tensor

    @property
    def parameters(self) -> float:
        """Numbers; the embeddings, norms and biases are on every device of a tensor-parallel group."""
        h, tokens = self.model.hidden, self.model.vocabulary
        embeddings = (tokens + self.model.sequence_length) * h
        norms_and_biases = self.model.layers * (9 * h + self.model.ffn) + 2 * h + tokens
        return self.block_matrices + (self.head + embeddings + norms_and_biases) / self.shards

    @property
    def norms(self) -> int:
        """Of one block, in float32: two norms, each with its input, that less the mean, gamma over the deviation."""
        return 2 * 3 * 4 * self.hidden

    @property
    def factors(self) -> float:
        """Of one block: the factors of its matrix products, in bfloat16, and the activation function's inner results.

        Both norms' results stay whole; queries, keys, values, the attention's result and the feed-forward layer are
        divided.
        """
        inner = self.hidden * self.model.ffn / self.model.hidden
        feed_forward = (3 * self.layout.numbers.compute + 2) * inner  # inner results, and the second product's factor
        return 2 * 2 * self.hidden + (4 * 2 * self.hidden + feed_forward) / self.layout.tensor

    @property
    def scores(self) -> float:
        """Numbers of one block's attention scores, b a s s: Keras' attention on a TPU stores them."""
        return self.layout.micro_batch * self.model.heads * self.model.sequence_length**2 / self.layout.tensor

    @property
    def kept(self) -> float:
        """Of all blocks, until the backward pass; the scores' exponentials in float32, their softmax in bfloat16."""
        if self.layout.recompute == "full":
            return self.model.layers * self.layout.numbers.compute * self.hidden
        return self.model.layers * (self.norms + self.factors + (4 + 2) * self.scores)

    @property
    def casts(self) -> float:
        """bfloat16 copies of the blocks' matrices, and of the others where micro-batches share them."""
        shared = (self.head + self.model.vocabulary * self.model.hidden) / self.shards
        return 2 * (self.block_matrices + (shared if self.micro_batches > 1 else 0))

    @property
    def sums(self) -> float:
        """The float32 gradients to which micro-batches add."""
        return 4 * self.parameters if self.micro_batches > 1 else 0

    @property
    def logits(self) -> float:
        """The output with its gradient, b s V numbers."""
        numbers = self.layout.micro_batch * self.model.sequence_length * self.model.vocabulary / self.layout.tensor
        return LOGIT_BYTES[self.layout.precision] * numbers

    def at_the_loss(self) -> Memory:
        """Every block's activations, the logits, and the output's matrix cast to bfloat16."""
        return self._moment(self.sums, self.logits + 2 * self.head)

    def in_the_backward_pass(self) -> Memory:
        """As the loop over the blocks begins: room for all their gradients and the output's.

        Within a block lives the scores' gradient; where blocks are recomputed, what the block would have kept,
        except the norms' results, which XLA then fuses with what uses them.
        """
        again = self.layout.recompute == "full"
        within = self.factors + (4 + 2) * self.scores if again else 4 * self.scores
        return self._moment(self.sums + 4 * (self.block_matrices + self.head), within)

    @property
    def counted_twice(self) -> float:
        """What the compiler counts as temporaries beyond what is alive at once.

        The logits are dead before the blocks' gradients get their room, and could share it.
        """
        return self.logits + UNSHARED * 4 * self.block_matrices

    def _moment(self, gradients: float, within: float) -> Memory:
        temporaries = max(0, self.casts + within - ON_CHIP_BYTES)
        return Memory(4 * self.parameters, gradients, 2 * 4 * self.parameters, self.kept, temporaries)


def compiled_memory(model: Transformer, layout: Layout, global_batch: int) -> Memory:
    """Memory of one device for a train step of models.transformer with Adam, as the TPU compiler counts it.

    Returns  Memory at the fuller of two moments. Its total predicts tpu.CompiledMemory.total; without
             `framework`, which is what the compiler adds to what is alive, it predicts `peak`
    Falls short under FSDP with recomputation, whose peak can be a fifth higher (XLA holds the logits' gradient
             through the backward pass), and with accumulation, where the compiler's total was 12% lower to 21% higher
    Raises   CourseError for a model that models.transformer does not make, and a layout that
             compile_step does not have
    """
    if not _made_here(model):
        raise CourseError(
            "models.transformer has untied embeddings, plain attention and no gates or dropout: "
            "describe it by Transformer(..., tied=False, flash=False)."
        )
    if not _split_here(layout):
        raise CourseError(
            "tpu.compile_step splits over data and tensor, with ZeRO 0 or 3, recompute none or full, "
            f"in float32 or mixed_bfloat16; this layout is {layout}."
        )
    step = CompiledStep(model, layout, layout.micro_batches(global_batch))
    fullest = max(step.at_the_loss(), step.in_the_backward_pass(), key=lambda memory: memory.total)
    return replace(fullest, framework=PROGRAM_BYTES + step.counted_twice)


def compilable(model: object, layout: Layout) -> bool:
    """Whether models.transformer makes this model and tpu.compile_step has this layout."""
    return isinstance(model, Transformer) and _made_here(model) and _split_here(layout)


def _made_here(model: Transformer) -> bool:
    return not (model.tied or model.gated or model.flash or model.dropout) and model.kv_heads == model.heads


def _split_here(layout: Layout) -> bool:
    over = layout.pipeline == layout.sequence == layout.interleave == 1 and not layout.split_norms
    return over and layout.zero in (0, 3) and layout.recompute != "selective" and layout.precision in LOGIT_BYTES

"""Memory that the TPU compiler needs for the course's transformer, from a few formulas.

Standard library only. memory.py counts what a step has to keep. XLA keeps more: this module counts the program
that tpu.compile_step makes of models.transformer with Adam, whose blocks are one scanned block. Which tensors
live was read from the loops of compiled programs. In mixed_bfloat16 a block keeps s b h (68 + 6 a s / h) bytes,
about twice the 34 + 5 a s / h of Korthikanti and others (2022), arXiv 2205.05198: Keras' norms keep three float32
results each, and there are four numbers around the activation function where the paper counts two.
"""

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
# The logits are dead before the blocks' gradients get their room, and could share it: the share of these gradients,
# 0 to 1, that the compiler counts beside them all the same.
UNSHARED = 0.6
# A logit on its way to the gradient: in bfloat16 XLA fuses the softmax with the products on both sides, in
# float32 the logits and their gradient are separate tensors.
LOGIT_BYTES = {"mixed_bfloat16": 2, "float32": 4 + 4}


def compilable(model: object, layout: Layout) -> bool:
    """Whether models.transformer makes this model and tpu.compile_step has this layout."""
    if not isinstance(model, Transformer) or model.kv_heads != model.heads or model.slots != 2:
        return False
    if model.tied or model.gated or model.flash or model.dropout or layout.split_norms or layout.chunked_loss:
        return False
    if model.experts > 1 or model.lora or model.frozen_layers or model.window or model.head_size or layout.shard:
        return False
    over_data_and_tensor = layout.pipeline == layout.sequence == layout.interleave == 1
    known = layout.zero in (0, 3) and layout.recompute != "selective" and layout.precision in LOGIT_BYTES
    return over_data_and_tensor and known


def compiled_memory(model: Transformer, layout: Layout, global_batch: int) -> Memory:
    """Memory of one device for a `compilable` train step of models.transformer with Adam, in the compiler's terms.

    Returns  Memory at the fuller of two moments. Its total predicts tpu.CompiledMemory.total; without
             `framework`, which is what the compiler adds to what is alive, it predicts `peak`
    Leaves out  under FSDP, what is gathered of a block's matrices
    Falls short under FSDP with recomputation, whose peak can be a fifth higher (XLA holds the logits' gradient
             through the backward pass), and with accumulation, where the compiler's total was 12% lower to 21% higher
    """
    h, ffn, layers, tokens = model.hidden, model.ffn, model.layers, layout.micro_batch * model.sequence_length
    accumulates, recomputes = layout.micro_batches(global_batch) > 1, layout.recompute == "full"
    tensor, shards = layout.tensor, layout.data if layout.zero == 3 else 1  # parts of every parameter under FSDP
    # Numbers. FSDP gathers the output's matrix, and does not divide its gradient until it is scattered. Embeddings,
    # norms and biases are on every device of a tensor-parallel group.
    matrices = layers * (4 * h * h + 2 * h * ffn) / tensor / shards
    embeddings, head = model.vocabulary * h, model.vocabulary * h / tensor
    others = model.sequence_length * h + layers * (9 * h + ffn) + 2 * h + model.vocabulary
    parameters = matrices + (head + embeddings + others) / shards
    # Bytes of one block's activations, and of all blocks' until the backward pass.
    factors, scores = _factors(model, layout), tokens * model.sequence_length * model.heads / tensor
    norms = 2 * 3 * 4 * tokens * h  # two norms, in float32: the input, that less the mean, gamma over the deviation
    stored = factors + (4 + 2) * scores  # the scores' exponentials in float32, their softmax in bfloat16
    kept = layers * (layout.numbers.compute * tokens * h if recomputes else norms + stored)
    # bfloat16 copies of the blocks' matrices, and of the others where micro-batches share them; the float32 gradients
    # to which micro-batches add; the output with its gradient.
    casts = 2 * (matrices + ((head + embeddings) / shards if accumulates else 0))
    sums = 4 * parameters if accumulates else 0
    logits = LOGIT_BYTES[layout.precision] * tokens * model.vocabulary / tensor

    def moment(gradients: float, within: float) -> Memory:
        temporaries = max(0, casts + within - ON_CHIP_BYTES)
        framework = PROGRAM_BYTES + logits + UNSHARED * 4 * matrices
        return Memory(4 * parameters, gradients, 2 * 4 * parameters, kept, temporaries, framework)

    at_the_loss = moment(sums, logits + 2 * head)
    # As the backward loop over the blocks begins there is room for all their gradients and the output's. Within a
    # block lives the scores' gradient; where blocks are recomputed, what the block would have kept, except the norms'
    # results, which XLA then fuses with what uses them.
    in_the_backward_pass = moment(sums + 4 * (matrices + head), stored if recomputes else 4 * scores)
    return max(at_the_loss, in_the_backward_pass, key=lambda memory: memory.total)


def _factors(model: Transformer, layout: Layout) -> float:
    """Bytes of one block: the factors of its matrix products, in bfloat16, and the activation function's inner results.

    Both norms' results stay whole; queries, keys, values, the attention's result and the feed-forward layer are
    divided.
    """
    tokens = layout.micro_batch * model.sequence_length
    feed_forward = (3 * layout.numbers.compute + 2) * tokens * model.ffn  # and the second product's factor
    return 2 * 2 * tokens * model.hidden + (4 * 2 * tokens * model.hidden + feed_forward) / layout.tensor

"""A transformer described by numbers, as a chain of blocks. Standard library only; taught in notebooks/10.

What a block keeps for its backward pass is counted as in Korthikanti and others (2022), "Reducing
activation recomputation in large transformer models", arXiv 2205.05198, section 4; their 34 s b h bytes
of a GPT block in half precision are 16 numbers per token and unit of width, and 2 bytes of dropout masks.
"""

from dataclasses import dataclass
from functools import lru_cache

from course_lib.errors import CourseError
from course_lib.planner.blocks import Block, Chain

MOST_LAYERS, MOST = 10_000, 10**8
# Kernels of a layer's forward pass, when what can be fused is: two norms, four products with what lies between
# (splitting heads, positions, the attention, its transposed result), an activation function, two residuals.
LAYER_OPERATIONS = 20


@dataclass(frozen=True)
class Transformer:
    """A decoder-only transformer.

    layers           l
    hidden           h
    heads            a
    vocabulary       V
    sequence_length  s, tokens of one example
    ffn              units of the feed-forward layer; 4 h by default
    kv_heads         heads of keys and values (grouped-query attention); all by default
    gated            the feed-forward layer has three matrices (SwiGLU), not two
    tied             the output layer shares the embedding's matrix
    flash            the attention keeps no scores (Dao and others 2022, arXiv 2205.14135)
    dropout          its masks are kept, a byte for each number that it covers
    slots            numbers that the optimizer keeps per parameter: 2 for Adam, 1 for Lion, 0 for plain SGD
    Raises           CourseError for a number below 1 or absurdly large, or kv_heads that don't divide the heads
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence_length: int
    ffn: int | None = None
    kv_heads: int | None = None
    gated: bool = False
    tied: bool = True
    flash: bool = True
    dropout: bool = False
    slots: int = 2

    def __post_init__(self):
        object.__setattr__(self, "ffn", 4 * self.hidden if self.ffn is None else self.ffn)
        object.__setattr__(self, "kv_heads", self.heads if self.kv_heads is None else self.kv_heads)
        for name in ("layers", "hidden", "heads", "vocabulary", "sequence_length", "ffn", "kv_heads"):
            most, given = MOST_LAYERS if name == "layers" else MOST, getattr(self, name)
            if not isinstance(given, int) or not 1 <= given <= most:
                found = str(given)[:20]
                raise CourseError(f"Transformer.{name} must be a whole number between 1 and {most:,}, not {found}.")
        if self.heads % self.kv_heads:
            raise CourseError(f"{self.kv_heads} heads of keys and values do not divide {self.heads} heads.")

    @property
    def parameters(self) -> int:
        return self.chain().parameters

    @lru_cache(maxsize=1024)  # noqa: B019
    def chain(self) -> Chain:
        """The blocks of one example: embedding, l times attention and feed-forward layer, output layer."""
        tokens, table = self.sequence_length, self.vocabulary * self.hidden
        embedding = Block("embedding", parameters=table, split_parameters=table)
        # The last stage of a pipeline holds the output's matrix even when it is tied to the embedding's.
        tied, own = (table, 0) if self.tied else (0, table)
        numbers = tokens * self.hidden
        sizes = {"flops": 2 * tokens * table, "inputs": numbers, "kept": numbers, "logits": tokens * self.vocabulary}
        head = Block("output", own, own, **sizes)
        blocks = (embedding, *[self._layer()] * self.layers, head)
        return Chain("transformer", blocks, self.slots, self.layers, tied, self.heads)

    def _layer(self) -> Block:
        s, h, ffn, keys = self.sequence_length, self.hidden, self.ffn, self.kv_heads / self.heads
        attention, feed_forward = h * h * (2 + 2 * keys), h * ffn * (3 if self.gated else 2)
        norms_and_biases = 2 * h if self.gated else 13 * h
        scores = self.heads * s * s
        return Block(
            "layer",
            parameters=int(attention + feed_forward + norms_and_biases),
            split_parameters=int(attention + feed_forward),
            flops=2 * s * (attention + feed_forward),
            score_flops=4 * s * s * h,
            # Both norms' inputs, and what enters the attention and the feed-forward layer.
            kept=4 * s * h,
            # Queries, keys and values, what enters the attention's last product; the feed-forward layer's inside.
            kept_split=s * h * (2 + 2 * keys) + s * ffn * (4 if self.gated else 2),
            # The softmax's result, its dropout's mask (a byte, half a number) and the result of that.
            kept_scores=0 if self.flash else scores * (2.5 if self.dropout else 1),
            masks=2 * s * h if self.dropout else 0,
            inputs=s * h,
            operations=LAYER_OPERATIONS,
            exchanged=2 * s * h,
            keys=2 * s * h * keys,
        )

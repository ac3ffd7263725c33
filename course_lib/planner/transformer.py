"""A transformer described by numbers, as a chain of blocks. Standard library only; taught in notebooks/10.

What a block keeps for its backward pass is counted as in Korthikanti and others (2022), "Reducing
activation recomputation in large transformer models", arXiv 2205.05198, section 4; their 34 s b h bytes
of a GPT block in half precision are 16 numbers per token and unit of width, and 2 bytes of dropout masks.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from course_lib.errors import CourseError
from course_lib.planner.blocks import Block, Chain

MOST_LAYERS, MOST = 10_000, 10**8
# Kernels of a layer's forward pass, when what can be fused is: two norms, four products with what lies between
# (splitting heads, positions, the attention, its transposed result), an activation function, two residuals.
LAYER_OPERATIONS = 20
# Neither was fitted: logits, softmax, top k, sort, gather, scatter and a sum by weight; of an adapter two products, a
# factor and a sum.
ROUTER_OPERATIONS, ADAPTER_OPERATIONS = 8, 4
# Bits that a frozen number takes. Of 4-bit numbers 64 share an 8-bit scale and 256 of these a float32 one: QLoRA,
# section 3.
WEIGHT_BITS = {16: 16, 8: 8, 4: 4 + 8 / 64 + 32 / (64 * 256)}
COUNTED = ("layers", "hidden", "heads", "vocabulary", "sequence_length", "ffn", "kv_heads", "head_size")
LEAST = {**dict.fromkeys((*COUNTED, "window", "experts", "experts_per_token"), 1), "lora": 0, "frozen_layers": 0}


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
    head_size        units of a head; h / a by default
    window           tokens that a token attends to (sliding window attention); all by default
    experts          feed-forward layers in each block, of which a token uses some; ffn is one's units
    experts_per_token  how many of them
    gated            the feed-forward layer has three matrices (SwiGLU), not two
    tied             the output layer shares the embedding's matrix
    flash            the attention keeps no scores (Dao and others 2022, arXiv 2205.14135)
    dropout          its masks are kept, a byte for each number that it covers
    slots            numbers that the optimizer keeps per parameter: 2 for Adam, 1 for Lion, 0 for plain SGD
    lora             rank of the adapters that are trained beside every matrix of the blocks, all else being frozen
                     (Hu and others 2021, arXiv 2106.09685); 0 for none
    frozen_layers    of the first blocks, with the embedding if its matrix is its own, that are not trained
    frozen_bits      of a frozen matrix's number: 16, 8, or 4 with its scales (Dettmers and others 2023, QLoRA,
                     arXiv 2305.14314); embedding, output and norms keep 16
    Raises           CourseError for a number that is too small or absurdly large, or for two that can't be together
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence_length: int
    ffn: int | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    window: int | None = None
    experts: int = 1
    experts_per_token: int = 1
    gated: bool = False
    tied: bool = True
    flash: bool = True
    dropout: bool = False
    slots: float = 2
    lora: int = 0
    frozen_layers: int = 0
    frozen_bits: int = 16

    def __post_init__(self):
        object.__setattr__(self, "ffn", 4 * self.hidden if self.ffn is None else self.ffn)
        object.__setattr__(self, "kv_heads", self.heads if self.kv_heads is None else self.kv_heads)
        for name, least in LEAST.items():
            most, given = MOST_LAYERS if name == "layers" else MOST, getattr(self, name)
            if name in ("head_size", "window") and given is None:
                continue
            if not isinstance(given, int) or not least <= given <= most:
                found = str(given)[:20]
                raise CourseError(
                    f"Transformer.{name} must be a whole number between {least} and {most:,}, not {found}."
                )
        if self.heads % self.kv_heads:
            raise CourseError(f"{self.kv_heads} heads of keys and values do not divide {self.heads} heads.")
        if self.experts_per_token > self.experts:
            raise CourseError(
                f"{self.experts_per_token} experts per token are more than the {self.experts} of a layer."
            )
        if self.frozen_bits not in WEIGHT_BITS:
            raise CourseError(f"Transformer.frozen_bits must be 16, 8 or 4, not {str(self.frozen_bits)[:20]}.")
        if self.frozen_bits < 16 and not (self.lora or self.frozen_layers):
            raise CourseError(f"nothing is frozen in {self.frozen_bits} bits: give lora or frozen_layers too.")
        if self.frozen_layers > self.layers or self.lora and self.frozen_layers:
            raise CourseError(
                f"{self.frozen_layers} frozen layers of {self.layers}, and adapters of rank {self.lora}: freeze some "
                "layers, or all of them by adapters."
            )
        if self.lora and self.experts > 1:
            raise CourseError("the planner has no adapters for mixtures of experts: leave out lora or experts.")

    @property
    def inner(self) -> int:
        """Units of all heads together."""
        return self.heads * self.head_size if self.head_size else self.hidden

    @property
    def parameters(self) -> int:
        """Those that are trained."""
        return self.chain().parameters

    @lru_cache(maxsize=1024)  # noqa: B019
    def chain(self) -> Chain:
        """The blocks of one example: embedding, l times attention and feed-forward layer, output layer."""
        tokens, table = self.sequence_length, self.vocabulary * self.hidden
        numbers, own = tokens * self.hidden, 0 if self.tied else table
        fixed = self.lora or self.frozen_layers and not self.tied  # a table that is the output's too is trained there
        embedding = _frozen_table(table, backward=0) if fixed else Block("", table, table)
        head = _frozen_table(own, backward=1) if self.lora else Block("", own, own)
        sizes = {"flops": 2 * tokens * table, "inputs": numbers, "kept": numbers, "logits": tokens * self.vocabulary}
        layer = self._layer()
        if self.lora:
            layer = self._adapted(layer)
        still = replace(self._frozen(layer), backward=0)
        blocks = (
            replace(embedding, name="embedding"),
            *[still] * self.frozen_layers,
            *[layer] * (self.layers - self.frozen_layers),
            replace(head, name="output", **sizes),
        )
        # The last stage of a pipeline holds the output's matrix even when it is tied to the embedding's.
        again = table if self.tied else 0
        tied, tied_bytes = (0, 2 * again) if self.lora else (again, 0)
        return Chain(self._name, blocks, self.slots, self.layers, tied, self.heads, self.experts, tied_bytes)

    @property
    def _name(self) -> str:
        if self.lora:
            return f"adapters of rank {self.lora} on a {self.frozen_bits}-bit transformer"
        return f"mixture of {self.experts} experts" if self.experts > 1 else "transformer"

    def _layer(self) -> Block:
        s, h, ffn, inner, keys = self.sequence_length, self.hidden, self.ffn, self.inner, self.kv_heads / self.heads
        attention, feed_forward = h * inner * (2 + 2 * keys), h * ffn * (3 if self.gated else 2)
        norms_and_biases = 2 * h if self.gated else 9 * h + ffn
        seen = min(s, self.window or s)  # by each token
        scores, several = self.heads * s * seen, self.experts > 1
        used, router = self.experts_per_token, h * self.experts if several else 0
        return Block(
            "layer",
            parameters=int(attention + self.experts * feed_forward + norms_and_biases + router),
            split_parameters=int(attention + self.experts * feed_forward),
            expert_parameters=int(self.experts * feed_forward) if several else 0,
            flops=2 * s * (attention + used * feed_forward + router),
            score_flops=4 * s * seen * inner,
            # Both norms' inputs, and what enters the attention and the feed-forward layer.
            kept=4 * s * h,
            # Queries, keys and values, what enters the attention's last product; the feed-forward layer's inside; of a
            # mixture, each expert's own copy of its tokens and its result, which the router's gradient needs.
            kept_split=s * inner * (2 + 2 * keys)
            + used * s * (ffn * (4 if self.gated else 2) + (2 * h if several else 0)),
            # The softmax's result, its dropout's mask (a byte, half a number) and the result of that.
            kept_scores=0 if self.flash else scores * (2.5 if self.dropout else 1),
            masks=2 * s * h if self.dropout else 0,
            inputs=s * h,
            operations=LAYER_OPERATIONS + (ROUTER_OPERATIONS if several else 0),
            exchanged=2 * s * h,
            dispatched=used * s * h if several else 0,
            keys=2 * s * inner * keys,
        )

    def _frozen(self, layer: Block) -> Block:
        """The same block with none of its weights trained."""
        whole = layer.parameters - layer.split_parameters
        split = layer.split_parameters * WEIGHT_BITS[self.frozen_bits] / 8
        return replace(
            layer,
            parameters=0,
            split_parameters=0,
            expert_parameters=0,
            frozen_bytes=split + 2 * whole,
            frozen_split_bytes=split,
        )

    def _adapted(self, layer: Block) -> Block:
        """Beside each frozen matrix two thin ones, of which tensor parallelism divides the one at the divided side."""
        s, h, ffn, r = self.sequence_length, self.hidden, self.ffn, self.lora
        into, keys = (2 if self.gated else 1), self.inner * self.kv_heads // self.heads
        split = r * (2 * self.inner + 2 * keys + (into + 1) * ffn)
        whole = r * (4 * h + (into + 1) * h)
        flops = 2 * s * (split + whole)
        return replace(
            self._frozen(layer),
            parameters=split + whole,
            split_parameters=split,
            flops=layer.flops + flops,
            backward=(layer.flops + 2 * flops) / (layer.flops + flops),
            kept=layer.kept + (5 + into) * r * s,
            operations=layer.operations + ADAPTER_OPERATIONS * (5 + into),
        )


def _frozen_table(parameters: int, backward: float) -> Block:
    """A table in half precision that is not trained."""
    return Block("", backward=backward, frozen_bytes=2 * parameters, frozen_split_bytes=2 * parameters)


def inference_bytes(model: Transformer) -> tuple[float, float]:
    """What generating text holds in half precision: the weights, and one sequence's keys and values when it is full."""
    chain = model.chain()
    seen = min(model.sequence_length, model.window or model.sequence_length)
    keys = model.inner * model.kv_heads / model.heads
    return 2 * chain.parameters + chain.frozen_bytes, 2 * 2 * model.layers * seen * keys

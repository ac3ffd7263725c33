"""What a planner has to know of a model: a chain of blocks, each with its sizes for one example. Standard library only.

A transformer by numbers (transformer.py) and a Keras model (keras_model.py) both become such a chain, so
that memory and time need one set of formulas. Taught in notebooks/10.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from course_lib.errors import CourseError
from course_lib.pipeline.balance import balance


@dataclass(frozen=True)
class Block:
    """A part of a model that a pipeline never cuts; every size but the parameters' is for one example.

    parameters        numbers that are trained
    split_parameters  those of them that tensor parallelism divides among its devices
    expert_parameters  those of the split ones that expert parallelism divides too
    flops             of the forward pass's matrix products, 2 for each multiplication, without score_flops
    backward          of their backward pass, as a multiple of flops: 2; 1 where the weights are frozen and only what
                      lies before needs its gradient; 0 where nothing up to here is trained, so that no backward
                      pass comes here
    score_flops       of the attention's two products, queries by keys and scores by values
    kept              numbers that the forward pass keeps for the backward, on every device of a
                      tensor-parallel group (unless it splits norms too)
    kept_split        those that tensor parallelism divides, without kept_scores
    kept_scores       the attention's scores, which selective recomputation does not keep; tensor parallelism
                      divides them. 0 for an attention that never stores them
    masks             bytes, not numbers, kept beside `kept`
    inputs            numbers that enter the block: all that full recomputation keeps
    exchanged         numbers that tensor parallelism sums over its devices in the forward pass
    dispatched        numbers that expert parallelism sends to the devices of each token's experts, and back
    keys              keys and values, which sequence parallelism passes around
    logits            numbers of the model's output, which the loss takes in float32
    frozen_bytes      of weights that are not trained, in their own dtype
    frozen_split_bytes  those of them that tensor parallelism divides
    operations        kernels that the forward pass starts one after another
    """

    name: str
    parameters: int = 0
    split_parameters: int = 0
    expert_parameters: int = 0
    flops: float = 0
    backward: float = 2
    score_flops: float = 0
    kept: float = 0
    kept_split: float = 0
    kept_scores: float = 0
    masks: float = 0
    inputs: float = 0
    exchanged: float = 0
    dispatched: float = 0
    keys: float = 0
    logits: float = 0
    frozen_bytes: float = 0
    frozen_split_bytes: float = 0
    operations: int = 1

    @property
    def passes(self) -> int:
        """Forward passes whose work a step does here, without recomputation: a backward pass is about two."""
        return 3 if self.backward else 1


@dataclass(frozen=True)
class Chain:
    """A model as a planner sees it.

    blocks  in the order of the forward pass; a pipeline cuts between them
    slots   numbers that the optimizer keeps per parameter: 2 for Adam, 1 for momentum, 0 for plain SGD
    layers  equal blocks between a first and a last one; 0 when the model has no such order
    tied    parameters of the first block that the last one uses too: a pipeline holds them twice
    heads   of attention, which tensor parallelism deals out; 0 when there are none
    experts  of a layer, which expert parallelism deals out; 1 when there is one feed-forward layer for all tokens
    tied_bytes  as tied, of frozen weights
    """

    name: str
    blocks: tuple[Block, ...]
    slots: int = 2
    layers: int = 0
    tied: int = 0
    heads: int = 0
    experts: int = 1
    tied_bytes: float = 0

    @property
    def parameters(self) -> int:
        return sum(block.parameters for block in self.blocks)

    @property
    def frozen_bytes(self) -> float:
        """Of weights that no gradient and no optimizer slot belongs to."""
        return sum(block.frozen_bytes for block in self.blocks)

    @property
    def flops(self) -> float:
        """Of one example's forward pass."""
        return sum(block.flops + block.score_flops for block in self.blocks)

    @property
    def step_flops(self) -> float:
        """Of one example's forward and backward pass, without recomputation."""
        return sum(block.flops * (1 + block.backward) + block.score_flops * block.passes for block in self.blocks)

    def stages(self, count: int) -> list["StageBlocks"]:
        """The blocks of each pipeline stage.

        Equal layers are dealt out evenly, as in Megatron; where they don't divide, the first and the last block
        count as a layer each, as in BLOOM's final runs. Other models are balanced by their arithmetic.
        Raises  CourseError for more stages than blocks
        """
        if not self.layers:
            cuts = balance([block.flops + block.score_flops for block in self.blocks], count)
            return [StageBlocks(self.blocks[cut.start : cut.stop]) for cut in cuts]
        if count > self.layers:
            raise CourseError(f"{self.layers} layers can't fill {count} pipeline stages: use {self.layers} or fewer.")
        if self.layers % count:  # the first stages get a block more
            sizes = [(len(self.blocks) + stage) // count for stage in reversed(range(count))]
        else:
            sizes = [self.layers // count] * count
            sizes[0] += 1
            sizes[-1] += 1
        ends = list(accumulate(sizes))
        return [StageBlocks(self.blocks[start:end]) for start, end in zip([0, *ends], ends)]


class StageBlocks:
    """Consecutive blocks on one device or tensor-parallel group.

    runs  (block, how often it comes in a row) pairs: a transformer's layers are one object
    """

    def __init__(self, blocks: Sequence[Block]):
        groups = [list(group) for _, group in groupby(blocks, key=id)]
        self.runs = [(same[0], len(same)) for same in groups]
        self.shape = tuple((id(block), times) for block, times in self.runs)  # equal where stages are alike

    def total(self, size: Callable[[Block], float]) -> float:
        """The sum of a size over the blocks."""
        return sum(times * size(block) for block, times in self.runs)

    def largest(self, size: Callable[[Block], float]) -> float:
        return max(size(block) for block, _ in self.runs)

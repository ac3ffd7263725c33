"""Transformers that do not only decode words, by numbers, as chains of blocks. Standard library only."""

from dataclasses import replace

from course_lib.errors import CourseError
from course_lib.planner.blocks import Block, Chain
from course_lib.planner.transformer import LAYER_OPERATIONS, MOST, Transformer


def vision_transformer(
    layers: int, hidden: int, heads: int, image: int, patch: int, classes: int, ffn: int | None = None
) -> Chain:
    """A transformer over the patches of a square image in three colours, and a token for its class.

    Source: Dosovitskiy and others (2020), arXiv 2010.11929.
    image, patch  pixels of a side
    Raises        CourseError as Transformer does, or for patches that don't divide the image
    """
    for name, given in {"image": image, "patch": patch, "classes": classes}.items():
        if not isinstance(given, int) or not 1 <= given <= MOST:
            raise CourseError(f"{name} must be a whole number between 1 and {MOST:,}, not {str(given)[:20]}.")
    if image % patch:
        raise CourseError(f"patches of {patch} pixels do not divide an image of {image}: take a divisor of {image}.")
    patches, pixels = (image // patch) ** 2, 3 * image * image
    chain = Transformer(layers, hidden, heads, 1, patches + 1, ffn).chain()
    projection, numbers = 3 * patch * patch * hidden, (patches + 1) * hidden
    first = Block(
        "patches",
        projection + hidden + (patches + 2) * hidden,  # with its bias, the positions and the class's token
        flops=2 * patches * projection,
        backward=1,  # no gradient goes to the image
        kept=pixels,
        inputs=pixels,
    )
    head = Block(
        "output", classes * (hidden + 1), flops=2 * classes * hidden, kept=numbers, inputs=numbers, logits=classes
    )
    return replace(chain, name="vision transformer", blocks=(first, *chain.blocks[1:-1], head), tied=0)


def encoder_decoder(
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int,
    sequence_length: int,
    decoder_layers: int,
    target_length: int,
    ffn: int | None = None,
    gated: bool = False,
) -> Chain:
    """An encoder's blocks over the source, a decoder's over the target, and one table for both and for the output.

    A decoder's block is a Transformer's with attention to the encoder's result in between (Vaswani and others 2017,
    arXiv 1706.03762). Where everything is recomputed, that result is counted once for each of them.
    layers, sequence_length         of the encoder
    decoder_layers, target_length   of the decoder
    Raises  CourseError as Transformer does
    """
    both = {"hidden": hidden, "heads": heads, "vocabulary": vocabulary, "ffn": ffn, "gated": gated}
    encoder = Transformer(layers, sequence_length=sequence_length, **both).chain()
    decoder = Transformer(decoder_layers, sequence_length=target_length, **both).chain()
    source, target, square = sequence_length * hidden, target_length * hidden, hidden * hidden
    own = decoder.blocks[1]
    block = replace(
        own,
        name="decoder layer",
        parameters=own.parameters + 4 * square + (hidden if gated else 6 * hidden),
        split_parameters=own.split_parameters + 4 * square,
        flops=own.flops + 4 * square * (target_length + sequence_length),
        score_flops=own.score_flops + 4 * target_length * sequence_length * hidden,
        kept=own.kept + 2 * target,
        kept_split=own.kept_split + 2 * target + 2 * source,  # queries and result; keys and values
        inputs=target + source,
        exchanged=own.exchanged + target,
        operations=own.operations + LAYER_OPERATIONS // 2,
    )
    last = replace(decoder.blocks[-1], inputs=target)
    blocks = (*encoder.blocks[:-1], *[block] * decoder_layers, last)
    return replace(encoder, name="encoder and decoder", blocks=blocks, layers=0)

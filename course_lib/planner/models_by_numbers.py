"""A model as one writes it on a command line: a name, a config.json, or numbers. Standard library only."""

import inspect
from dataclasses import replace
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.planner.blocks import Chain
from course_lib.planner.model_config import read_config
from course_lib.planner.other_transformers import encoder_decoder, vision_transformer
from course_lib.planner.transformer import Transformer

# Dimensions: Brown and others (2020), arXiv 2005.14165, table 2.1; the released configurations of Llama 2; Dubey and
# others (2024), arXiv 2407.21783, table 3; Jiang and others (2023), arXiv 2310.06825, table 1, and (2024), arXiv
# 2401.04088, table 1.
LLAMA = {"gated": True, "tied": False}
MODELS = {
    "gpt2-124m": Transformer(12, 768, 12, 50257, 1024),
    "gpt3-175b": Transformer(96, 12288, 96, 50257, 2048),
    "llama2-7b": Transformer(32, 4096, 32, 32000, 4096, 11008, **LLAMA),
    "llama2-70b": Transformer(80, 8192, 64, 32000, 4096, 28672, 8, **LLAMA),
    "llama3-8b": Transformer(32, 4096, 32, 128256, 8192, 14336, 8, **LLAMA),
    "llama3-405b": Transformer(126, 16384, 128, 128256, 8192, 53248, 8, **LLAMA),
    "mistral-7b": Transformer(32, 4096, 32, 32000, 8192, 14336, 8, window=4096, **LLAMA),
    "mixtral-8x7b": Transformer(32, 4096, 32, 32000, 8192, 14336, 8, experts=8, experts_per_token=2, **LLAMA),
}
BY_NUMBERS = "layers=48,hidden=6144,heads=64,vocabulary=51200,sequence_length=2048"
# Float32 numbers kept per parameter. 8-bit Adam's two take a byte each (Dettmers and others 2021, arXiv 2110.02861);
# Adafactor keeps a row and a column for a matrix (Shazeer & Stern 2018), next to nothing.
SLOTS = {"adam": 2, "adamw": 2, "adam8bit": 2 / 4, "lion": 1, "lion8bit": 1 / 4, "momentum": 1, "rmsprop": 1}
SLOTS |= {"adafactor": 0, "sgd": 0}
FIELDS = tuple(name for name in Transformer.__dataclass_fields__ if name != "slots")  # --optimizer says it
# What makes a model another kind than a Transformer.
KINDS = {"image": vision_transformer, "patch": vision_transformer, "classes": vision_transformer}
KINDS |= {"decoder_layers": encoder_decoder, "target_length": encoder_decoder}


def says_numbers(text: str) -> bool:
    """Whether a text is for `read_model`, and not a Keras model."""
    first = text.partition(",")[0]
    return first in MODELS or "=" in first or first.endswith(".json")


def read_model(text: str, optimizer: str = "adam") -> Transformer | Chain:
    """A transformer from "llama2-7b", "config.json" or "layers=48,hidden=6144,...", with or without other numbers.

    After a name or a file, numbers change it: "llama2-7b,sequence_length=2048,lora=16,frozen_bits=4".
    image, patch and classes make a vision transformer; decoder_layers and target_length an encoder and a decoder.
    optimizer  one of SLOTS
    Raises     CourseError for what is not known, missing, given twice, or no number
    """
    if optimizer not in SLOTS:
        raise CourseError(
            f"of a transformer by numbers the planner knows the optimizers {', '.join(SLOTS)}, not {optimizer!r}."
        )
    first, *rest = text.split(",")
    if "=" in first:
        made = _made(_numbers([first, *rest], (*FIELDS, *KINDS)))
    else:
        name, numbers = first.strip(), _numbers(rest, FIELDS)
        known = MODELS[name] if name in MODELS else read_config(Path(name), numbers.get("sequence_length"))
        made = replace(known, **numbers)
    return replace(made, slots=SLOTS[optimizer])


def _numbers(parts: list[str], known: tuple[str, ...]) -> dict[str, int | bool]:
    numbers: dict[str, int | bool] = {}
    for part in parts:
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise CourseError(f"a transformer has no {name!r}; it has {', '.join(known)}.")
        if not value.isdecimal() and value.lower() not in ("true", "false"):
            raise CourseError(f"{name} must be a whole number, or true or false, not {value!r}.")
        if name in numbers:
            raise CourseError(f"{name} is given twice, as {numbers[name]} and as {value}.")
        numbers[name] = int(value) if value.isdecimal() else value.lower() == "true"
    return numbers


def _made(numbers: dict[str, int | bool]) -> Transformer | Chain:
    make = next((kind for name, kind in KINDS.items() if name in numbers), Transformer)
    parameters = inspect.signature(make).parameters
    if missing := [name for name, one in parameters.items() if one.default is one.empty and name not in numbers]:
        raise CourseError(f"a transformer by numbers also needs {', '.join(missing)}.")
    if other := [name for name in numbers if name not in parameters]:
        words = make.__name__.replace("_", "-")
        raise CourseError(f"the planner's {words} has no {other[0]!r}; it has {', '.join(parameters)}.")
    return make(**numbers)

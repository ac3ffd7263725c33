"""The course's data: images through TFDS, a text, and one fast input pipeline. Taught in notebooks/01."""

from course_lib.data.datasets import NAMES, arrays, load, text_corpus
from course_lib.data.input_pipelines import epoch_batches, input_pipeline

__all__ = ["NAMES", "arrays", "epoch_batches", "input_pipeline", "load", "text_corpus"]

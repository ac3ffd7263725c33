"""Gradient accumulation: several micro-batches make one update, on one device and on replicas.

Needs Keras, on TensorFlow or JAX; taught in notebooks/08. `Accumulating` wraps any Keras
optimizer, for `fit` and for a custom loop; `ExactGroups` makes `fit` exact at an epoch's end.
"""

from course_lib.accumulate.exact_groups import ApplyRest, ExactGroups
from course_lib.accumulate.optimizer import Accumulating, micro_batch_size

__all__ = ["Accumulating", "ApplyRest", "ExactGroups", "micro_batch_size"]

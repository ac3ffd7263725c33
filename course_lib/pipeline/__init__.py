"""Pipelines: schedules as data, balance, and stages that run in separate processes; taught in notebooks/06.

What is named here needs the standard library alone. `cutting`, `executor`, `links`
and `op_devices` need Keras, TensorFlow or NumPy, and are imported by name.
"""

from course_lib.pipeline.balance import balance
from course_lib.pipeline.schedules import (
    Schedule,
    backward,
    forward,
    gpipe,
    interleaved,
    naive,
    one_forward_one_backward,
)
from course_lib.pipeline.timelines import Slot, Timeline, Work, gather

__all__ = ["Schedule", "Slot", "Timeline", "Work", "backward", "balance", "forward", "gather"]
__all__ += ["gpipe", "interleaved", "naive", "one_forward_one_backward"]

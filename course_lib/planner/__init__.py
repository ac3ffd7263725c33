"""A planner: what a training step needs on a cluster, before anybody rents it; taught in notebooks/10.

What is named here needs the standard library alone, except `from_keras` and `this_machine`, which
import their framework when they are first used. The module `calibrate` needs SciPy.
"""

import importlib

from course_lib.planner.blocks import Block, Chain
from course_lib.planner.calibration import Calibration, fitted
from course_lib.planner.layout import Layout
from course_lib.planner.layout_search import Search, search
from course_lib.planner.memory import Memory
from course_lib.planner.prediction import Prediction, predict
from course_lib.planner.rented_chips import CHIPS, Chip, Cluster, find_chip
from course_lib.planner.step_time import StepTime
from course_lib.planner.transformer import Transformer

__all__ = ["CHIPS", "Block", "Calibration", "Chain", "Chip", "Cluster", "Layout", "Memory", "Prediction", "Search"]
__all__ += ["StepTime", "Transformer", "find_chip", "fitted", "from_keras", "predict", "search", "this_machine"]
WITH_A_FRAMEWORK = {"from_keras": "keras_model", "this_machine": "measured_machine"}


def __getattr__(name: str):
    if name in WITH_A_FRAMEWORK:
        return getattr(importlib.import_module(f"course_lib.planner.{WITH_A_FRAMEWORK[name]}"), name)
    raise AttributeError(f"course_lib.planner has no {name!r}")

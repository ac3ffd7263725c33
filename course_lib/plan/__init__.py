"""A planner: what a training step needs on a cluster, before anybody rents it; taught in notebooks/10.

What is named here needs the standard library alone, but for `from_keras` and
`this_machine`, which import their framework when they are called. `fitting` needs SciPy.
"""

import importlib

from course_lib.plan.blocks import Block, Chain
from course_lib.plan.calibration import Calibration, fitted
from course_lib.plan.clusters import CHIPS, Chip, Cluster, find_chip
from course_lib.plan.layout import Layout
from course_lib.plan.memory import Memory
from course_lib.plan.predicting import Prediction, predict
from course_lib.plan.search import Search, search
from course_lib.plan.step_time import StepTime
from course_lib.plan.transformer import Transformer

__all__ = ["CHIPS", "Block", "Calibration", "Chain", "Chip", "Cluster", "Layout", "Memory", "Prediction", "Search", "StepTime"]
__all__ += ["Transformer", "find_chip", "fitted", "from_keras", "predict", "search", "this_machine"]
WITH_A_FRAMEWORK = {"from_keras": "network", "this_machine": "machine"}


def __getattr__(name: str):
    if name in WITH_A_FRAMEWORK:
        return getattr(importlib.import_module(f"course_lib.plan.{WITH_A_FRAMEWORK[name]}"), name)
    raise AttributeError(f"course_lib.plan has no {name!r}")

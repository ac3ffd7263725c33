"""A planner: what a training step needs on a cluster, before anybody rents it; taught in notebooks/10.

Nothing here imports a framework until `from_keras` or `this_machine` is called. The module `calibrate` needs SciPy.
"""

from course_lib.planner.blocks import Block, Chain
from course_lib.planner.calibration import Calibration, fitted
from course_lib.planner.keras_model import from_keras
from course_lib.planner.layout import Layout
from course_lib.planner.layout_search import Search, search
from course_lib.planner.measured_machine import this_machine
from course_lib.planner.memory import Memory
from course_lib.planner.prediction import Prediction, predict
from course_lib.planner.rented_chips import CHIPS, Chip, Cluster, find_chip
from course_lib.planner.step_time import StepTime
from course_lib.planner.transformer import Transformer

__all__ = ["CHIPS", "Block", "Calibration", "Chain", "Chip", "Cluster", "Layout", "Memory", "Prediction", "Search"]
__all__ += ["StepTime", "Transformer", "find_chip", "fitted", "from_keras", "predict", "search", "this_machine"]

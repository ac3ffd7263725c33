"""Python imports this first in each process of a test, so that TensorFlow and Keras are imported in half the time.

They import scikit-learn, Matplotlib and JAX for what they offer if those are there, and nbformat's schemas a parser.
That is left out; whoever imports one of the four by itself gets it. tests/conftest.py sets PYTHONPATH. What runs in an
environment of its own (the lab in a browser, copies for Colab, the class grader's sandbox) imports all, as learners do.
"""

import gc
import os
import sys
from importlib.machinery import PathFinder

FRAMEWORKS = ("tensorflow", "keras", "jax")
# Each does without, as the package may not be there: `except ImportError`.
IN_PASSING = {
    "sklearn": ("keras.src.wrappers.",),
    "matplotlib": ("keras.src.visualization.",),
    "jax": ("tensorflow.lite.", "keras.src.callbacks.orbax_checkpoint"),
    "rfc3987_syntax": ("jsonschema.",),  # a grammar of addresses in other letters, which no notebook has: 1 s
}


class Uncollected:
    """A framework's loader, with the garbage collector at rest: it takes a quarter of the time, and frees little.

    What is loaded stays, so no later collection looks through it again: a tenth of the time of tracing and building.
    """

    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def exec_module(self, module):
        gc.disable()
        try:
            self.loader.exec_module(module)
        finally:
            gc.freeze()
            gc.enable()


class Startup:
    """A finder before all others, for what is imported in passing and for the frameworks."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in IN_PASSING:
            frame, importer = sys._getframe(), __name__
            while frame and importer.startswith((__name__, "importlib.")):
                frame = frame.f_back
                importer = frame.f_globals.get("__name__", "") if frame else ""
            if importer.startswith(IN_PASSING[name]):
                raise ModuleNotFoundError(f"{name} is left out, see {__file__}", name=name)
        if name in FRAMEWORKS and gc.isenabled():
            spec = PathFinder.find_spec(name, path)
            if spec:
                spec.loader = Uncollected(spec.loader)
            return spec
        return None


sys.meta_path.insert(0, Startup)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's second thread mostly waits, and waits by counting
gc.set_threshold(10_000, 10, 10)  # tracing makes much and frees little: a tenth of its time was spent in collections

"""Python imports this first in each process of a test: some imports of Keras and TensorFlow are left out.

They import scikit-learn, Matplotlib and JAX for what they offer if those are there, and take two thirds of the time
without them. Whoever imports one of the three by itself gets it. tests/conftest.py sets PYTHONPATH; what runs in an
environment of its own (the lab in a browser, copies for Colab, the class grader's sandbox) imports all, as learners do.
"""

import sys

# Each does without, as the package may not be there: `except ImportError`.
IN_PASSING = {
    "sklearn": ("keras.src.wrappers.",),
    "matplotlib": ("keras.src.visualization.",),
    "jax": ("tensorflow.lite.", "keras.src.callbacks.orbax_checkpoint"),
}


class LeaveOut:
    """A finder before all others: raises for a module that only one of these importers wants, else finds nothing."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in IN_PASSING:
            frame, importer = sys._getframe(), __name__
            while frame and importer.startswith((__name__, "importlib.")):
                frame = frame.f_back
                importer = frame.f_globals.get("__name__", "") if frame else ""
            if importer.startswith(IN_PASSING[name]):
                raise ModuleNotFoundError(f"{name} is left out, see {__file__}", name=name)
        return None


sys.meta_path.insert(0, LeaveOut)

"""What a test needs to be installed. What is there and broken fails, and is not skipped; so does what CI must have."""

import importlib
import os
import shutil
from importlib.util import find_spec
from types import ModuleType

import pytest

IN_CI = os.environ.get("CI") == "true"


def need(name: str) -> ModuleType:
    """Import a module; skip the test, or the file, where its package is not installed."""
    if find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return importlib.import_module(name)


NO_SANDBOX = "" if shutil.which("bwrap") else "bubblewrap is not installed, see README"
needs_sandbox = pytest.mark.skipif(bool(NO_SANDBOX) and not IN_CI, reason=NO_SANDBOX)

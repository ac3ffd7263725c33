"""Comparisons: equal within a stated tolerance, readable when not, never fooled by NaN."""

import numpy as np
import pytest

from course_lib.compare import Run, assert_equal, compare

WHY = {"relative": 1e-5, "reason": "a test"}


def run(name="a run", shift=0.0, losses=(1.0, 0.5), metrics=None) -> Run:
    kernel = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3) + np.float32(shift)
    return Run(name, {"dense/kernel": kernel, "dense/bias": np.zeros(3, np.float32)}, losses, metrics or {})


def test_rounding_is_equal_and_more_is_not():
    assert compare(run(), run(shift=1e-6), **WHY).equal
    assert not compare(run(), run(shift=1e-3), **WHY).equal


def test_a_difference_names_the_weight_the_size_and_the_reason():
    with pytest.raises(AssertionError) as caught:
        assert_equal(run("one device"), run("four replicas", shift=0.5), **WHY)
    text = str(caught.value)
    assert "one device and four replicas: DIFFERENT" in text and "a test" in text
    assert "dense/kernel: off by 5.0e-01, allowed 2.5e-05" in text


def test_nan_is_never_equal():
    broken = run(losses=(1.0, float("nan")))
    comparison = compare(broken, broken, **WHY)
    assert not comparison.equal and comparison.worst.what == "losses"


def test_losses_and_metrics_count():
    assert not compare(run(), run(losses=(1.0, 0.6)), **WHY).equal
    assert not compare(run(metrics={"accuracy": 0.5}), run(metrics={"accuracy": 0.6}), **WHY).equal


def test_other_models_or_other_steps_are_not_compared():
    with pytest.raises(ValueError, match="different models"):
        compare(run(), Run("other", {"dense/kernel": np.zeros((3, 3))}), **WHY)
    with pytest.raises(ValueError, match="different steps or metrics"):
        compare(run(), run(losses=(1.0,)), **WHY)


def test_automatic_names_may_differ():
    renamed = Run("built later", {f"{path}_1": value for path, value in run().weights.items()}, (1.0, 0.5))
    assert_equal(run(), renamed, **WHY)

"""Figures: a picture, and a text alternative that carries the finding."""

import numpy as np
import pytest

from course_lib import collectives, show

LEDGER = collectives.ring_all_reduce([np.ones(8, "float32")] * 4)[1]


@pytest.mark.parametrize(
    "figure",
    [
        show.bars({"one device": 1.0, "four replicas": 2.5}, "ratio", "Four are slower.", reference=1.0),
        show.lines({"a": ([1, 2], [3, 4])}, "bytes", "ms", "Four are slower.", log=True),
        show.images(np.zeros((3, 8, 8, 1)), ["0", "1", "2"], "Four are slower."),
        show.messages({"ring": LEDGER}, "Four are slower."),
    ],
    ids=["bars", "lines", "images", "messages"],
)
def test_a_figure_is_a_picture_with_its_finding_in_words(figure):
    data, metadata = figure._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert "Four are slower." in data["text/plain"]
    assert metadata["image/png"]["alt"] == "Four are slower."
    assert figure._repr_mimebundle_()[0]["image/png"] == data["image/png"], "showing twice draws the same"


def test_source_is_the_code_without_its_docstring():
    text = show.source(collectives.ring_all_reduce)
    assert text.startswith("def ring_all_reduce(") and "return [np.concatenate" in text
    assert '"""' not in text and "Reduce-scatter around" not in text

"""A wrong answer to exercise 07 that is another algorithm."""


def _along_model():
    """The lesson's layout."""
    return {
        ".*_(query|key|value|mlp_in)/kernel": (None, "model"),
        ".*_(attention_out|mlp_out)/kernel": ("model", None),
        ".*embeddings": ("model", None),
        "logits/kernel": (None, "model"),
        ".*_(query|key|value|mlp_in)/bias": ("model",),
    }


WRONG = {("q4", "model axis alone"): _along_model}

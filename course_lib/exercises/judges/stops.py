"""Mistakes that are known by how the probe stopped, or by a model on one replica. Standard library only."""


def stopped_by(words):
    """Recognise what stopped the probe by words in its error."""
    return lambda answers, seed: words in answers.get("stopped", {}).get("error", "")


def outside_the_scope(answers, seed):
    """The model, or its optimizer, was not made under the strategy's scope."""
    if "stopped" in answers:
        return stopped_by("_DefaultDistributionStrategy")(answers, seed)
    return answers["replicas"] == 1 < answers["wanted_replicas"]

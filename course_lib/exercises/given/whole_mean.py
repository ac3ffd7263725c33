"""The question that lesson 00 answers wrongly and then right, to show what a check says."""

import numpy as np

from course_lib.exercises.question import Mistake, Question, Target


def _shards(seed: int) -> list[np.ndarray]:
    return [np.zeros(3), np.random.default_rng(seed).uniform(1, 2, size=1)]


def _probe(names, seed: int) -> dict:
    return {"mean": float(names["whole_mean"](_shards(seed)))}


def _is_whole_mean(answers, seed: int) -> bool | str:
    ratio = answers["mean"] / np.concatenate(_shards(seed)).mean()
    return bool(np.isclose(ratio, 1)) or f"yours is {ratio:.1f} times as large"


QUESTIONS = (
    Question(
        "q1",
        "The whole mean",
        ("whole_mean",),
        _probe,
        (Target("the mean of all examples", _is_whole_mean),),
        (
            Mistake(
                "mean of means",
                what="You count a short shard as much as a long one.",
                where="Weight each shard's mean by its number of examples.",
                wrong=lambda shards: np.mean([shard.mean() for shard in shards]),
            ),
        ),
    ),
)

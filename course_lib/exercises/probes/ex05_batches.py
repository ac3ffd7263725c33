"""Probe of exercise 05, q1: batches of few shapes. Needs NumPy and JAX. The inputs are functions of the seed."""

import numpy as np

from course_lib.exercises.probes.cases import shuffled

TINY_MEANS = (  # losses, weights, and the mean
    (((2, 4, 9), (6, 9, 9)), ((1, 1, 0), (1, 0, 0)), 4),
    (((5, 9), (9, 9), (9, 9)), ((1, 0), (0, 0), (0, 0)), 5),  # fewer tokens than rows
    (((0, 4, 9),), ((1, 1, 0),), 2),  # a token whose loss is 0
)


def corpora(seed: int) -> tuple[dict[str, object], ...]:
    """The four calls: examples, token numbers with 0 among them, in no order; a batch, and buckets.

    Of the first one's buckets, the second fills its batches, and a whole batch is as long as its bucket: that is where
    comparisons go wrong. Of the second one's, none has an example of its length, one has none at all, one has no full
    batch, and the longest fills its batch. The third one has hundreds of batches, and the fourth a long bucket and many
    rows in a batch; their tokens are any int32.
    """
    rng = np.random.default_rng(seed)
    batch, buckets = int(rng.integers(4, 7)), (8, 14, 30)
    first, last = (int(n) for n in rng.integers(1, batch, size=2))
    # The longest of all is there, and alone.
    exact = [8] * batch + [14] * batch + [30]
    shorter = _lengths(rng, {(1, 8): 2 * batch + first, (9, 14): batch, (15, 30): batch - 1 + last})
    made = [{"examples": _examples(rng, exact + shorter), "batch": batch, "buckets": buckets}]
    batch, buckets = int(rng.integers(7, 9)), (4, 11, 17, 23, 29)
    few = int(rng.integers(2, batch - 1))
    lengths = _lengths(rng, {(1, 4): batch + 1, (5, 11): batch, (12, 17): few, (24, 29): batch})
    made.append({"examples": _examples(rng, lengths), "batch": batch, "buckets": buckets})
    made.append({"examples": _of_any_tokens(rng, rng.integers(1, 13, size=800)), "batch": 3, "buckets": (4, 8, 12)})
    batch = int(rng.integers(65, 75))
    lengths = [3, 1, *rng.integers(1030, 1100, size=batch)]
    made.append({"examples": _of_any_tokens(rng, lengths), "batch": batch, "buckets": (6, 1100)})
    return tuple(made)


def _of_any_tokens(rng, lengths) -> list[np.ndarray]:
    ends = np.iinfo("int32")
    found = [rng.integers(ends.min, ends.max, size=n, dtype="int32", endpoint=True) for n in lengths]
    for example in found:
        example[rng.integers(len(example))] = rng.choice([-1, 1, ends.min, ends.max])
    return found


def _lengths(rng, counts) -> list[int]:
    """So many lengths of each range, its end left out."""
    return [int(n) for (low, high), count in counts.items() for n in rng.integers(low, high, size=count)]


def _examples(rng, lengths) -> list[np.ndarray]:
    examples = [rng.integers(0, 20, size=length).astype("int32") for length in shuffled(rng, lengths)]
    for example in examples:
        example[0] = rng.integers(1, 20)
    for number, example in enumerate(example for example in examples if len(example) > 1):
        example[-1] = 0 if number % 3 else rng.integers(1, 20)  # 0 is a token like others
    often = max(lengths, key=lengths.count)
    one, other, *_ = (number for number, example in enumerate(examples) if len(example) == often)
    examples[other] = examples[one].copy()  # two that say the same
    return examples


def table(seed: int) -> np.ndarray:
    """The model: a vector (3,) for each of 20 tokens, float32."""
    return np.random.default_rng([seed, 1]).normal(size=(20, 3)).astype("float32")


def token_losses(table, tokens):
    """A loss for every position, (b, s); of table (20, 3) and tokens (b, s), NumPy's or JAX's."""
    return (table[tokens].sum(axis=-1) - 1) ** 2


def probe_batches(names, seed):
    """The learner's batches of all calls; how often JAX compiled a step for the first ones, and each one's loss and
    gradient; tiny means.
    """
    import jax

    traces = []

    def step(weights_of_model, tokens, weights):
        traces.append(tokens.shape)  # tracing runs this line, and a compiled step does not
        objective = lambda table: names["mean_loss"](token_losses(table, tokens), weights)  # noqa: E731
        return jax.value_and_grad(objective)(weights_of_model)

    def ask(given):
        made = names["make_batches"](
            [example.copy() for example in given["examples"]], given["batch"], given["buckets"]
        )
        return [(np.asarray(tokens), np.asarray(weights)) for tokens, weights in made]

    asked, compiled = [ask(given) for given in corpora(seed)], jax.jit(step)
    results = [compiled(table(seed), *batch) for batch in asked[0]]
    return {
        "made": [
            {
                "tokens": [tokens for tokens, _ in batches],
                "weights": [weights.astype("float32") for _, weights in batches],
                "dtypes": sorted({f"{tokens.dtype} and {weights.dtype}" for tokens, weights in batches}),
            }
            for batches in asked
        ],
        "compilations": len(traces),
        "tiny_means": [float(names["mean_loss"](*_float32(given))) for *given, _ in TINY_MEANS],
        "losses": [float(loss) for loss, _ in results],
        "gradients": [np.asarray(gradient) for _, gradient in results],
    }


def _float32(parts):
    import jax

    return [jax.numpy.array(part, "float32") for part in parts]

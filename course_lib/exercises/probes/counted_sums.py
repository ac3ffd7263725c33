"""Count what a strategy's replicas sum, whoever asks for it. Needs TensorFlow's strategy."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def counted_sums(strategy, note: Callable[[int], None]) -> Iterator[None]:
    """Note the numbers of each reduction over the replicas, whoever asks for it; a graph counts when it is recorded."""
    extended = strategy.extended
    reduce_to, batch_reduce_to = extended.reduce_to, extended.batch_reduce_to

    def size(value):
        return strategy.experimental_local_results(value)[0].shape.num_elements()

    def counting(operation, value, *args, **kwargs):
        note(size(value))
        return reduce_to(operation, value, *args, **kwargs)

    def batch_counting(operation, pairs, *args, **kwargs):
        note(sum(size(value) for value, _ in pairs))
        return batch_reduce_to(operation, pairs, *args, **kwargs)

    extended.reduce_to, extended.batch_reduce_to = counting, batch_counting
    try:
        yield
    finally:
        del extended.reduce_to, extended.batch_reduce_to  # the class's own show again

"""All-reduces: right sums, and exactly the bytes and rounds that the theory gives."""

import math

import numpy as np
import pytest

from course_lib import collectives

ALGORITHMS = [collectives.naive_all_reduce, collectives.tree_all_reduce, collectives.ring_all_reduce]


def buffers(workers: int, chunk: int = 6) -> list[np.ndarray]:
    """Small whole numbers, so that any order of adding gives the same float32."""
    draw = np.random.default_rng(workers)
    return [draw.integers(-50, 50, workers * chunk).astype(np.float32) for _ in range(workers)]


@pytest.mark.parametrize("all_reduce", ALGORITHMS)
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 7, 8, 16])
def test_every_worker_gets_the_sum_and_keeps_its_buffer(all_reduce, workers):
    local = buffers(workers)
    before = [buffer.copy() for buffer in local]
    outputs, _ = all_reduce(local)
    assert all((output == sum(before)).all() for output in outputs)
    assert all((buffer == old).all() for buffer, old in zip(local, before))
    assert len({id(output) for output in outputs}) == workers


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_ledgers_match_the_formulas(workers):
    local = buffers(workers)
    size_bytes = local[0].nbytes
    naive, tree, ring = (all_reduce(local)[1] for all_reduce in ALGORITHMS)
    assert (naive.rounds, naive.critical_bytes) == (2 * (workers - 1), 2 * (workers - 1) * size_bytes)
    assert {network.workers for network in (naive, tree, ring)} == {workers}
    levels = math.ceil(math.log2(workers))
    assert (tree.rounds, tree.critical_bytes) == (2 * levels, 2 * levels * size_bytes)
    share = 2 * (workers - 1) * size_bytes // workers
    assert ring.rounds == 2 * (workers - 1)
    assert {ring.sent_bytes(w) for w in range(workers)} == {ring.received_bytes(w) for w in range(workers)} == {share}


def test_the_naive_one_sends_all_to_worker_0_and_its_sum_to_all():
    _, naive = collectives.naive_all_reduce(buffers(4))
    there, back = [(0, 1, 0), (1, 2, 0), (2, 3, 0)], [(3, 0, 1), (4, 0, 2), (5, 0, 3)]
    assert [(m.round, m.source, m.target) for m in naive.messages] == there + back


def test_a_tree_of_five_sends_each_sum_once_up_and_once_down():
    """By hand: worker 4 is alone until the last level, and each of the others has one place in the tree."""
    _, tree = collectives.tree_all_reduce(buffers(5))
    up = [(0, 1, 0), (0, 3, 2), (1, 2, 0), (2, 4, 0)]
    down = [(3, 0, 4), (4, 0, 2), (5, 0, 1), (5, 2, 3)]
    assert [(m.round, m.source, m.target) for m in tree.messages] == up + down
    assert {m.size_bytes for m in tree.messages} == {5 * 6 * 4}


def test_the_ledger_of_one_hand_made_exchange():
    """Worker 0 sends 8 B and then 16 B, worker 1 sends 24 B, worker 2 receives 16 B of them."""
    network = collectives.Network(3)
    network.exchange([(0, 1, np.zeros(1)), (1, 0, np.zeros(3))])
    network.exchange([(0, 2, np.zeros(2))])
    assert [network.sent_bytes(worker) for worker in range(3)] == [24, 24, 0]
    assert [network.received_bytes(worker) for worker in range(3)] == [24, 8, 16]
    assert network.round_starts_bytes == [0, 24, 40]
    assert str(network) == "2 rounds, 48 B in all, busiest worker sends 24 B, critical path 40 B"
    first = network.until(1)
    assert (first.workers, first.rounds, first.critical_bytes) == (3, 1, 24) and network.rounds == 2
    assert str(first) == "1 rounds, 32 B in all, busiest worker sends 24 B, critical path 24 B"


def test_ring_refuses_a_buffer_it_cannot_cut():
    with pytest.raises(ValueError, match="3 workers can't split 10 elements"):
        collectives.ring_all_reduce([np.zeros(10)] * 3)


def test_a_network_card_sends_and_receives_one_message_a_round():
    network, array = collectives.Network(3), np.zeros(4)
    with pytest.raises(ValueError, match="send twice"):
        network.exchange([(0, 1, array), (0, 2, array)])
    with pytest.raises(ValueError, match="receive twice"):
        network.exchange([(0, 2, array), (1, 2, array)])

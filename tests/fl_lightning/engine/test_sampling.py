"""Which clients take part in a round: never none, deterministic, uniform."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.engine.sampling import number_of_participants, participants


@pytest.mark.parametrize("wrong", [0, 0.0, -1, -0.5, 1.5, 2.0, float("inf"), float("nan"), True, False, None, "all"])
def test_not_a_count_and_not_a_fraction(wrong):
    with pytest.raises(ValueError, match="`federation.clients_per_round`"):
        number_of_participants(wrong, 4)


def test_more_than_there_are():
    with pytest.raises(ValueError, match="= 5, but there are 4 clients"):
        number_of_participants(5, 4)


@pytest.mark.parametrize(
    ("fraction", "clients", "expected"),
    [
        (0.5, 5, 3),
        (0.5, 4, 2),
        (0.1, 10, 1),
        (0.25, 10, 3),
        (0.24, 10, 2),
        (1e-9, 50, 1),
        (0.01, 1, 1),
        (1.0, 7, 7),
        (0.7, 45, 32),
        (0.7, 85, 60),
        (0.35, 90, 32),
    ],  # 31.5, 59.5, 31.5, of which the floats fall short
)
def test_a_fraction_is_rounded_half_up_and_at_least_one(fraction, clients, expected):
    assert number_of_participants(fraction, clients) == expected


def test_every_written_fraction_of_every_number_of_clients():
    # Half up in whole numbers: floor(x / 100 * n + 1 / 2) = (2 x n + 100) // 200; and fractions that no two digits write.
    for clients in range(1, 101):
        for hundredths in range(1, 101):
            expected = max(1, (2 * hundredths * clients + 100) // 200)
            assert number_of_participants(hundredths / 100, clients) == expected, (hundredths, clients)
        for text in ("0.125", "0.3333", "0.0625", "0.99999", "1e-05"):
            exact = Fraction(text) * clients
            number = number_of_participants(float(text), clients)
            assert number == 1 or number - Fraction(1, 2) <= exact < number + Fraction(1, 2), (text, clients)


def test_nan_is_refused_in_words():
    with pytest.raises(ValueError, match=r"must be a count of at least 1 or a fraction in \(0, 1\], got nan"):
        number_of_participants(float("nan"), 5)


def test_one_is_a_count_and_one_point_zero_a_fraction():
    assert number_of_participants(1, 9) == 1 and number_of_participants(9, 9) == 9
    assert number_of_participants(1.0, 9) == 9


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 50), st.floats(1e-6, 1.0), st.integers(0, 2**40), st.integers(0, 1000))
def test_any_number_of_clients_and_any_fraction(clients, fraction, seed, round):
    number = number_of_participants(fraction, clients)
    assert 1 <= number <= clients and abs(number - fraction * clients) <= max(0.5, 1 - fraction * clients)
    chosen = participants(tuple(range(clients)), number, seed, round)
    assert len(set(chosen)) == number and set(chosen) <= set(range(clients)) and list(chosen) == sorted(chosen)
    assert chosen == participants(tuple(range(clients)), number, seed, round)


def test_the_draw_depends_on_seed_and_round_only():
    state = np.random.get_state()
    draws = [[participants(range(20), 5, seed, round) for round in range(10)] for seed in range(2)]
    assert len({d for row in draws for d in row}) == 20
    np.random.seed(3)
    assert participants(range(20), 5, 1, 7) == draws[1][7]
    np.random.set_state(state)


def test_uniform():
    # 6000 rounds of 3 out of 10: each client 1800 times, sd sqrt(6000 * .3 * .7) = 35.5; all within 4 sd, and
    # every pair 6000 * 3/10 * 2/9 = 400 times, sd 19.3.
    counts, pairs = np.zeros(10), np.zeros((10, 10))
    for round in range(6000):
        chosen = list(participants(range(10), 3, 0, round))
        counts[chosen] += 1
        pairs[np.ix_(chosen, chosen)] += 1
    assert np.abs(counts - 1800).max() < 142
    assert np.abs(pairs[np.triu_indices(10, 1)] - 400).max() < 78

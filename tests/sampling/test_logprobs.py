import mlx.core as mx
import numpy as np
import pytest

from forerun.sampling.logprobs import MIN_LOGPROB, logprobs

ROWS = mx.random.normal((5, 300), key=mx.random.key(3)) * 4
TOKENS = mx.array([0, 299, 7, 7, 150], dtype=mx.int32)


def probs(logits: mx.array) -> np.ndarray:
    """log-softmax in float64."""
    rows = np.array(logits).astype(np.float64)
    return rows - np.log(np.sum(np.exp(rows - rows.max(-1, keepdims=True)), -1, keepdims=True)) - rows.max(-1, keepdims=True)


@pytest.mark.parametrize("num", [0, 1, 5, 20, 400])
def test_they_are_the_log_softmax(num: int) -> None:
    found, expected = logprobs(ROWS, TOKENS, num), probs(ROWS)
    assert np.allclose(found.chosen, expected[np.arange(5), np.array(TOKENS)], atol=1e-5)
    ids = np.argsort(-expected, axis=-1, kind="stable")[:, :num]
    assert np.array_equal(found.ids, ids)
    assert np.allclose(found.top, np.take_along_axis(expected, ids, -1), atol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    together = logprobs(ROWS, TOKENS, 3)
    for row in range(5):
        alone = logprobs(ROWS[row : row + 1], TOKENS[row : row + 1], 3)
        assert all(mx.array_equal(a[row : row + 1], b) for a, b in zip(together, alone, strict=True))


def test_an_impossible_token_has_the_minimum_and_a_bad_row_has_nan() -> None:
    logits = mx.array([[0.0, -mx.inf, -1e6], [0.0, mx.nan, 1.0]])
    found = logprobs(logits, mx.array([1, 0], dtype=mx.int32), 3)
    assert found.chosen[0].item() == MIN_LOGPROB
    assert found.top[0].tolist() == [0.0, MIN_LOGPROB, MIN_LOGPROB]
    assert not mx.isfinite(found.chosen[1]).item()

"""The draws of Week 3: right on average, and the same for a request whoever shares its batch."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_llm_engine.backends import candidate_filter
from tiny_llm_engine.backends.candidate_filter import CandidateFilter
from tiny_llm_engine.backends.seeded_sampling import SeededSampler, gumbel_noise
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.port import Port
from tiny_llm_ref.serving import SamplingParams

LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -4.0, 1.5])
ROWS = 8000


def sampler(b) -> SeededSampler:
    return SeededSampler(b.sampler, b.backend_module, b.device)


def tokens(b, logits, sampling, positions) -> list[int]:
    return [token for token, *_ in sampler(b)(b.array(logits), sampling, positions)]


def probabilities(temperature: float, kept: list[int]) -> np.ndarray:
    """What is left after the filters, in float64."""
    weights = np.zeros(len(LOGITS))
    weights[kept] = np.exp(LOGITS[kept] / temperature)
    return weights / weights.sum()


KEPT = [
    (SamplingParams(0.6), [0, 1, 2, 3, 4, 5, 6]),
    (SamplingParams(1.0, top_p=0.6), [0, 6]),
    (SamplingParams(1.3, top_k=4, top_p=0.999, seed=5, sample_index=3), [0, 1, 2, 6]),
]


@pytest.mark.parametrize(("params", "kept"), KEPT)
def test_tokens_come_with_the_probabilities_of_the_softmax(b, params, kept):
    """Over many positions; five standard deviations are allowed for each token, and what is hidden never comes."""
    drawn = tokens(b, np.tile(LOGITS, (ROWS, 1)), [params] * ROWS, range(ROWS))
    expected = probabilities(params.temperature, kept)
    actual = np.bincount(drawn, minlength=len(LOGITS)) / ROWS
    atol = 5 * np.sqrt(expected * (1 - expected) / ROWS)
    assert (np.abs(actual - expected) <= atol).all(), (actual, expected)


@pytest.mark.parametrize("differs", ["seed", "sample_index", "position"])
def test_seed_answer_and_position_each_draw_independently(differs):
    """The noise of two streams that differ in one number is uncorrelated."""
    one = {"seed": 3, "sample_index": 1, "position": 8}
    other = {**one, differs: one[differs] + 1}
    a, z = (gumbel_noise(**numbers, count=4000) for numbers in (one, other))
    assert abs(np.corrcoef(a, z)[0, 1]) < 5 / np.sqrt(4000)
    assert (a == gumbel_noise(**one, count=4000)).all()


def test_noise_is_finite_up_to_the_largest_numbers():
    assert np.isfinite(gumbel_noise(2**63 - 1, 2**63 - 1, 2**40, 10_000)).all()


def mix(rng) -> tuple[np.ndarray, list, list[int]]:
    """Rows of a batch, each with its own parameters, and positions."""
    sampling = [
        SamplingParams(0.8, seed=1),
        None,
        SamplingParams(1.5, top_k=9, seed=1),
        SamplingParams(0.8, top_p=0.7, seed=2),
        SamplingParams(0.8, seed=1, sample_index=1),
        SamplingParams(),
        SamplingParams(1.0, top_k=4, top_p=0.9),
    ]
    return rng.normal(size=(7, 211)) * 2, sampling, [5, 5, 9, 0, 5, 7, 31]


def test_a_draw_depends_on_its_own_row_alone(b, rng):
    """Alone, in any order, and beside any number of others, each request gets the same token."""
    logits, sampling, positions = mix(rng)
    expected = tokens(b, logits, sampling, positions)
    for rows in ([3], [6, 0], [4, 2, 1, 0, 3], [*rng.permutation(7)], [0] * 33):
        mine = tokens(b, logits[rows], [sampling[r] for r in rows], [positions[r] for r in rows])
        assert mine == [expected[r] for r in rows], rows
    assert tokens(b, logits, sampling[:4], positions[:4]) == expected[:4], "rows after the last are padding"


def test_greedy_rows_take_the_largest_logit_beside_random_ones(b, rng):
    logits, sampling, positions = mix(rng)
    drawn = tokens(b, logits, sampling, positions)
    assert [drawn[1], drawn[5]] == [*logits[[1, 5]].argmax(-1)]
    assert drawn != [*logits.argmax(-1)], "the others draw at random"


def test_every_port_draws_the_same_tokens(rng):
    logits, sampling, positions = mix(rng)
    ports = [Port("tiny_llm_ref", name, "cpu") for name in installed_backends()]
    drawn = {str(tokens(port, logits, sampling, positions)) for port in ports}
    assert len(drawn) == 1


def test_logprobs_are_those_of_the_model(b, rng):
    """The softmax of the plain logits: neither the temperature nor a filter changes them."""
    logits, sampling, positions = mix(rng)
    counts = [0, 3, None, 1, 2, 211, 999]
    sampling = [replace(p or SamplingParams(), logprobs=n) for n, p in zip(counts, sampling, strict=True)]
    chosen = sampler(b)(b.array(logits), sampling, positions)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for row, (params, (token, logprob, best)) in enumerate(zip(sampling, chosen, strict=True)):
        if params.logprobs is None:
            assert (logprob, best) == (None, None)
            continue
        order = np.argsort(-expected[row])[: params.logprobs]
        assert list(best) == [*order], "the most probable first"
        np.testing.assert_allclose([logprob, *best.values()], expected[row, [token, *order]], atol=1e-5)
    drawn = tokens(b, logits, mix(rng)[1], positions)
    assert [token for token, *_ in chosen] == drawn, "asking changes no draw"


@pytest.mark.parametrize("logprobs", [None, 4])
@pytest.mark.parametrize("is_random", [False, True])
def test_one_copy_to_the_device_and_one_back(b, rng, is_random, logprobs):
    there, back = [], []
    counted = SimpleNamespace(**vars(b.backend_module))
    counted.to_array = lambda *arguments, **options: (
        there.append(1) or b.backend_module.to_array(*arguments, **options)
    )
    counted.to_numpy = lambda array: back.append(1) or b.backend_module.to_numpy(array)
    counted.start_read = lambda array: back.append(1) or b.backend_module.start_read(array)
    params = SamplingParams(0.7 if is_random else 0, top_k=7, top_p=0.9, logprobs=logprobs)
    sampling = [params, replace(params, top_k=3), None]
    SeededSampler(b.sampler, counted, b.device)(b.array(rng.normal(size=(3, 50))), sampling, [1, 2, 3])
    assert (len(there), len(back)) == (is_random, 1), "ids and what is said of them come back together"


BACKENDS = [Port("tiny_llm_ref", name, "cpu") for name in installed_backends()]


@pytest.mark.parametrize("port", BACKENDS, ids=lambda port: port.name)
@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.1, 1.0, 3.0, 10.0]),
    decimals=st.sampled_from([0, 1, 6]),
    top_k=st.sampled_from([None, 3, 60]),
)
@settings(max_examples=60, deadline=None)
def test_candidates_are_filtered_as_the_whole_vocabulary_is(port, seed, scale, decimals, top_k):
    """Steep and flat rows, with many equal logits and with none: the same tokens are kept."""
    rng = np.random.default_rng(seed)
    logits = port.array(np.round(rng.normal(size=(4, 97)) * scale, decimals))
    top_p = float(rng.uniform(0.01, 0.999))
    expected = logits if top_k is None else port.sampler.keep_top_k(logits, top_k)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidate_filter, "CANDIDATES", 8)
        actual = CandidateFilter(port.sampler, port.backend_module)(logits, top_k, top_p)
    np.testing.assert_array_equal(port.numpy(actual), port.numpy(port.sampler.keep_top_p(expected, top_p)))


@pytest.mark.parametrize("top_p", [5e-324, 1e-40])
def test_the_most_probable_token_stays_where_top_p_is_0_in_float32(b, rng, top_p):
    """A server's users may ask for any number above 0."""
    logits = rng.normal(size=(3, 2 * candidate_filter.CANDIDATES)).astype(np.float32)
    for keep in (b.sampler.keep_top_p, partial(CandidateFilter(b.sampler, b.backend_module), top_k=None)):
        kept = np.isfinite(b.numpy(keep(b.array(logits), top_p=top_p)))
        np.testing.assert_array_equal(kept.nonzero(), (range(3), logits.argmax(axis=1)))


def test_only_rows_that_need_it_are_sorted_whole(b, rng, monkeypatch):
    """A steep row, a flat one, and rows that filter nothing: one row of the whole vocabulary is sorted."""
    monkeypatch.setattr(candidate_filter, "CANDIDATES", 8)
    widths = []
    keep = b.sampler.keep_top_p

    def keep_top_p(logits, top_p):
        widths.append(tuple(logits.shape))
        return keep(logits, top_p)

    counted = SimpleNamespace(keep_top_k=b.sampler.keep_top_k, keep_top_p=keep_top_p)
    logits = rng.normal(size=(5, 90)) * np.array([[9], [0.1], [1], [1], [9]])
    nucleus = SamplingParams(1.0, top_p=0.9)
    sampling = [nucleus, nucleus, None, SamplingParams(1.0), replace(nucleus, top_k=5)]
    chosen = SeededSampler(counted, b.backend_module, b.device, CandidateFilter(counted, b.backend_module))
    drawn = [token for token, *_ in chosen(b.array(logits), sampling, [3] * 5)]
    assert sorted(widths) == [(1, 8), (1, 8), (1, 90)]
    assert drawn == tokens(b, logits, sampling, [3] * 5)


def test_an_engine_on_a_cpu_sorts_candidates_and_one_on_an_accelerator_everything(b, monkeypatch):
    """Choosing rows by their numbers reads them back, and makes shapes that are not known before."""
    model = SimpleNamespace(num_hidden_layers=1, config=SimpleNamespace(context=8, vocab_size=8))
    assert b.packed_runner(model, 1, create_kv_pools=lambda *sizes: []).sampler.candidates is not None
    monkeypatch.setattr(b, "device", "cuda")
    assert b.packed_runner(model, 1, create_kv_pools=lambda *sizes: []).sampler.candidates is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_of_equal_logits_the_first_is_the_largest_and_nan_before_any_number(b, dtype):
    rows = [[1.0, 3, 3, 0], [-1, np.nan, 9, np.nan], [-np.inf] * 4, [0, 0, 0, 5]]
    assert b.backend_module.argmax(b.array(np.array(rows), dtype)).tolist() == [1, 1, 0, 3]

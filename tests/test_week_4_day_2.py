"""Week 4 Day 2: mixtures of experts. Oracles: NumPy in float64; transformers' layers, whose results are stored.

Ranks take turns in one thread, and every collective call is recorded.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.close import assert_close
from support.goldens import MIXTURES, golden_mixture, random_mixture
from support.lockstep import LockstepGroup
from support.masks import assert_no_loop, assert_traces
from support.ranks import on_all_ranks

# (T, X, k): one token, all experts, one expert, more tokens than experts.
SIZES = [(7, 5, 2), (1, 9, 3), (4, 4, 4), (6, 3, 1), (30, 8, 2)]
EXAMPLE = [[2, 0], [2, 3], [0, 2]]  # the chapter's three tokens and four experts


def probabilities(logits):
    """(T, X) in float64."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def integers(b, array, what):
    """The numbers of an array that must hold integers."""
    found = b.numpy(array)
    assert found.dtype.kind in "iu", f"{what} are integers, not {found.dtype}"
    return found


# The router.


@pytest.mark.task("4.2.1")
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize(("tokens", "num_experts", "k"), SIZES)
def test_the_most_probable_experts_of_each_token(b, rng, tokens, num_experts, k, renormalise):
    """(T, k), the most probable first. Without `renormalise` a weight is a probability among all X experts."""
    logits = 2 * rng.standard_normal((tokens, num_experts)).astype(np.float32)
    experts, weights = b.route(b.array(logits), k, renormalise)
    expected = np.argsort(-logits, axis=-1)[:, :k]
    found = integers(b, experts, "experts")
    assert found.tolist() == expected.tolist(), f"the {k} most probable of {num_experts}, the first one first"
    shares = np.take_along_axis(probabilities(logits.astype(np.float64)), expected, -1)
    if renormalise:
        idea, shares = f"the {k} weights of a token have the sum 1", shares / shares.sum(-1, keepdims=True)
    else:
        idea = "a weight is a share of the softmax over all experts"
    assert_close(b.numpy(weights), shares, atol=1e-6, idea=idea)


@pytest.mark.task("4.2.1")
@pytest.mark.parametrize("name", MIXTURES)
def test_the_router_of_transformers(b, name):
    case, arrays, stored = MIXTURES[name], random_mixture(MIXTURES[name]), golden_mixture(name)
    logits = (arrays["x"].astype(np.float64) @ arrays["router"].T).astype(np.float32)
    experts, weights = b.route(b.array(logits), case.k, case.renormalise)
    assert b.numpy(experts).tolist() == stored["experts"].tolist(), f"other experts than {case.family}'s"
    assert_close(b.numpy(weights), stored["weights"], idea=f"other weights than {case.family}'s")


@pytest.mark.task("4.2.1")
def test_weights_are_renormalised_unless_told_otherwise(b, rng):
    _, weights = b.route(b.array(rng.standard_normal((5, 6)).astype(np.float32)), 3)
    assert_close(b.numpy(weights).sum(-1), np.ones(5), atol=1e-6, idea="renormalise is True by default")


@pytest.mark.task("4.2.1")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_float32(b, rng, dtype):
    """A step's logits may have 8 bits of precision; the softmax must not lose more."""
    logits = b.array(3 * rng.standard_normal((9, 7)), dtype)
    experts, weights = b.route(logits, 3, False)
    assert weights.dtype == b.dtype("float32"), f"logits in {dtype} give weights in {weights.dtype}"
    shares = probabilities(b.numpy(logits).astype(np.float64))
    expected = np.take_along_axis(shares, b.numpy(experts), -1)
    assert_close(b.numpy(weights), expected, atol=1e-6, idea="the softmax is computed in float32")


@pytest.mark.task("4.2.1")
@pytest.mark.parametrize("scale", [300.0, 1e4])
def test_large_logits_are_no_nan(b, scale):
    logits = np.float32([[1, 0, -1, 0.5], [-1, -2, -1.5, -3]]) * np.float32(scale)
    experts, weights = b.route(b.array(logits), 2)
    assert b.numpy(experts)[:, 0].tolist() == [0, 0], "the largest logit comes first"
    assert_close(b.numpy(weights), [[1, 0], [1, 0]], idea="exp of a large logit overflows")


@pytest.mark.task("4.2.1")
def test_equal_logits_give_different_experts(b):
    """Ties occur: the rows that pad a batch are equal, or 0. No token may have the same expert twice."""
    experts, weights = b.route(b.array(np.zeros((3, 6), np.float32)), 4)
    for row in b.numpy(experts).tolist():
        assert len(set(row)) == 4, f"four different experts of equal ones, not {row}"
    assert_close(b.numpy(weights), np.full((3, 4), 0.25), idea="equal logits have equal weights")


@pytest.mark.task("4.2.1")
def test_a_rank_may_have_no_token(b):
    experts, weights = b.route(b.array(np.zeros((0, 6), np.float32)), 2)
    assert (tuple(experts.shape), tuple(weights.shape)) == ((0, 2), (0, 2)), "no token has no experts"


@pytest.mark.task("4.2.1")
def test_the_router_reads_no_number(b, rng):
    """It is a part of the compiled model (Day 3.4), and there are thousands of tokens."""
    logits = b.array(rng.standard_normal((6, 5)).astype(np.float32))
    assert_traces(b, lambda logits: b.route(logits, 2), logits, idea="the host must not read the logits")
    assert_no_loop(lambda tokens: b.route(b.array(np.ones((tokens, 5), np.float32)), 2), "a loop over tokens")


# The order.


def sorted_pairs(b, experts, num_experts):
    order, counts = b.sort_by_expert(b.array(np.asarray(experts)), num_experts)
    return integers(b, order, "places"), integers(b, counts, "counts")


@pytest.mark.task("4.2.2")
def test_the_example_of_the_chapter(b):
    """Pairs 0 to 5 have experts 2, 0, 2, 3, 0, 2; expert 1 has none."""
    order, counts = sorted_pairs(b, EXAMPLE, 4)
    assert order.tolist() == [1, 4, 0, 2, 5, 3], "first the pairs of expert 0, then those of expert 2, then 3"
    assert counts.tolist() == [2, 0, 3, 1], "the pairs of each expert, with a 0 for expert 1"


@pytest.mark.task("4.2.2")
@pytest.mark.parametrize(("tokens", "num_experts", "k"), [*SIZES, (200, 2, 1), (3, 64, 2), (400, 6, 3)])
def test_pairs_sorted_by_expert(b, rng, tokens, num_experts, k):
    """Pairs of the same expert keep their order, and counts has X numbers however many experts occur."""
    experts = np.stack([rng.permutation(num_experts)[:k] for _ in range(tokens)])
    order, counts = sorted_pairs(b, experts, num_experts)
    expected = np.argsort(experts.reshape(-1), kind="stable")
    assert order.shape == expected.shape, f"one place for each of {tokens} · {k} pairs, not {order.shape}"
    assert order.tolist() == expected.tolist(), "pairs of expert 0 in their order, then those of expert 1 …"
    counted = np.bincount(experts.reshape(-1), minlength=num_experts)
    assert counts.tolist() == counted.tolist(), "the number of pairs of each expert"


@pytest.mark.task("4.2.2")
def test_more_experts_and_pairs_than_small_types_hold(b, rng):
    """300 experts need more than 8 bits, and 4,099 pairs of one expert more than the 11 of float16."""
    experts = rng.permutation([*range(300), *[7] * 4098])
    order, counts = sorted_pairs(b, experts[:, None], 300)
    assert order.tolist() == np.argsort(experts, kind="stable").tolist(), "experts 0 to 299, in this order"
    assert counts.tolist() == np.bincount(experts).tolist(), "4,099 pairs of expert 7, 1 of each other one"


@pytest.mark.task("4.2.2")
def test_experts_without_pairs_are_counted(b):
    """The first and the last ones too."""
    order, counts = sorted_pairs(b, [[3], [3]], 6)
    assert order.tolist() == [0, 1], "two pairs of the same expert keep their order"
    assert counts.tolist() == [0, 0, 0, 2, 0, 0], "X counts, also of experts that do not occur"


@pytest.mark.task("4.2.2")
def test_no_pairs(b):
    order, counts = sorted_pairs(b, np.zeros((0, 2), np.int64), 3)
    assert (order.tolist(), counts.tolist()) == ([], [0, 0, 0])


@pytest.mark.task("4.2.2")
def test_the_order_reads_no_number(b):
    """Shapes depend on T, k and X alone; so there is nothing to wait for, and one graph for every step."""
    experts = b.array(np.array(EXAMPLE))
    assert_traces(b, lambda experts: b.sort_by_expert(experts, 4), experts, idea="the host reads the experts")
    assert_no_loop(lambda tokens: sorted_pairs(b, np.ones((tokens, 2), np.int64), 3), "a loop over tokens")


# Products.


def products(x, weights, counts):
    """Row by row, in float64."""
    experts = np.repeat(np.arange(len(counts)), counts)
    rows = [np.float64(weights[expert]) @ np.float64(row) for row, expert in zip(x, experts, strict=True)]
    return np.array(rows).reshape(len(x), weights.shape[1])


COUNTS = [[2, 3, 1], [0, 4, 0, 2], [0, 0, 5], [3, 0, 0], [1, 1, 1, 1, 1], [0, 0]]


def layers_of(b, weights):
    """A linear layer per expert."""
    return [b.linear_layer(b.array(w, "float32")) for w in weights]


@pytest.mark.task("4.2.3")
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_each_row_by_the_matrix_of_its_expert(b, rng, counts):
    x = rng.standard_normal((sum(counts), 7)).astype(np.float32)
    weights = rng.standard_normal((len(counts), 5, 7)).astype(np.float32)
    found = b.grouped_product_by_expert(b.array(x), layers_of(b, weights), b.array(np.array(counts)))
    assert_close(b.numpy(found), products(x, weights, counts), idea=f"rows of experts with {counts} rows")


@pytest.mark.task("4.2.3")
def test_square_matrices_are_transposed(b, rng):
    """x @ Wᵀ, as everywhere: with O = I the other product has the right shape."""
    x, weights = rng.standard_normal((4, 6)), rng.standard_normal((2, 6, 6))
    found = b.grouped_product_by_expert(b.array(x, "float32"), layers_of(b, weights), b.array([1, 3]))
    assert_close(b.numpy(found), products(x, weights, [1, 3]), idea="a row times Wᵀ")


@pytest.mark.task("4.2.3")
def test_an_expert_without_rows_is_not_read(b, rng):
    """A product reads its whole matrix: of 128 experts a decode needs 8, each with its own rows alone."""
    read, layers = [], layers_of(b, rng.standard_normal((4, 3, 4)))

    class Recorded:
        """A layer that notes how many rows it gets."""

        shape = (3, 4)

        def __init__(self, expert):
            self.expert = expert

        def __call__(self, x):
            read.append((self.expert, len(x)))
            return layers[self.expert](x)

    x, counts = b.array(np.ones((5, 4), np.float32)), b.array([0, 2, 0, 3])
    b.grouped_product_by_expert(x, [Recorded(expert) for expert in range(4)], counts)
    assert read == [(1, 2), (3, 3)], f"expert 1 gets 2 rows, expert 3 gets 3; here (expert, rows) are {read}"


@pytest.mark.task("4.2.3")
def test_one_product_per_expert(b, rng):
    """Its rows together: one by one they would read the matrix again for each."""
    x, weights = np.ones((400, 4), np.float32), layers_of(b, rng.standard_normal((2, 3, 4)))

    def multiply(rows):
        counts = b.array([rows // 4, rows - rows // 4])
        return b.grouped_product_by_expert(b.array(x[:rows]), weights, counts)

    assert_no_loop(multiply, "a loop over rows")


@pytest.mark.task("4.2.3")
@pytest.mark.parametrize("counts", [[2, 0, 1], [0, 0, 0]], ids=str)
def test_products_keep_the_type(b, counts):
    x, w = np.ones((sum(counts), 4)), b.array(np.ones((5, 4)), "bfloat16")
    weights = 3 * [b.linear_layer(w)]
    found = b.grouped_product_by_expert(b.array(x, "bfloat16"), weights, b.array(counts))
    assert found.dtype == b.dtype("bfloat16"), f"rows in bfloat16 give {found.dtype}"
    assert tuple(found.shape) == (sum(counts), 5), f"(N, O) is {(sum(counts), 5)}, not {tuple(found.shape)}"


# The sum.


def combined(outputs, order, weights):
    """Pair by pair, in float64."""
    total = np.zeros((len(weights), outputs.shape[1]))
    for row, pair in enumerate(order):
        total[pair // weights.shape[1]] += weights.reshape(-1)[pair] * np.float64(outputs[row])
    return total


@pytest.mark.task("4.2.4")
def test_the_example_in_numbers(b):
    """Row i of the outputs is pair order[i]: token 0 has pairs 0 and 1, which are rows 2 and 0."""
    order, outputs = [1, 4, 0, 2, 5, 3], np.float32([[1], [2], [4], [8], [16], [32]])
    weights = np.float32([[1, 0], [1, 0.5], [0, 1]])
    found = b.combine_experts(b.array(outputs), b.array(order), b.array(weights))
    assert b.numpy(found).tolist() == [[4], [8 + 16], [16]], "row i belongs to pair order[i]"


@pytest.mark.task("4.2.4")
@pytest.mark.parametrize(("tokens", "num_experts", "k"), SIZES)
def test_the_weighted_sum_of_each_token(b, rng, tokens, num_experts, k):
    """The weights of a token are used as they are, whatever their sum."""
    order = rng.permutation(tokens * k)
    outputs = rng.standard_normal((tokens * k, 6)).astype(np.float32)
    weights = rng.uniform(size=(tokens, k)).astype(np.float32)
    found = b.combine_experts(b.array(outputs), b.array(order), b.array(weights))
    assert_close(
        b.numpy(found), combined(outputs, order, weights), idea="the sum over the k pairs of a token"
    )


@pytest.mark.task("4.2.4")
def test_the_sum_is_rounded_once(b, rng):
    """Eight experts in bfloat16: the products and the sum are float32, and the result is bfloat16 again."""
    order, weights = rng.permutation(40), rng.uniform(0.1, 1, size=(5, 8)).astype(np.float32)
    outputs = b.array(rng.standard_normal((40, 6)), "bfloat16")
    found = b.combine_experts(outputs, b.array(order), b.array(weights))
    assert found.dtype == b.dtype("bfloat16"), f"outputs in bfloat16 give {found.dtype}"
    expected = b.array(combined(b.numpy(outputs), order, weights).astype(np.float32), "bfloat16")
    assert_close(b.numpy(found), b.numpy(expected), rtol=0, atol=1e-6, idea="rounded once, at the end")


@pytest.mark.task("4.2.4")
def test_no_token_has_no_sum(b):
    arrays = (b.array(np.zeros(shape, np.float32)) for shape in ((0, 6), (0, 2)))
    outputs, weights = arrays
    found = b.combine_experts(outputs, b.array(np.zeros(0, np.int64)), weights)
    assert tuple(found.shape) == (0, 6), f"(T, E) is (0, 6), not {tuple(found.shape)}"


@pytest.mark.task("4.2.4")
def test_the_sum_reads_no_number(b, rng):
    arrays = (
        b.array(np.ones((6, 3), np.float32)),
        b.array([1, 4, 0, 2, 5, 3]),
        b.array(np.ones((3, 2), np.float32)),
    )
    assert_traces(b, b.combine_experts, *arrays, idea="the host must not read the order")

    def combine(tokens):
        outputs, weights = (b.array(np.ones(shape, np.float32)) for shape in ((2 * tokens, 3), (tokens, 2)))
        return b.combine_experts(outputs, b.array(np.arange(2 * tokens)), weights)

    assert_no_loop(combine, "a loop over tokens")


# The layer of four tasks.


def mixture(b, case, group=None, as_array=False):
    """The mixture with the weights of a case; with a group, with the experts of a rank."""
    arrays = random_mixture(case)
    matrices = [arrays["gate_up"], arrays["down"]]
    if group is not None:
        own = b.serving.even_part(case.num_experts, group.rank, group.size)
        matrices = [each[own.start : own.stop] for each in matrices]
    experts = [b.array(each) if as_array else tuple(b.array(w) for w in each) for each in matrices]
    parts = case.k, case.renormalise, b.array(arrays["router"]), *experts
    return b.MixtureOfExperts(*parts) if group is None else b.ExpertParallelMixture(*parts, group=group)


@pytest.mark.task("4.2.4")
@pytest.mark.parametrize("as_array", [True, False], ids=["(X, O, I)", "matrices"])
@pytest.mark.parametrize("name", MIXTURES)
def test_the_layer_equals_transformers(b, name, as_array):
    """Mixtral's layer, and Qwen3-MoE's with and without `norm_topk_prob`."""
    case, x = MIXTURES[name], random_mixture(MIXTURES[name])["x"]
    found = b.numpy(mixture(b, case, as_array=as_array)(b.array(x)))
    assert_close(found, golden_mixture(name)["y"], idea=f"the layer is not {case.family}'s")


@pytest.mark.task("4.2.4")
@pytest.mark.parametrize("name", MIXTURES)
def test_a_token_does_not_depend_on_its_chunk(b, name):
    """However a prompt is cut, and whoever else is in the batch: no expert is ever full."""
    case, x = MIXTURES[name], random_mixture(MIXTURES[name])["x"]
    layer = mixture(b, case)
    whole = b.numpy(layer(b.array(x[None])))
    assert whole.shape == (1, *x.shape), f"(..., E) in, {whole.shape} out"
    cuts = np.split(x, [1, 2, 5])
    parts = np.concatenate([b.numpy(layer(b.array(part))) for part in cuts])
    assert_close(parts, whole[0], idea="chunks of 1, 1, 3 and the rest give what the whole prompt gives")


# The plan of an exchange.

# The chapter's tokens on rank 0, other ones on rank 1: rank 0 has experts 0 and 1.
EXCHANGED = [[2, 0, 3, 1], [1, 4, 0, 2]]


@pytest.mark.task("4.2.5")
def test_the_plan_of_the_chapter(s):
    plan = s.exchange_plan(EXCHANGED, 0)
    assert plan.sent == [2, 4], "rank 0 has 2 + 0 rows for itself, and 3 + 1 for rank 1"
    assert plan.received == [2, 5], "2 + 0 of its own, and 1 + 4 from rank 1"
    assert plan.experts == [0, 0, 0, 1, 1, 1, 1], "first its own rows, then those of rank 1, by expert"
    plan = s.exchange_plan(EXCHANGED, 1)
    assert (plan.sent, plan.received) == ([5, 2], [4, 2]), "of rank 1"
    assert plan.experts == [0, 0, 0, 1, 1, 1], "expert 2 is rank 1's first one: it counts from 0"


@pytest.mark.task("4.2.5")
def test_plans_of_ranks_without_rows(s):
    """Rank 1 has no row, and nobody has one for experts of rank 2."""
    counts = [[0, 1, 0, 2, 0, 0], [0, 0, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0]]
    plans = [s.exchange_plan(counts, rank) for rank in range(3)]
    assert [plan.sent for plan in plans] == [[1, 2, 0], [0, 0, 0], [5, 0, 0]]
    assert [plan.received for plan in plans] == [[1, 0, 5], [2, 0, 0], [0, 0, 0]]
    assert [plan.experts for plan in plans] == [[1, 0, 0, 0, 0, 0], [1, 1], []]


@st.composite
def counts_of_ranks(draw):
    size, share = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    row = st.lists(st.integers(0, 4), min_size=size * share, max_size=size * share)
    return draw(st.lists(row, min_size=size, max_size=size))


@pytest.mark.task("4.2.5")
@given(counts_of_ranks())
@settings(max_examples=50)
def test_every_row_reaches_its_expert(s, counts):
    """Rows are sent as the plans say, and each arrives once, at the rank and the expert that it is for."""
    size, share = len(counts), len(counts[0]) // len(counts)
    plans = [s.exchange_plan(counts, rank) for rank in range(size)]
    rows = [
        [(rank, expert) for expert, many in enumerate(row) for _ in range(many)]
        for rank, row in enumerate(counts)
    ]
    for rank, plan in enumerate(plans):
        arrived = []
        for sender, other in enumerate(plans):
            assert other.sent[rank] == plan.received[sender], f"rank {sender} sends to {rank}: {counts}"
            start = sum(other.sent[:rank])
            arrived += rows[sender][start : start + other.sent[rank]]
        found = [rank * share + expert for expert in plan.experts]
        assert found == [expert for _, expert in arrived], f"experts of what rank {rank} receives: {counts}"
    assert [sum(plan.sent) for plan in plans] == [len(each) for each in rows], "every row is sent once"


# Experts on several ranks.

SIZE_OF_RANKS = [(1, 4), (2, 4), (2, 6), (4, 4), (3, 6)]


def spread(rng, size, num_experts, most=5):
    """Rows (N, 3) of each rank, sorted by expert, and their counts."""
    counts = rng.integers(0, most, size=(size, num_experts))
    return [rng.standard_normal((sum(row), 3)).astype(np.float32) for row in counts], counts


def on_ranks(b, rows, counts, weights, seen=None):
    """What `run_on_ranks` returns on each rank with products as the experts, and the collective calls."""

    def run(group):
        own = b.serving.even_part(len(weights), group.rank, group.size)

        def compute(x, counted):
            here = b.numpy(counted)
            assert here.shape == (len(own),), f"`compute` gets (X / size,) counts, not {here.shape}"
            assert here.sum() == len(x), f"`compute` gets {len(x)} rows, and their counts say {here.sum()}"
            if seen is not None:
                seen[group.rank] = b.numpy(x), here
            return b.array(products(b.numpy(x), weights[own.start : own.stop], here).astype(np.float32))

        return b.run_on_ranks(b.array(rows[group.rank]), b.array(counts[group.rank]), compute, group)

    return on_all_ranks(b, len(rows), run)


@pytest.mark.task("4.2.6")
@pytest.mark.parametrize(("size", "num_experts"), SIZE_OF_RANKS)
def test_ranks_compute_what_one_process_computes(b, rng, size, num_experts):
    """Ranks have different numbers of rows, and the outputs another width than the rows."""
    rows, counts = spread(rng, size, num_experts)
    weights = rng.standard_normal((num_experts, 5, 3))
    found, _ = on_ranks(b, rows, counts, weights)
    for rank, each in enumerate(found):
        idea = f"the outputs of rank {rank} of {size}, in the order of its rows"
        assert_close(each, products(rows[rank], weights, counts[rank]), idea=idea)


@pytest.mark.task("4.2.6")
def test_rows_arrive_sorted_by_expert(b, rng):
    """The rows of an expert come from several ranks; `compute` gets them side by side, each exactly once."""
    rows, counts = [], np.array(EXCHANGED)
    for rank, row in enumerate(EXCHANGED):
        experts = np.repeat(np.arange(4), row)
        rows.append(
            np.stack([experts, np.full(len(experts), rank), np.arange(len(experts))], 1).astype(np.float32)
        )
    seen = {}
    on_ranks(b, rows, counts, rng.standard_normal((4, 2, 3)), seen)
    for rank, (x, counted) in seen.items():
        experts = [2 * rank] * (EXCHANGED[0][2 * rank] + EXCHANGED[1][2 * rank])
        experts += [2 * rank + 1] * (EXCHANGED[0][2 * rank + 1] + EXCHANGED[1][2 * rank + 1])
        assert x[:, 0].tolist() == experts, f"rank {rank} gets rows of its experts, sorted"
        assert counted.tolist() == [experts.count(2 * rank), experts.count(2 * rank + 1)]
        assert len({tuple(each) for each in x.tolist()}) == len(x), "every row once"


EMPTY = {
    "a rank without rows": [[2, 1, 0, 3], [0, 0, 0, 0]],
    "a rank whose experts get nothing": [[2, 1, 0, 0], [0, 4, 0, 0]],
    "no rows at all": [[0, 0, 0, 0], [0, 0, 0, 0]],
    "all rows to another rank": [[0, 0, 0, 5], [0, 0, 0, 0]],
}


@pytest.mark.task("4.2.6")
@pytest.mark.parametrize("name", EMPTY)
def test_ranks_without_rows_take_part(b, rng, name):
    """A single decode on two ranks: one of them has no row, and the other waits for its calls."""
    counts = np.array(EMPTY[name])
    rows = [rng.standard_normal((sum(row), 3)).astype(np.float32) for row in counts]
    weights = rng.standard_normal((4, 5, 3))
    found, calls = on_ranks(b, rows, counts, weights)
    for rank, each in enumerate(found):
        assert_close(each, products(rows[rank], weights, counts[rank]), idea=f"{name}: rank {rank}")
    assert len(calls) == 3, f"{name}: the same calls as always, not {calls}"


@pytest.mark.task("4.2.6")
def test_counts_and_rows_and_outputs_are_exchanged(b, rng):
    """One all-gather of counts, and one all-to-all in each direction; no rank gets rows that it does not need."""
    rows, counts = spread(rng, 2, 4)
    _, calls = on_ranks(b, rows, counts, rng.standard_normal((4, 5, 3)))
    assert [call.split()[0] for call in calls] == ["all_gather", "all_to_all", "all_to_all"], calls
    assert "of [4]" in calls[0], f"the counts of all 4 experts are gathered, not {calls[0]}"
    assert ("[3]" in calls[1], "[5]" in calls[2]) == (True, True), (
        f"rows of 3 go, and outputs of 5 return: {calls}"
    )


@pytest.mark.task("4.2.6")
def test_rows_are_sent_in_their_type(b):
    """In float32 twice as many bytes would be sent. The counts are integers: bfloat16 has no 257."""
    group = LockstepGroup(2, b.backend_module)
    x, counts = b.array(np.ones((260, 3)), "bfloat16"), b.array([1, 1, 257, 1])

    def run(rank):
        return b.run_on_ranks(x, counts, lambda rows, counted: rows, rank)

    for found in group.run([lambda rank=rank: run(rank) for rank in group.ranks]):
        assert found.dtype == b.dtype("bfloat16"), f"outputs in bfloat16 come back as {found.dtype}"
    assert all("bfloat16" in call for call in group.calls[1:]), f"rows in bfloat16: {group.calls[1:]}"


@pytest.mark.task("4.2.6")
@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize(("name", "size"), [("qwen3-moe", 3), ("mixtral", 5), ("qwen3-moe", 1)])
def test_the_layer_on_ranks_equals_transformers(b, name, size, tokens):
    """Each rank routes its share of the tokens; a single token leaves all others without rows."""
    case, x = MIXTURES[name], random_mixture(MIXTURES[name])["x"][:tokens]
    found, _ = on_all_ranks(b, size, lambda group: mixture(b, case, group)(b.array(x)))
    for rank, each in enumerate(found):
        assert_close(each, golden_mixture(name)["y"][:tokens], idea=f"rank {rank} of {size}, {tokens} tokens")

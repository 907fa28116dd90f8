"""Week 1 Day 4: RMSNorm, silu and the MLP. Oracle: NumPy in float64."""

import numpy as np
import pytest

from support.close import assert_close

SHAPES = [(7,), (3, 7), (2, 3, 1, 7)]
TYPES = ["float32", "bfloat16", "float16"]


def rms_norm64(x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def silu64(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x * np.exp(-np.logaddexp(0, -x))


def norm_of(b, x: np.ndarray, weight: np.ndarray, **eps) -> np.ndarray:
    """The norm under test, in float32."""
    return b.numpy(b.RMSNorm(weight.size, b.array(weight), **eps)(b.array(x)))


@pytest.mark.task("1.4.1")
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_equals_numpy(b, rng, shape):
    """x / √(mean(x²) + eps) · weight over the last axis, for any number of axes before; the mean of x stays."""
    x, weight = 2 + rng.normal(size=shape), rng.normal(size=7)
    idea = "divide by the root of the mean square of the last axis; subtract nothing; then times weight"
    assert_close(norm_of(b, x, weight), rms_norm64(x, weight), idea=idea)


@pytest.mark.task("1.4.1")
def test_rms_norm_treats_every_vector_alone(b, rng):
    """Vectors of size 1 and of size 100 come out equally large: each is divided by its own mean square."""
    x = rng.normal(size=(3, 1, 7)) * np.array([1.0, 10.0, 100.0])[:, None, None]
    idea = "one mean square for each vector, not one for all"
    assert_close(norm_of(b, x, np.ones(7)), rms_norm64(x, np.ones(7)), idea=idea)


@pytest.mark.task("1.4.1")
def test_rms_norm_multiplies_by_the_weight_as_it_is(b, rng):
    """A weight of 0 silences a dimension (Gemma's norm, which is not ours, multiplies by 1 + weight)."""
    x = rng.normal(size=(2, 7))
    weight = np.array([0.0, 1.0, -2.0, 0.5, 0.0, 1.0, 3.0])
    assert_close(
        norm_of(b, x, weight), rms_norm64(x, weight), idea="multiply by weight itself, after the division"
    )


@pytest.mark.task("1.4.1")
@pytest.mark.parametrize(("eps", "size"), [(1e-5, 1e-3), (0.5, 0.3), (1e-6, 1e-3)])
def test_rms_norm_adds_eps_inside_the_root(b, rng, eps, size):
    """When the mean square is as small as eps, it shows where eps stands, and that it is the one that was given."""
    x, weight = size * rng.normal(size=(4, 7)), np.ones(7)
    idea = "eps is added to the mean square, under the root, and it is the eps that the norm was made with"
    assert_close(norm_of(b, x, weight, eps=eps), rms_norm64(x, weight, eps), idea=idea)


@pytest.mark.task("1.4.1")
def test_rms_norm_leaves_zeros_alone(b, rng):
    """A vector of zeros (padding) stays zeros, and does not become 0 / 0. The default eps is 1e-5."""
    assert_close(
        norm_of(b, np.zeros((2, 7)), np.ones(7)), np.zeros((2, 7)), idea="0 / √(0 + eps) is 0, not NaN"
    )
    x = 1e-3 * rng.normal(size=(4, 7))
    assert_close(norm_of(b, x, np.ones(7)), rms_norm64(x, np.ones(7), 1e-5), idea="the default eps is 1e-5")


@pytest.mark.task("1.4.1")
@pytest.mark.parametrize("dtype", TYPES)
def test_rms_norm_keeps_the_type(b, rng, dtype):
    """The statistics are float32 inside; what comes out has the type of what went in."""
    x, weight = b.array(rng.normal(size=(2, 7)), dtype), b.array(rng.normal(size=7), dtype)
    out = b.RMSNorm(7, weight)(x)
    assert out.dtype == x.dtype, f"{dtype} went in and {out.dtype} came out: cast back"


@pytest.mark.task("1.4.1")
def test_rms_norm_leaves_its_input_alone(b, rng):
    """The layer still needs x after its norm. In float32 a cast to float32 may be x itself, not a copy."""
    x = rng.normal(size=(2, 7))
    array = b.array(x)
    b.numpy(b.RMSNorm(7, b.array(np.ones(7)))(array))
    assert_close(b.numpy(array), x, idea="the norm wrote into its input: make a new array (no *=, no mul_)")


@pytest.mark.task("1.4.1")
def test_rms_norm_computes_statistics_in_float32(b, rng):
    """bf16 in, bf16 out, and one rounding between them: every number is off by at most half a step of bf16, 2^-8.

    A mean square or a root that was rounded too shifts the whole vector, past that bound. The weight is 1, so it
    makes no difference whether it is multiplied before or after the cast.
    """
    x = b.array(rng.normal(size=(64, 257)), "bfloat16")
    out = b.numpy(b.RMSNorm(257, b.array(np.ones(257), "bfloat16"))(x))
    idea = "the mean square or its root was computed in bf16: go to float32 first, come back at the end"
    assert_close(out, rms_norm64(b.numpy(x), np.ones(257)), atol=1e-6, rtol=1.01 * 2.0**-8, idea=idea)


@pytest.mark.task("1.4.1")
def test_rms_norm_survives_squares_that_float16_cannot_hold(b, rng):
    """float16 ends at 65504, so the square of 300 is infinite there, and everything divided by it is 0."""
    x = b.array(300 * rng.normal(size=(4, 33)), "float16")
    out = b.numpy(b.RMSNorm(33, b.array(np.ones(33), "float16"))(x))
    idea = "the square overflowed in float16: go to float32 before squaring, not after"
    assert_close(out, rms_norm64(b.numpy(x), np.ones(33)), atol=2e-3, rtol=2e-3, idea=idea)


@pytest.mark.task("1.4.1")
def test_rms_norm_with_a_weight_in_bf16(b, rng):
    """With any weight the result is within two roundings of the truth, whichever side of the cast the weight is on."""
    x, weight = b.array(rng.normal(size=(5, 129)), "bfloat16"), b.array(rng.normal(size=129), "bfloat16")
    out = b.numpy(b.RMSNorm(129, weight)(x))
    expected = rms_norm64(b.numpy(x), b.numpy(weight))
    assert_close(
        out, expected, atol=1e-6, rtol=1.01 * 2.0**-7, idea="bf16 in: within two roundings of float64"
    )


@pytest.mark.task("1.4.2")
def test_silu_equals_numpy(b, rng):
    """x · sigmoid(x): it dips to -0.278 at -1.278, and it is neither relu nor gelu."""
    x = np.concatenate([np.linspace(-12, 12, 49), 3 * rng.normal(size=32)]).reshape(3, 27)
    idea = "silu is x · sigmoid(x), with sigmoid(x) = 1 / (1 + exp(-x)) and nothing inside it but x"
    assert_close(b.numpy(b.silu(b.array(x))), silu64(x), idea=idea)


@pytest.mark.task("1.4.2")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sign", [-1, 1])
def test_silu_is_finite_at_large_inputs(b, dtype, sign):
    """At -1e4 it is 0, at 1e4 it is 1e4, in every type; exp(1e4) is infinite in all of them."""
    x = b.array(sign * np.array([20.0, 90.0, 1e3, 1e4]), dtype)
    idea = f"exp overflowed at {'large' if sign > 0 else 'very negative'} inputs: infinity / infinity is NaN"
    assert_close(b.numpy(b.silu(x)), silu64(b.numpy(x)), rtol=2.0**-7, idea=idea)


@pytest.mark.task("1.4.2")
@pytest.mark.parametrize("dtype", TYPES)
def test_silu_keeps_the_type(b, rng, dtype):
    """bf16 in, bf16 out, within two roundings of the truth."""
    x = b.array(rng.normal(size=(2, 5)), dtype)
    out = b.silu(x)
    assert out.dtype == x.dtype, f"{dtype} went in and {out.dtype} came out"
    idea = f"{dtype} is rounded too often on the way: take the library's sigmoid, or compute in float32 and come back"
    assert_close(b.numpy(out), silu64(b.numpy(x)), rtol=2.0**-7, atol=1e-5, idea=idea)


@pytest.mark.task("1.4.2")
def test_silu_leaves_its_input_alone(b, rng):
    """silu makes a new array."""
    x = rng.normal(size=(2, 5))
    array = b.array(x)
    b.numpy(b.silu(array))
    assert_close(b.numpy(array), x, idea="silu wrote into its input: make a new array (no *=, no mul_)")


def random_mlp(b, rng, dtype: str = "float32"):
    """An MLP 5 -> 11 -> 5 and its three weights in float64, w_gate and w_up as different as can be."""
    w_gate, w_up, w_down = rng.normal(size=(11, 5)), rng.normal(size=(11, 5)), rng.normal(size=(5, 11))
    weights = [b.array(w, dtype) for w in (w_gate, w_up, w_down)]
    return b.Qwen3MLP(5, 11, *weights), (w_gate, w_up, w_down)


@pytest.mark.task("1.4.3")
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_mlp_equals_numpy(b, rng, batch):
    """w_down @ (silu(w_gate @ x) · (w_up @ x)), for each token alone."""
    mlp, (w_gate, w_up, w_down) = random_mlp(b, rng)
    x = rng.normal(size=(*batch, 5))
    expected = (silu64(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T
    idea = "silu is on the gate's half alone; it multiplies the up half, number by number; then w_down"
    assert_close(b.numpy(mlp(b.array(x))), expected, atol=1e-4, idea=idea)


@pytest.mark.task("1.4.3")
def test_mlp_is_gated(b, rng):
    """Where the gate is far below 0 nothing passes, however loud the up half is; where it is large, all of it does."""
    E, F = 4, 6
    w_up, w_down = rng.normal(size=(F, E)), rng.normal(size=(E, F))
    w_gate = np.zeros((F, E))
    w_gate[:, 0] = [-60.0, -60.0, -60.0, 60.0, 60.0, 60.0]
    x = np.array([[1.0, 0.5, -2.0, 1.5]])
    mlp = b.Qwen3MLP(E, F, b.array(w_gate), b.array(w_up), b.array(w_down))
    expected = (np.maximum(w_gate @ x[0], 0) * (w_up @ x[0])) @ w_down.T
    assert_close(
        b.numpy(mlp(b.array(x)))[0], expected, rtol=1e-4, idea="w_gate is the one that goes through silu"
    )


@pytest.mark.task("1.4.3")
def test_mlp_keeps_the_type(b, rng):
    """bf16 in and bf16 weights give bf16 out."""
    mlp, _ = random_mlp(b, rng, "bfloat16")
    x = b.array(rng.normal(size=(2, 5)), "bfloat16")
    assert mlp(x).dtype == x.dtype, "the MLP must return the type that it was given"

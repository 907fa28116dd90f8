"""The operators of Days 2 and 3 against each port's own library: a second oracle, written by other people.

Each port has its own functions of the library; nothing is skipped, and neither port imports the other's library.
"""

import numpy as np
import pytest

from support.close import assert_close


def mlx_rope(x, base, traditional, offset):
    import mlx.core as mx

    heads_first = mx.array(x.astype(np.float32)).swapaxes(1, 2)
    turned = mx.fast.rope(
        heads_first, x.shape[-1], traditional=traditional, base=base, scale=1.0, offset=offset
    )
    return np.array(turned.swapaxes(1, 2))


def transformers_rope(x, base, traditional, offset):
    """Qwen3 turns halves; GLM, in the same library, turns neighbours."""
    import torch
    from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as turn_neighbours
    from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb as turn_halves

    frequencies = base ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = torch.arange(offset, offset + x.shape[1])[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)[None]
    turn = turn_neighbours if traditional else turn_halves
    heads_first = torch.tensor(x, dtype=torch.float32).transpose(1, 2)
    turned, _ = turn(heads_first, heads_first, angles.cos(), angles.sin())
    return turned.transpose(1, 2).numpy()


def mlx_attention(query, key, value, mask):
    import mlx.core as mx

    arrays = (mx.array(array.astype(np.float32)) for array in (query, key, value))
    return np.array(
        mx.fast.scaled_dot_product_attention(*arrays, scale=query.shape[-1] ** -0.5, mask="causal")
    )


def torch_attention(query, key, value, mask):
    import torch

    arrays = (torch.tensor(array, dtype=torch.float32) for array in (query, key, value, mask))
    query, key, value, mask = arrays
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=True
    ).numpy()


ROPE = {"mlx": mlx_rope, "torch": transformers_rope}
ATTENTION = {"mlx": mlx_attention, "torch": torch_attention}


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("offset", [0, 91])
def test_rope_equals_the_library(b, rng, traditional, offset):
    x = rng.normal(size=(2, 11, 3, 32))
    rope = b.RoPE(32, 128, base=1000000, traditional=traditional)
    actual = b.numpy(rope(b.array(x), slice(offset, offset + 11)))
    expected = ROPE[b.name](x, 1000000, traditional, offset)
    assert_close(actual, expected, atol=1e-4, idea="the library turns otherwise")


@pytest.mark.parametrize(("L", "S"), [(7, 7), (3, 8), (1, 9)])
def test_grouped_causal_attention_equals_the_library(b, rng, L, S):
    query, key, value = rng.normal(size=(2, 6, L, 16)), *rng.normal(size=(2, 2, 2, S, 16))
    actual = b.scaled_dot_product_attention_grouped(*map(b.array, (query, key, value)), mask="causal")
    mask = np.where(np.arange(S) <= np.arange(L)[:, None] + S - L, 0.0, -np.inf)
    expected = ATTENTION[b.name](query, key, value, mask)
    assert_close(b.numpy(actual), expected, atol=1e-5, idea="the library attends otherwise")


def test_the_tables_of_a_million_positions_are_float32(b):
    """The cosine of a head of 128 is off by 0.0161 there at most; here pair 1, which is pair 8 of that head, by 0.0155.

    In bf16 position 1,000,000 is 999,424, so that the cosine may have any value (vllm-gaudi, pull request 1817).
    """
    last = 1_000_000
    rope = b.RoPE(16, last + 1, 10000)
    assert rope.cos.dtype == rope.sin.dtype == b.dtype("float32")
    exact = np.cos(last * 10000 ** (-np.arange(0, 16, 2) / 16))
    assert np.abs(b.numpy(rope.cos[last:])[0] - exact).max() <= 0.0161


def test_rope_refuses_odd_heads_and_heads_of_another_size(b):
    with pytest.raises(ValueError, match="odd"):
        b.RoPE(7, 10)
    with pytest.raises(ValueError, match="dims=8"):
        b.RoPE(8, 10)(b.array(np.ones((1, 2, 1, 6))))


def test_rope_follows_positions_of_every_integer_type(b, rng):
    x = rng.normal(size=(1, 3, 1, 4))
    rope = b.RoPE(4, 10)
    expected = b.numpy(rope(b.array(x), slice(5, 8)))
    for dtype in (np.int32, np.int64):
        actual = b.numpy(rope(b.array(x), b.array(np.array([5, 6, 7], dtype))))
        assert_close(actual, expected, idea=f"positions in {np.dtype(dtype)}")


def test_grouped_attention_refuses_heads_that_do_not_divide_and_unknown_masks(b):
    query, key = b.array(np.ones((4, 2, 8))), b.array(np.ones((3, 2, 8)))
    with pytest.raises(ValueError, match="4 query heads"):
        b.scaled_dot_product_attention_grouped(query, key, key)
    with pytest.raises(ValueError, match="unknown"):
        b.scaled_dot_product_attention_grouped(query, query, query, mask="sliding")
    with pytest.raises(ValueError, match="L=3, S=2"):
        b.scaled_dot_product_attention_grouped(b.array(np.ones((3, 3, 8))), key, key, mask="causal")


def layer(b, Hkv=2, wk=(12, 10), **options):
    shapes = [(24, 10), wk, (12, 10), (10, 24), (6,), (6,)]
    return b.Qwen3MultiHeadAttention(10, 4, Hkv, 6, *(b.array(np.ones(s)) for s in shapes), **options)


def test_attention_layer_refuses_weights_that_do_not_fit(b):
    with pytest.raises(ValueError, match="multiple of num_kv_heads 3"):
        layer(b, Hkv=3)
    with pytest.raises(ValueError, match=r"wk has shape \(10, 12\), these heads need \(12, 10\)"):
        layer(b, wk=(10, 12))


def test_layers_can_share_one_rope(b):
    """A model of 28 layers would otherwise hold 28 tables of 32,768 positions."""
    rope = b.RoPE(6, 32)
    assert layer(b, rope=rope).rope is layer(b, rope=rope).rope is rope
    own = layer(b, max_seq_len=64, theta=500).rope
    assert (own.dims, own.seq_len, own.base, own.traditional) == (6, 64, 500, False)


def test_peak_bytes_counts_what_lives_at_once(b):
    """The ruler of the memory tests: a result of 4,000 bytes, and a sum that needs its input's size once more."""
    x = b.array(np.ones(1000))
    # What came before may leave a buffer that a port takes for a smaller array.
    b.peak_bytes(lambda: b.array(np.ones(1530)) + 1)
    assert 4000 <= b.peak_bytes(lambda: x + 1) < 5000
    assert 8000 <= b.peak_bytes(lambda: (x + 1) * (x + 2)) < 14000

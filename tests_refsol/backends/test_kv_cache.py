"""The KV cache over a long text: a token late in it costs no more memory and products than an early one."""

import numpy as np
import pytest

from tiny_llm_course.grading.small_models import random_checkpoint, small_model
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.port import Port

CASE = small_model(1, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=4096)
BYTES_A_TOKEN = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, numbers of a head, float32
TOKENS = 2000


def model_of(b):
    return b.Qwen3ModelWeek2(random_checkpoint(b, CASE))


def decode(b, model, caches):
    """One more token behind what the caches hold; returns its logits, not yet read."""
    return model(b.array([[7]]), caches[0].offset, caches, logits_to_keep=1)


def filled(b, model, tokens: int):
    caches = model.create_kv_cache(TOKENS + 100)
    b.numpy(model(b.array(np.full((1, tokens), 3)), 0, caches, logits_to_keep=1))
    return caches


def held(caches) -> int:
    return sum(array.nbytes for cache in caches for array in (cache.keys, cache.values))


def test_a_late_token_is_computed_as_an_early_one(b, monkeypatch):
    """Each product with a weight has one row, and attention one query, whose keys alone grow with the text."""
    model = model_of(b)
    products, attended = shapes_of_calls(model, monkeypatch)
    counts = []
    for tokens in (100, TOKENS):
        caches = filled(b, model, tokens)
        products.clear()
        attended.clear()
        decode(b, model, caches)
        counts.append([*products])
        assert {shape[:-1] for shape in products} == {(1, 1)}
        assert len(attended) == len(model.layers)
        assert all(queries == 1 and 0 < keys - tokens <= 256 for queries, keys in attended)
    early, late = counts
    assert early == late and len(late) == 7 * len(model.layers) + 1


def shapes_of_calls(model, monkeypatch) -> tuple[list, list]:
    """Two lists that grow: shapes of what is multiplied with a weight; queries and keys of each attention."""
    products, attended = [], []
    dense = type(model.layers[0].wq)
    multiply = dense.__call__
    monkeypatch.setattr(dense, "__call__", lambda w, x: products.append(tuple(x.shape)) or multiply(w, x))
    for layer in model.layers:

        def attend(query, key, *rest, inner=layer.attend, **options):
            attended.append((query.shape[2], key.shape[2]))
            return inner(query, key, *rest, **options)

        monkeypatch.setattr(layer, "attend", attend)
    return products, attended


def test_a_step_holds_little_beside_the_cache(b):
    """Beside the cache a late token needs its scores, a few numbers a key; never a copy of keys or values."""
    model = model_of(b)
    caches = filled(b, model, TOKENS)
    peak = b.peak_bytes(lambda: decode(b, model, caches))
    one_copy = TOKENS * BYTES_A_TOKEN // 4  # the keys of one layer
    assert peak < one_copy, f"a step held {peak:,} bytes, the keys of one layer are {one_copy:,}"


@pytest.mark.port("mlx")
def test_mlx_grows_in_steps_of_256_and_by_nothing_else(mlx_port):
    """Over 1,100 tokens, one by one: active memory is the cache's, which is the next multiple of 256 long."""
    import mlx.core as mx

    model = model_of(mlx_port)
    mx.clear_cache()  # a freed buffer of up to twice the size may be reused, and counts whole
    caches = model.create_kv_cache(1100)
    mlx_port.numpy(decode(mlx_port, model, caches))
    before, sizes, peaks = mx.get_active_memory() - held(caches), set(), []
    for position in range(1, 1100):
        mx.reset_peak_memory()
        mlx_port.numpy(decode(mlx_port, model, caches))
        sizes.add(held(caches))
        if position % 256:  # a step that grows holds the old and the new memory of an array at once
            peaks.append(mx.get_peak_memory() - held(caches) - before)
    assert sizes == {256 * n * BYTES_A_TOKEN for n in range(1, 6)}
    assert abs(mx.get_active_memory() - held(caches) - before) < 64 * 1024, "something else grew as well"
    assert max(peaks) < 1100 * BYTES_A_TOKEN / 4, f"a step held {max(peaks):,} bytes beside the cache"


@pytest.mark.port("mlx")
def test_mlx_materialize_computes_what_is_lazy(mlx_port):
    """After a step whose logits nobody reads the new keys are a promise; materialize() keeps it, once for all."""
    import mlx.core as mx

    model = model_of(mlx_port)
    caches = model.create_kv_cache(600)
    model(mlx_port.array(np.full((1, 500), 3)), 0, caches, logits_to_keep=0)
    before = mx.get_active_memory()
    for cache in caches:
        cache.materialize()
    assert mx.get_active_memory() - before >= held(caches) * 0.9
    for cache in caches:
        cache.release()
        cache.materialize()  # nothing there, nothing to do


@pytest.mark.port("torch")
def test_torch_allocates_once(port):
    """The memory of a cache is there from the first token on: same place, same size, behind every later token."""
    model = model_of(port)
    caches, places = model.create_kv_cache(TOKENS), set()
    for _ in range(600):
        decode(port, model, caches)
        places.add(tuple(array.data_ptr() for cache in caches for array in (cache.keys, cache.values)))
    assert len(places) == 1
    assert held(caches) == 2048 * BYTES_A_TOKEN


@pytest.mark.parametrize("attention", ["simple", "device"])
@pytest.mark.parametrize("offsets", [(5, 5), (5, 3), (5, None)])
def test_rows_of_one_length_and_of_several_get_the_logits_that_each_gets_alone(b, attention, offsets):
    """With another row beside it, or with an idle slot before it."""
    model = b.Qwen3ModelWeek2(random_checkpoint(b, CASE), attention=attention)
    batch, expected, rows = b.create_batch_cache(model, 2, 40), {}, []
    for slot, length in enumerate(reversed(offsets)):
        rows.append(length or 0)
        if length is None:
            continue
        own = model.create_kv_cache(40)
        model(b.array(np.arange(length)[None] + slot), 0, own, logits_to_keep=1)
        for shared, alone in zip(batch, own, strict=True):
            shared.add_request(alone, slot)
        expected[slot] = b.numpy(model(b.array([[7]]), length, own, logits_to_keep=1))[0]
    together = b.numpy(model(b.array([[7], [7]]), b.array([[n] for n in rows]), batch, logits_to_keep=1))
    for slot, logits in expected.items():
        np.testing.assert_allclose(together[slot], logits, atol=1e-4)


@pytest.mark.parametrize("backend", installed_backends())
def test_the_rotation_of_a_devices_kernels_is_the_one_of_day_2(backend):
    b, rng = Port("tiny_llm_ref", backend, "cpu"), np.random.default_rng(3)
    plain, device = (
        b.Qwen3ModelWeek2(random_checkpoint(b, CASE), attention=name).rope for name in ("simple", "device")
    )
    assert type(plain) is not type(device)
    x = b.array(rng.normal(size=(2, 3, 5, 16)), "float32")
    for positions in (b.array(np.arange(9, 12)), b.array(rng.integers(0, 4000, (2, 3)))):
        turned = (b.numpy(rope.rotate(x, *rope.rows(positions))) for rope in (plain, device))
        np.testing.assert_allclose(*turned, atol=1e-5)

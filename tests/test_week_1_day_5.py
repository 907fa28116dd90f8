"""Week 1 Day 5: the model. Oracle: Hugging Face's transformers, whose results for random weights are stored."""

import numpy as np
import pytest

from support.close import assert_close
from support.goldens import golden
from tiny_llm_course.grading.small_models import CASES, random_checkpoint, random_weights

CASE_NAMES = list(CASES)


# The parameter of a layer beside the name of its weight in a checkpoint.
PLACES = {
    "w_input_layernorm": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "w_post_attention_layernorm": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
}


def weights_of(b, case) -> dict:
    """The weights of a case's layer 0, by parameter name."""
    checkpoint = random_checkpoint(b, case)
    return {ours: checkpoint.weights[f"model.layers.0.{theirs}.weight"] for ours, theirs in PLACES.items()}


def layer_of(b, case, silent: tuple[str, ...] = ()):
    """Layer 0 of a case. `silent` weights are all zeros, so that their part answers 0."""
    config, weights = case.config, weights_of(b, case)
    for name in silent:
        weights[name] = weights[name] * 0
    return b.Qwen3TransformerBlock(
        num_attention_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        hidden_size=config.hidden_size,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        rms_norm_eps=config.rms_norm_eps,
        max_seq_len=config.max_position_embeddings,
        theta=config.rope_theta,
        **weights,
    )


def model_of(b, name: str, dtype: str = "float32"):
    return b.Qwen3ModelWeek1(random_checkpoint(b, CASES[name], dtype))


def logits_of(b, model, ids: np.ndarray) -> np.ndarray:
    return b.numpy(model(b.array(ids)))


@pytest.mark.task("1.5.1")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ids", [[4], [0, 10, 0], [[1, 2, 3], [10, 0, 9]]])
def test_embedding_picks_rows(b, rng, ids, dtype):
    """ids of any shape (…) become (…, E): row `id` of the table, the very numbers, in the table's type."""
    weight = b.array(rng.normal(size=(11, 6)), dtype)
    out = b.Embedding(11, 6, weight)(b.array(ids))
    assert out.dtype == weight.dtype, "the rows must have the type of the table"
    expected = b.numpy(weight)[np.array(ids)]
    assert_close(b.numpy(out), expected, atol=0, rtol=0, idea="id i becomes row i of the table, unchanged")


@pytest.mark.task("1.5.2")
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("V", [11, 6])
def test_as_linear_scores_every_token(b, rng, V, batch):
    """as_linear(x) is x @ table.T, (…, E) to (…, V); also when V equals E and a forgotten transpose would fit."""
    weight, x = rng.normal(size=(V, 6)), rng.normal(size=(*batch, 6))
    actual = b.numpy(b.Embedding(V, 6, b.array(weight)).as_linear(b.array(x)))
    idea = "logit v is the dot product of x with row v, and nothing else: no softmax, no scale, no second transpose"
    assert_close(actual, x @ weight.T, idea=idea)


@pytest.mark.task("1.5.2")
def test_as_linear_keeps_the_type(b, rng):
    """bf16 in and a bf16 table give bf16 logits."""
    x = b.array(rng.normal(size=(2, 6)), "bfloat16")
    out = b.Embedding(11, 6, b.array(rng.normal(size=(11, 6)), "bfloat16")).as_linear(x)
    assert out.dtype == x.dtype, "the logits must have the type of x"


@pytest.mark.task("1.5.3")
@pytest.mark.parametrize("name", CASE_NAMES)
def test_block_adds_to_the_stream(b, name):
    """Where attention and the MLP answer 0, the layer hands the stream on untouched: nothing normalises it."""
    x = golden(name)["x"]
    block = layer_of(b, CASES[name], silent=("wo", "w_down"))
    idea = "x + attention(norm(x)), then x + mlp(norm(x)): what is added to must be the stream, not a normed copy"
    assert_close(b.numpy(block(b.array(x), mask="causal")), x, atol=0, rtol=0, idea=idea)


@pytest.mark.task("1.5.3")
@pytest.mark.parametrize("name", CASE_NAMES)
def test_block_norms_before_attention(b, name):
    """With a silent MLP the layer is x + attention(input_layernorm(x)); both with the layer's own eps."""
    config, weights, x = CASES[name].config, weights_of(b, CASES[name]), b.array(golden(name)["x"])
    norm = b.RMSNorm(config.hidden_size, weights["w_input_layernorm"], config.rms_norm_eps)
    attention = b.Qwen3MultiHeadAttention(
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        *(weights[name] for name in ("wq", "wk", "wv", "wo", "q_norm", "k_norm")),
        config.max_position_embeddings,
        config.rope_theta,
        config.rms_norm_eps,
    )
    expected = b.numpy(x + attention(norm(x), "causal"))
    actual = b.numpy(layer_of(b, CASES[name], silent=("w_down",))(x, mask="causal"))
    idea = "attention reads input_layernorm(x) and gets the mask; its answer is added to x"
    assert_close(actual, expected, atol=1e-4, idea=idea)


@pytest.mark.task("1.5.3")
@pytest.mark.parametrize("name", CASE_NAMES)
def test_block_norms_before_the_mlp(b, name):
    """With a silent attention the layer is x + mlp(post_attention_layernorm(x))."""
    config, weights, x = CASES[name].config, weights_of(b, CASES[name]), b.array(golden(name)["x"])
    norm = b.RMSNorm(config.hidden_size, weights["w_post_attention_layernorm"], config.rms_norm_eps)
    matrices = (weights[name] for name in ("w_gate", "w_up", "w_down"))
    expected = b.numpy(x + b.Qwen3MLP(config.hidden_size, config.intermediate_size, *matrices)(norm(x)))
    actual = b.numpy(layer_of(b, CASES[name], silent=("wo",))(x, mask="causal"))
    idea = "the MLP reads post_attention_layernorm(x), the second norm; its answer is added to x"
    assert_close(actual, expected, atol=1e-4, idea=idea)


@pytest.mark.task("1.5.3")
@pytest.mark.parametrize("name", CASE_NAMES)
def test_block_equals_transformers(b, name):
    """The whole layer equals transformers' Qwen3DecoderLayer: the MLP reads the stream that attention has added to."""
    stored = golden(name)
    actual = layer_of(b, CASES[name])(b.array(stored["x"]), mask="causal")
    idea = "first attention, then the MLP on the stream that attention has added to"
    assert_close(b.numpy(actual), stored["block"], atol=1e-4, idea=idea)


@pytest.mark.task("1.5.3")
def test_block_leaves_its_input_alone(b):
    """The stream before a layer is still there after it: whoever holds it does not expect it to change."""
    x = golden("tied-1")["x"]
    array = b.array(x)
    b.numpy(layer_of(b, CASES["tied-1"])(array, mask="causal"))
    assert_close(
        b.numpy(array), x, idea="the layer wrote into its input: write x = x + …, for x += … changes x itself"
    )


@pytest.mark.task("1.5.3")
def test_block_takes_any_mask(b):
    """No mask, "causal", and the causal mask as an array: the layer passes on what it was given."""
    case, stored = CASES["untied-3"], golden("untied-3")
    block, x = layer_of(b, case), b.array(stored["x"])
    mask = b.array(np.triu(np.full((case.tokens, case.tokens), -np.inf), 1))
    idea = "the mask that the layer is given must reach attention"
    assert_close(b.numpy(block(x, mask)), stored["block"], atol=1e-4, idea=idea)
    unmasked = b.numpy(block(x))
    assert np.abs(unmasked[:, 0] - stored["block"][:, 0]).max() > 1e-2, "without a mask token 0 sees them all"


@pytest.mark.task("1.5.4")
@pytest.mark.parametrize("name", CASE_NAMES)
def test_model_never_sees_a_later_token(b, name):
    """Another last token changes the last row of logits and no earlier one."""
    stored, model = golden(name), model_of(b, name)
    changed = stored["inputs"].copy()
    changed[:, -1] = (changed[:, -1] + 1) % CASES[name].config.vocab_size
    logits, others = logits_of(b, model, stored["inputs"]), logits_of(b, model, changed)
    idea = "a token saw one that comes later: every layer needs the causal mask"
    assert_close(others[:, :-1], logits[:, :-1], idea=idea)
    assert np.abs(others[:, -1] - logits[:, -1]).max() > 1e-2, "the last logits must depend on the last token"


@pytest.mark.task("1.5.4")
def test_model_rows_are_independent(b):
    """A row's logits are those of the row run alone: rows share a batch and nothing else."""
    inputs, model = golden("untied-3")["inputs"], model_of(b, "untied-3")
    alone = np.concatenate([logits_of(b, model, row[None]) for row in inputs])
    idea = "the rows of a batch must not see each other"
    assert_close(logits_of(b, model, inputs), alone, idea=idea)


@pytest.mark.task("1.5.4")
@pytest.mark.parametrize("name", CASE_NAMES)
def test_model_around_its_layers(b, name):
    """With layers that add nothing, the logits are head · norm(embedding(ids)): no scale, one last norm, one head."""
    case, checkpoint = CASES[name], random_checkpoint(b, CASES[name])
    for weight in checkpoint.weights:
        if weight.endswith(("o_proj.weight", "down_proj.weight")):
            checkpoint.weights[weight] = checkpoint.weights[weight] * 0
    weights, ids = random_weights(case), golden(name)["inputs"]
    x = weights["model.embed_tokens.weight"][ids].astype(np.float64)
    x = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + case.config.rms_norm_eps)
    tied = case.config.tie_word_embeddings
    head = weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
    expected = x * weights["model.norm.weight"] @ head.T
    which = "the embedding table" if tied else "lm_head and not the embedding"
    idea = f"around the layers: rows of the table unscaled, the last norm once, then the head, here {which}"
    assert_close(logits_of(b, b.Qwen3ModelWeek1(checkpoint), ids), expected, atol=1e-4, idea=idea)


@pytest.mark.task("1.5.4")
@pytest.mark.parametrize("name", CASE_NAMES)
def test_model_equals_transformers(b, name):
    """Logits (B, L, V) equal transformers' Qwen3: 1, 3 and 8 query heads per key head, tied and untied head."""
    stored = golden(name)
    actual = logits_of(b, model_of(b, name), stored["inputs"])
    idea = "all layers in order, each on what the one before it left, each with the causal mask"
    assert_close(actual, stored["logits"], atol=1e-4, idea=idea)


@pytest.mark.task("1.5.4")
@pytest.mark.parametrize("L", [1, 3, 31])
def test_model_takes_any_length(b, rng, L):
    """The logits of the first L tokens are the first L rows for a longer text, L = 1 included."""
    ids, model = rng.integers(0, 67, size=(2, 32)), model_of(b, "tied-8")
    idea = "the first logits must not depend on how long the text is"
    assert_close(logits_of(b, model, ids[:, :L]), logits_of(b, model, ids)[:, :L], idea=idea)


@pytest.mark.task("1.5.4")
@pytest.mark.parametrize("name", ["tied-1", "untied-3"])
def test_model_in_bf16_stays_bf16(b, name):
    """bf16 weights give bf16 logits, near the float32 ones: no layer widens the stream on the way."""
    stored, model = golden(name), model_of(b, name, "bfloat16")
    logits = model(b.array(stored["inputs"]))
    assert logits.dtype == b.dtype("bfloat16"), f"bf16 weights gave {logits.dtype}: the stream was widened"
    assert_close(b.numpy(logits), stored["logits"], atol=0.15, idea="bf16 logits are near the float32 ones")

"""transformers' Qwen3 as the oracle: the stored goldens are what it computes, and our model computes the same."""

import json
import runpy
from functools import cache

import numpy as np
import pytest
import torch

from support.close import assert_close
from support.goldens import FOLDER, MIXTURES, golden
from tiny_llm_course.grading.small_models import CASES, random_checkpoint
from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.machine.repo import MODELS, ROOT
from tiny_llm_engine.models.tokenizer import load_tokenizer

SHIPPED = MODELS / "tiny-qwen3"
NAMES = ["maple", "cedar", "birch", "willow", "aspen", "alder", "hazel", "rowan", "spruce", "larch"]
LOOK_UP = "\n".join(f"{name} {417 + 31 * i}" for i, name in enumerate(NAMES)) + "\nWhat is willow?"


@cache
def make_goldens() -> dict:
    """The module. It imports transformers, which takes seconds: not when tests are collected."""
    return runpy.run_path(str(ROOT / "tests_refsol" / "make_goldens.py"))


@pytest.mark.parametrize("name", [*CASES, *MIXTURES])
def test_stored_goldens_are_what_transformers_computes(name):
    case = CASES.get(name) or MIXTURES[name]
    compute = make_goldens()["compute" if name in CASES else "compute_mixture"]
    stored, fresh = golden(name), compute(case)
    assert stored.keys() == fresh.keys()
    for key, array in fresh.items():
        assert_close(
            stored[key], array, idea=f"{name}.npz: {key} is stale; run `{make_goldens()['COMMAND']}`"
        )


def test_goldens_have_a_provenance():
    provenance = json.loads((FOLDER / "provenance.json").read_text(encoding="utf-8"))
    assert provenance.keys() == make_goldens()["provenance"]().keys()
    assert provenance["versions"].keys() == {"transformers", "torch", "numpy"}
    assert provenance["cases"] == make_goldens()["provenance"]()["cases"], "the cases have changed since"
    now = make_goldens()["provenance"]()
    assert provenance["mixtures"] == now["mixtures"], "the mixtures have changed since"
    assert {path.stem for path in FOLDER.glob("*.npz")} == CASES.keys() | MIXTURES.keys()


def test_goldens_are_small():
    """They are read by every clone; weights come from a seed and are not stored."""
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 300_000


def test_cases_leave_no_room_for_a_default():
    """1, 3 and 8 query heads per key head, both kinds of head, odd lengths, and no size that equals another by luck."""
    configs = [case.config for case in CASES.values()]
    assert {c.num_attention_heads // c.num_key_value_heads for c in configs} == {1, 3, 8}
    assert {c.tie_word_embeddings for c in configs} == {True, False}
    assert all(c.num_attention_heads * c.head_dim != c.hidden_size for c in configs)
    assert all(c.num_hidden_layers > 1 and c.rms_norm_eps > 1e-4 for c in configs)
    assert all(case.tokens % 2 for case in CASES.values())


@pytest.mark.parametrize("question", ["What is chunked prefill?", LOOK_UP], ids=["explain", "look-up"])
def test_model_equals_transformers_on_the_shipped_model(b, question):
    """The logits that the answer begins with. Its look-up heads have scores so large that on rows of numbers, which
    nobody can predict, transformers in float32 is itself up to 7e-4 away from transformers in float64."""
    if not (SHIPPED / "config.json").exists():
        pytest.fail(f"{SHIPPED} is missing: `pdm run train-tiny-model` makes it", pytrace=False)
    transformers = make_goldens()["transformers"]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    tokenizer = load_tokenizer(SHIPPED)
    chat = [{"role": "user", "content": question}]
    ids = np.array([tokenizer.encode(tokenizer.apply_chat_template(chat, add_generation_prompt=True))])
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
    checkpoint = load_checkpoint(SHIPPED, b.name, b.device, "float32")
    actual = b.numpy(b.Qwen3ModelWeek1(checkpoint)(b.array(ids)))
    idea = "the shipped model answers differently in transformers"
    assert_close(actual[:, -1], expected[:, -1], atol=1e-4, rtol=0, idea=idea)
    assert_close(actual, expected, atol=1e-3, rtol=0, idea=idea)


def test_the_model_uses_the_weights_where_they_are(b):
    """One copy on the device: the model keeps the checkpoint's own arrays, and one pair of RoPE tables."""
    checkpoint = random_checkpoint(b, CASES["untied-3"])
    model = b.Qwen3ModelWeek1(checkpoint)
    assert model.embedding.weight is checkpoint.weights["model.embed_tokens.weight"]
    assert model.w_lm_head is checkpoint.weights["lm_head.weight"]
    assert model.norm.weight is checkpoint.weights["model.norm.weight"]
    for index, layer in enumerate(model.layers):
        assert layer.mlp.w_down is checkpoint.weights[f"model.layers.{index}.mlp.down_proj.weight"]
        assert layer.self_attn.wq is checkpoint.weights[f"model.layers.{index}.self_attn.q_proj.weight"]
        assert layer.self_attn.rope is model.layers[0].self_attn.rope

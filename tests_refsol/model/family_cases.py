"""Small models of every family with random weights, made by transformers, which is the oracle as well.

`pdm run python tests_refsol/model/family_cases.py` prints a table: how far the reference's logits are from
transformers'.
"""

import tempfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers

from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_extensions.make_loop import make_loop

COMMAND = "pdm run python tests_refsol/model/family_cases.py"
PROMPT = 23  # tokens, more than any window below
PIECES = (9, 5, *[1] * 9)  # the same prompt in pieces: without a past, with one, then one by one
# Lengths of a batch's prompts, tokens of each answer, slots.
PROMPTS, ANSWER, SLOTS = (17, 3, 11, 23, 1), 6, 3
LONGEST = 96


@dataclass(frozen=True)
class Case:
    """A shape of a family.

    Args:
        family: the beginning of transformers' class names.
        heads: H, Hkv and D; D is given in config.json unless `silent`.
        rope: `rope_parameters`.
        tied: whether the head is the embedding.
        silent: config.json has no head_dim, so that it is E / H.
        fields: others of config.json.
    """

    family: str
    heads: tuple[int, int, int]
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 500.0})
    tied: bool = False
    silent: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


LINEAR = {"rope_type": "linear", "rope_theta": 900.0, "factor": 3.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 700.0, "factor": 2.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "original_max_position_embeddings": 40}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 24}
YARN_ALL = YARN | {"beta_fast": 6.0, "beta_slow": 2.0, "truncate": False}
YARN_ALL |= {"mscale": 1.3, "mscale_all_dim": 0.4}
SLIDING = "sliding_attention"
SLIDES = {"use_sliding_window": True}
EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 20}
SOME_SLIDE = SLIDES | {"sliding_window": 8, "layer_types": [SLIDING, "full_attention", SLIDING]}
THREE_OF_4 = {"num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 7}
ONE_OF_3 = {"num_local_experts": 3, "num_experts_per_tok": 1}
NORMED = EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [1]}
BIASED = EXPERTS | SLIDES | {"sliding_window": 5, "attention_bias": True}
# E is 36 in all: H · D is seldom E. Windows of 1 to 16 tokens are shorter than the prompt.
CASES = {
    "qwen3-gqa-tied": Case("Qwen3", (6, 2, 10), tied=True),
    "qwen3-mha-bias": Case("Qwen3", (3, 3, 8), YARN, fields={"attention_bias": True}),
    "qwen3-window": Case("Qwen3", (4, 1, 6), fields=SLIDES | {"sliding_window": 5, "max_window_layers": 1}),
    "qwen3-types": Case("Qwen3", (4, 2, 6), LLAMA3, tied=True, fields=SOME_SLIDE),
    "qwen2-gqa-tied": Case("Qwen2", (6, 2, 6), tied=True, silent=True),
    "qwen2-mha": Case("Qwen2", (3, 3, 12), LINEAR, silent=True),
    "qwen2-window": Case(
        "Qwen2", (6, 3, 8), YARN, fields=SLIDES | {"sliding_window": 4, "max_window_layers": 2}
    ),
    "qwen2-dynamic": Case("Qwen2", (6, 1, 6), DYNAMIC, silent=True),
    "llama2-mha": Case("Llama", (6, 6, 6), silent=True),
    "llama3-gqa-tied": Case("Llama", (6, 2, 16), LLAMA3, tied=True),
    "llama-biases": Case("Llama", (4, 2, 10), LINEAR, fields={"attention_bias": True, "mlp_bias": True}),
    "llama-yarn": Case("Llama", (4, 1, 14), YARN_ALL),
    "llama-yarn-factor": Case("Llama", (3, 1, 12), YARN | {"attention_factor": 1.4}, silent=True),
    "llama-dynamic": Case("Llama", (6, 3, 8), DYNAMIC),
    "mistral-window": Case("Mistral", (6, 2, 6), silent=True, fields={"sliding_window": 7}),
    "mistral-mqa-tied": Case("Mistral", (4, 1, 14), LINEAR, tied=True, fields={"sliding_window": 16}),
    "mistral-no-window": Case("Mistral", (6, 6, 8), YARN, fields={"sliding_window": None}),
    "mixtral-gqa": Case("Mixtral", (6, 2, 10), fields={"num_local_experts": 5}),
    "mixtral-window-tied": Case("Mixtral", (6, 6, 6), LINEAR, tied=True, silent=True, fields=THREE_OF_4),
    "mixtral-yarn": Case("Mixtral", (4, 1, 14), YARN, fields=ONE_OF_3),
    "qwen3-moe-gqa-tied": Case("Qwen3Moe", (6, 2, 10), tied=True, fields=NORMED),
    "qwen3-moe-mha-window": Case("Qwen3Moe", (3, 3, 8), LLAMA3, fields=BIASED),
    "qwen3-moe-step": Case("Qwen3Moe", (4, 1, 6), DYNAMIC, fields=EXPERTS | {"decoder_sparse_step": 2}),
    "mistral-itself": Case("Mistral", (4, 2, 10), DYNAMIC, fields={"sliding_window": 1}),
}
SIZES = {"vocab_size": 61, "hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 3}
SIZES |= {"rms_norm_eps": 3e-3, "attn_implementation": "eager", "bos_token_id": 0, "eos_token_id": 1}


def oracle(case: Case, longest: int = LONGEST) -> transformers.PreTrainedModel:
    """transformers' model of a case, in float32; its weights keep logits and attention scores near 1."""
    H, Hkv, D = case.heads
    heads = {"num_attention_heads": H, "num_key_value_heads": Hkv} | ({} if case.silent else {"head_dim": D})
    options = {"max_position_embeddings": longest, "rope_parameters": dict(case.rope)}
    options |= {"tie_word_embeddings": case.tied}
    config = getattr(transformers, f"{case.family}Config")(**SIZES, **heads, **options, **case.fields)
    model = getattr(transformers, f"{case.family}ForCausalLM")(config).eval()
    torch.manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random(name, parameter.shape))
    return model


def _random(name: str, shape: torch.Size) -> torch.Tensor:
    numbers = torch.randn(shape)
    if "norm" in name:
        return 1 + 0.3 * numbers
    # Fresh biases are zeros, and a model that forgets zeros is right.
    return 0.5 * numbers if name.endswith("bias") else numbers / shape[1] ** 0.5


@torch.no_grad()
def logits(model: transformers.PreTrainedModel, ids: list[int]) -> np.ndarray:
    """(L, V): transformers' logits of one text, computed whole."""
    return model(torch.tensor([ids])).logits[0].numpy()


def prompt(length: int, seed: int = 5) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, size=length).tolist()


def prefilled(b: Port, model: Any, ids: list[int]) -> np.ndarray:
    """(L, V): ours, the whole text in one step."""
    return b.numpy(model(b.array([ids]), 0, model.create_kv_cache()))[0]


def in_pieces(b: Port, model: Any, ids: list[int], pieces: tuple[int, ...] = PIECES) -> np.ndarray:
    """(L, V): ours, piece after piece behind what the caches hold."""
    cache, found, start = model.create_kv_cache(), [], 0
    for length in pieces:
        piece = b.array([ids[start : start + length]])
        found.append(b.numpy(model(piece, start, cache))[0])
        start += length
    return np.concatenate(found)


class NoText:
    """A tokenizer for ids that stand for nothing: no end, no text."""

    eos_token_ids = frozenset()

    def detokenizer(self):
        return self

    def add(self, token: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def in_a_batch(b: Port, s: Any, model: Any) -> list[tuple[list[int], list[np.ndarray]]]:
    """Prompts of mixed lengths through `batch_generate`: of each the whole text, and the logits behind its tokens."""
    rows, found = [], {}
    runner = b.runner(model, on_logits=lambda slots, logits: rows.extend(logits))

    def listen(event) -> None:
        # A step's logits come in the order of its rows, and so do the events of its tokens.
        if event.kind == "token":
            found.setdefault(event.request.prompt_idx, []).append(rows.pop(0))

    limit = s.SamplingParams(max_tokens=ANSWER)
    texts = [prompt(length, seed=length) for length in PROMPTS]
    requests = [
        s.Request(runner, NoText(), text, prompt_idx=i, sampling=limit) for i, text in enumerate(texts)
    ]
    s.batch_generate(runner, NoText(), requests, max_seq_len=64, batch_size=SLOTS, on_event=listen)
    return [(r.prompt_tokens + r.tokens, found[r.prompt_idx]) for r in requests]


def in_hybrid_batches(b: Port, s: Any, model: Any) -> list[tuple[list[int], list[np.ndarray]]]:
    """The same prompts through Week 3's scheduler: chunks and decodes share steps, pages and a small pool."""
    rows, found = [], {}
    runner = b.packed_runner(model, 14, 4, on_logits=lambda places, logits: rows.extend(logits))

    def listen(event) -> None:
        if event.kind == "token":
            found.setdefault(event.request.request_id, []).append(rows.pop(0))

    options = {"max_num_batched_tokens": 9, "max_num_seqs": SLOTS, "on_event": listen}
    loop = make_loop(s, "hybrid", runner, s.BlockAllocator(14, 4), **options)
    texts = [prompt(length, seed=length) for length in PROMPTS]
    limits = {"sampling": s.SamplingParams(max_tokens=ANSWER), "max_seq_len": 64}
    made = [s.Sequence(text, NoText(), request_id=i, **limits) for i, text in enumerate(texts)]
    for one in made:
        loop.add(one)
    while loop.has_work_remaining():
        loop.step()
    return [(one.known_tokens, found[one.request_id]) for one in made]


def difference(b: Port, s: Any, model: Any, theirs: transformers.PreTrainedModel) -> dict[str, float]:
    """How far logits are from transformers' at most, by the way in which they were computed."""
    ids = prompt(PROMPT)
    expected = logits(theirs, ids)
    batched = 0.0
    for text, found in in_a_batch(b, s, model):
        behind = logits(theirs, text)[len(text) - len(found) - 1 : -1]
        batched = max(batched, np.abs(np.array(found) - behind).max())
    return {
        "prefill": float(np.abs(prefilled(b, model, ids) - expected).max()),
        "pieces": float(np.abs(in_pieces(b, model, ids) - expected).max()),
        "batch": float(batched),
        "size": float(np.abs(expected).max()),
    }


def main() -> None:
    """One line for each shape and port, then the largest difference of each family."""
    transformers.utils.logging.disable_progress_bar()
    largest = {}
    print(f"{'shape':20} {'port':6} {'prefill':>8} {'pieces':>8} {'batch':>8} {'largest logit':>14}")
    s = resolve_serving("tiny_llm_ref")
    for name, case in CASES.items():
        theirs = oracle(case)
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            for port in installed_backends():
                b = Port("tiny_llm_ref", port, "cpu")
                checkpoint = load_checkpoint(folder, port, "cpu", "float32")
                found = difference(b, s, b.Qwen3ModelWeek2(checkpoint, make_mlp=b.mlp_of), theirs)
                size = found.pop("size")
                columns = " ".join(f"{x:8.1e}" for x in found.values())
                print(f"{name:20} {port:6} {columns} {size:14.2f}")
                key = case.family, port
                largest[key] = max(largest.get(key, 0.0), *found.values())
    print()
    for (family, port), value in largest.items():
        print(f"{family:20} {port:6} largest difference {value:.1e}")


if __name__ == "__main__":
    main()

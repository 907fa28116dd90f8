"""The vocabulary in the header of a GGUF file as a BPE of the library `tokenizers`, without added tokens.

Byte-level BPE has merges, and patterns by which a text is split. SentencePiece has a score per token: of all pairs
that are a token the one with the best score is merged first, which is BPE too.

llama.cpp decides which ids are right (`src/llama-vocab.cpp` and `src/unicode.cpp` of ggml-org/llama.cpp). Known to be
different here:

- characters that came with Unicode 16;
- of tokens of SentencePiece with equal scores the one with the smaller id is merged first, there the left pair;
- a word beside a byte that a `llama-bpe` vocabulary lacks (Llama 3's lacks none).

transformers splits SmolLM's texts as GPT-2's, which is different where several spaces are before a digit.
"""

import math
import re
from collections.abc import Mapping

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tiny_llm_engine.models.files import Json, require
from tiny_llm_engine.models.tokenization import BYTE_OF_CHARACTER

GGML = "tokenizer.ggml."
# A text is split by the first pattern, each part by the next one; no token crosses a split.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "smollm": [r"\p{N}", GPT2],
    "qwen2": [LLAMA3.replace("{1,3}", "")],
    "llama-bpe": [LLAMA3],
    "gpt-2": [GPT2],
    "default": [r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9]{3}"],
}
SPLITS["deepseek-r1-qwen"] = SPLITS["qwen2"]


def gguf_bpe(fields: Json, tokens: dict[str, int]) -> Tokenizer:
    """The tokenizer of a header, byte-level ("gpt2") or SentencePiece ("llama").

    Args:
        tokens: the id of each token.

    Raises:
        CheckpointError: the header has another pre-tokenizer, or contradicts itself.
    """
    return _byte_level(fields, tokens) if fields[GGML + "model"] == "gpt2" else _pieces(fields, tokens)


def listed(fields: Json, name: str, types: set[type], wanted: str) -> list:
    """A list of the header whose entries are of these types."""
    values = fields.get(GGML + name)
    require(GGML + name, values, isinstance(values, list) and {*map(type, values)} <= types, wanted)
    return values  # type: ignore[return-value]


def flag(fields: Json, name: str, default: bool) -> bool:
    """A bool of the header."""
    value = fields.get(GGML + name, default)
    require(GGML + name, value, isinstance(value, bool), "a bool")
    return value


def _byte_level(fields: Json, tokens: dict[str, int]) -> Tokenizer:
    pre = fields.get(GGML + "pre", "default")
    require(GGML + "pre", pre, isinstance(pre, str) and pre in SPLITS, " or ".join(SPLITS))
    # Llama 3 takes a word that is a token even where no merges lead to it.
    bpe = Tokenizer(models.BPE(tokens, _merges(fields, tokens), ignore_merges=pre == "llama-bpe"))
    steps: list = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[pre]]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    unknown = "".join(character for character in BYTE_OF_CHARACTER if character not in tokens)
    if unknown:  # the library leaves them out too, but then merges their neighbours
        steps.append(pre_tokenizers.Split(Regex(f"[{re.escape(unknown)}]"), "removed"))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(steps)
    bpe.decoder = decoders.ByteLevel()
    return bpe


def _merges(fields: Json, tokens: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs that become one token, in the order in which they are merged."""
    pairs = {}  # of two equal pairs the first counts
    for index, merge in enumerate(listed(fields, "merges", {str}, "a list of texts")):
        left, _, right = merge.partition(" ")
        if left not in tokens or right not in tokens or left + right not in tokens:
            require(f"{GGML}merges[{index}]", merge, False, "two tokens that together are a third")
        pairs[left, right] = None
    return list(pairs)


def _pieces(fields: Json, tokens: dict[str, int]) -> Tokenizer:
    """SentencePiece; a character without a token is written as its bytes."""
    absent = [name for byte in range(256) if (name := f"<0x{byte:02X}>") not in tokens]
    require(GGML + "tokens", absent, not absent, "complete: these bytes are absent")
    has_prefix = flag(fields, "add_space_prefix", True)
    bpe = Tokenizer(
        models.BPE(tokens, _merges_by_score(tokens, _scores(fields, len(tokens))), byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", "▁")
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if has_prefix else spaces
    steps: list = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    bpe.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    return bpe


def _scores(fields: Json, count: int) -> list[float]:
    wanted = f"a list of {count} finite numbers, one per token"
    scores = listed(fields, "scores", {float, int}, wanted)
    require(GGML + "scores", scores, len(scores) == count and all(map(math.isfinite, scores)), wanted)
    # Some converters wrote one number everywhere.
    require(GGML + "scores", scores, len({*scores}) > 1, "a list of scores that rank the tokens")
    return scores


def _merges_by_score(tokens: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """All pairs of tokens that together are a token, those of the best token first."""
    merges = []
    for text in sorted(tokens, key=lambda text: (-scores[tokens[text]], tokens[text])):
        splits = ((text[:at], text[at:]) for at in range(1, len(text)))
        merges += [pair for pair in splits if pair[0] in tokens and pair[1] in tokens]
    return merges

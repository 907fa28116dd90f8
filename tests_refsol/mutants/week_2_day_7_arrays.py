"""Wrong solutions of Week 2 Day 7: the mask, and what logits, keys and values say of a chunk."""

from authors.mutants import Mutant

MASK_KEYS = "S = int(chunk_start) + chunk_size if total_length is None else total_length"
MLX_QUERIES = "queries = chunk_start + mx.arange(chunk_size)[:, None]"
TORCH_QUERIES = "queries = chunk_start + torch.arange(chunk_size, device=device)[:, None]"
MLX_MASK = "mx.where(mx.arange(S) <= queries, 0.0, -mx.inf).astype(dtype)"
TORCH_MASK = "torch.where(keys <= queries, 0.0, -torch.inf).to(dtype)"


def _chunk_queries(idea: str, value: str) -> Mutant:
    """Another position for every query; `value` has `{arange}` for the queries' numbers, (L, 1)."""
    mlx, torch = ("mx.arange(chunk_size)", "torch.arange(chunk_size, device=device)")
    return Mutant(
        "2.7.6",
        idea,
        "chunked_attention_mask.py",
        mlx=(MLX_QUERIES, "queries = " + value.format(arange=f"{mlx}[:, None]")),
        torch=(TORCH_QUERIES, "queries = " + value.format(arange=f"{torch}[:, None]")),
    )


def _chunk_mask(idea: str, value: str) -> Mutant:
    """Another mask; `value` has `{lib}`, `{keys}` for (S,), and `{cast}` for the name of the cast."""
    mlx = value.format(lib="mx", keys="mx.arange(S)", cast="astype")
    torch = value.format(lib="torch", keys="keys", cast="to")
    return Mutant(
        "2.7.6",
        idea,
        "chunked_attention_mask.py",
        mlx=(MLX_MASK, mlx),
        torch=(TORCH_MASK, torch),
    )


def _array_chunk(idea: str, old: str, new: str) -> Mutant:
    return Mutant(
        "2.7.2",
        idea,
        "chunked_prefill/request.py",
        serving=(old, new),
        inside="Request.try_prefill",
    )


MUTANTS = [
    _chunk_queries("top left: every chunk as if it were the first", "{arange}"),
    _chunk_queries(
        "bottom right: the last query sees the last key, although nothing was written there",
        "S - chunk_size + {arange}",
    ),
    _chunk_queries(
        "one too far: a token sees the one behind it",
        "chunk_start + 1 + {arange}",
    ),
    _chunk_queries(
        "the chunk's first token sees the past alone, and not itself",
        "chunk_start + {arange} - 1 * ({arange} == 0)",
    ),
    _chunk_queries(
        "every token of the chunk sees the whole chunk",
        "chunk_start + chunk_size - 1 + 0 * {arange}",
    ),
    _chunk_mask(
        "strict: no token sees itself",
        "{lib}.where({keys} < queries, 0.0, -{lib}.inf).{cast}(dtype)",
    ),
    _chunk_mask("no mask: all zeros", "{lib}.where({keys} <= queries, 0.0, 0.0).{cast}(dtype)"),
    _chunk_mask(
        "forgets the past: a chunk sees only itself",
        "{lib}.where(({keys} <= queries) & ({keys} >= chunk_start), 0.0, -{lib}.inf).{cast}(dtype)",
    ),
    _chunk_mask(
        "the other way round: 0 where a key is hidden",
        "{lib}.where({keys} <= queries, -{lib}.inf, 0.0).{cast}(dtype)",
    ),
    _chunk_mask("boolean instead of additive", "{keys} <= queries"),
    _chunk_mask(
        "ones and zeros, to multiply with",
        "({keys} <= queries).{cast}(dtype)",
    ),
    _chunk_mask(
        "hides with a number that scores can reach",
        "{lib}.where({keys} <= queries, 0.0, -10.0).{cast}(dtype)",
    ),
    _chunk_mask(
        "always float32",
        "{lib}.where({keys} <= queries, 0.0, -{lib}.inf).{cast}({lib}.float32)",
    ),
    _chunk_mask(
        "keys in the rows and queries in the columns",
        "{lib}.where({keys} <= queries, 0.0, -{lib}.inf).{cast}(dtype).T",
    ),
    _chunk_mask(
        "shows the unused tail: only the chunk's own tokens are compared",
        "{lib}.where(({keys} <= queries) | ({keys} >= chunk_start + chunk_size), 0.0, -{lib}.inf).{cast}(dtype)",
    ),
    _chunk_mask(
        "positions in the mask's type: bf16 has no 257, float16 no 2,049",
        "{lib}.where({keys}.{cast}(dtype) <= queries.{cast}(dtype), 0.0, -{lib}.inf).{cast}(dtype)",
    ),
    _chunk_mask(
        "the queries' positions in float16, exact up to 2,048",
        "{lib}.where({keys} <= queries.{cast}({lib}.float16), 0.0, -{lib}.inf).{cast}(dtype)",
    ),
    _chunk_mask(
        "a loop over the tokens of the chunk, a row of the mask each",
        "{lib}.stack([{lib}.where({keys} <= query, 0.0, -{lib}.inf) for query in queries]).{cast}(dtype)",
    ),
    _chunk_mask(
        "a loop over the keys, a column of the mask each",
        "{lib}.concatenate([{lib}.where(queries >= key, 0.0, -{lib}.inf) for key in range(S)], -1).{cast}(dtype)",
    ),
    _chunk_queries(
        "reads the start on the host, wherever it is",
        "int(chunk_start) + {arange}",
    ),
    Mutant(
        "2.7.6",
        "checks what the array holds, which is read for it",
        "chunked_attention_mask.py",
        both=(
            MASK_KEYS,
            MASK_KEYS
            + "\n    if chunk_start + chunk_size > S:\n        raise ValueError('the chunk ends behind its keys')",
        ),
    ),
    Mutant(
        "2.7.6",
        "makes the mask on the default device, wherever the scores are",
        "chunked_attention_mask.py",
        torch=(
            TORCH_QUERIES + "\n    keys = torch.arange(S, device=device)",
            TORCH_QUERIES.replace(", device=device", "") + "\n    keys = torch.arange(S)",
        ),
    ),
    Mutant(
        "2.7.6",
        "the device of the start, also where the caller names another",
        "chunked_attention_mask.py",
        torch=(
            TORCH_QUERIES,
            'device = getattr(chunk_start, "device", None)\n    ' + TORCH_QUERIES,
        ),
    ),
    Mutant(
        "2.7.6",
        "ignores total_length",
        "chunked_attention_mask.py",
        both=(MASK_KEYS, "S = int(chunk_start) + chunk_size"),
    ),
    Mutant(
        "2.7.6",
        "the full square: a row for every token of the prompt",
        "chunked_attention_mask.py",
        mlx=(MLX_QUERIES, "queries = mx.arange(S)[:, None]"),
        torch=(TORCH_QUERIES, "queries = torch.arange(S, device=device)[:, None]"),
    ),
    Mutant(
        "2.7.6",
        "total_length is the length of the chunk's part, and the past comes on top",
        "chunked_attention_mask.py",
        both=(MASK_KEYS, "S = int(chunk_start) + (total_length or chunk_size)"),
    ),
    _array_chunk(
        "RoPE counts chunks and not tokens",
        "                chunk.start,\n",
        "                chunk.start // self.prefill_max_step,\n",
    ),
    _array_chunk(
        "one token off behind the first chunk",
        "self.prompt_tokens[chunk.start : chunk.stop],",
        "self.prompt_tokens[max(chunk.start - 1, 0) : chunk.stop - (chunk.start > 0)],",
    ),
    _array_chunk(
        "the whole prompt up to here, again in every chunk",
        "self.prompt_tokens[chunk.start : chunk.stop],\n                chunk.start,",
        "self.prompt_tokens[: chunk.stop],\n                0,",
    ),
]

"""Wrong solutions of Week 2 Day 7: the mask, and what logits, keys and values say of a chunk."""

from authors.mutants import Mutant

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
    return Mutant("2.7.6", idea, "chunked_attention_mask.py", mlx=(MLX_MASK, mlx), torch=(TORCH_MASK, torch))


MUTANTS = [
    _chunk_mask("always float32", "{lib}.where({keys} <= queries, 0.0, -{lib}.inf).{cast}({lib}.float32)"),
    _chunk_mask(
        "the queries' positions in float16, exact up to 2,048",
        "{lib}.where({keys} <= queries.{cast}({lib}.float16), 0.0, -{lib}.inf).{cast}(dtype)",
    ),
    _chunk_mask(
        "a loop over the tokens of the chunk, a row of the mask each",
        "{lib}.stack([{lib}.where({keys} <= query, 0.0, -{lib}.inf) for query in queries]).{cast}(dtype)",
    ),
    _chunk_queries("reads the start on the host, wherever it is", "int(chunk_start) + {arange}"),
    Mutant(
        "2.7.6",
        "the device of the start, also where the caller names another",
        "chunked_attention_mask.py",
        torch=(TORCH_QUERIES, 'device = getattr(chunk_start, "device", None)\n    ' + TORCH_QUERIES),
    ),
]

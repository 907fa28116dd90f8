"""Wrong solutions of Week 1 Day 7."""

from authors.mutants import Mutant

FILE = "sampler.py"
CATEGORICAL = "mx.random.categorical(logits, axis=-1)"
NOISE = "torch.empty_like(logits).exponential_()"
RACE = "logits - torch.log(arrival)"
# Earlier tokens count a little more, in the comparison alone.
MLX_FIRST_K = """    given, logits = logits, logits - 1e-4 * mx.arange(logits.shape[-1])
    hidden = logits < mx.min(mx.topk(logits, min(top_k, given.shape[-1]), axis=-1), axis=-1, keepdims=True)
    return mx.where(hidden, -mx.inf, given)
    largest = mx.topk(logits,"""
TORCH_FIRST_K = """    given, logits = logits, logits - 1e-4 * torch.arange(logits.shape[-1])
    hidden = logits < torch.topk(logits, min(top_k, given.shape[-1]), dim=-1).values[:, -1:]
    return torch.where(hidden, -torch.inf, given)
    largest = torch.topk(logits,"""
TOP_K = """        if top_k:
            logits = keep_top_k(logits, top_k)
"""
TOP_P = """        if top_p is not None and top_p < 1:
            logits = keep_top_p(logits, top_p)
"""

MUTANTS = [
    Mutant(
        "1.7.1",
        "takes the most probable token",
        FILE,
        mlx=(CATEGORICAL, "mx.argmax(logits, axis=-1)"),
        torch=(RACE, "logits + 0 * arrival"),
    ),
    Mutant(
        "1.7.1",
        "draws evenly from the tokens that are not hidden",
        FILE,
        mlx=(CATEGORICAL, "mx.random.categorical(mx.where(logits > -mx.inf, 0.0, logits), axis=-1)"),
        torch=(RACE, "torch.where(logits > -torch.inf, 0.0, logits) - torch.log(arrival)"),
    ),
    Mutant(
        "1.7.1",
        "the same random numbers for every row",
        FILE,
        mlx=(CATEGORICAL, "mx.argmax(logits + mx.random.gumbel(logits.shape[-1:]), axis=-1)"),
        torch=(NOISE, "torch.empty_like(logits[:1]).exponential_()"),
    ),
    Mutant(
        "1.7.1",
        "a fixed key: every call repeats the first",
        FILE,
        mlx=(CATEGORICAL, "mx.random.categorical(logits, axis=-1, key=mx.random.key(0))"),
        torch=(NOISE, "torch.empty_like(logits).exponential_(generator=torch.Generator().manual_seed(0))"),
    ),
    Mutant(
        "1.7.1",
        "races with e^logit itself, which overflows",
        FILE,
        mlx=(
            CATEGORICAL,
            "mx.argmax(mx.exp(logits) / -mx.log(mx.random.uniform(shape=logits.shape)), axis=-1)",
        ),
        torch=(RACE, "torch.exp(logits) / arrival"),
    ),
    Mutant(
        "1.7.2",
        "the threshold of row 0 for all rows",
        FILE,
        mlx=("mx.min(largest, axis=-1, keepdims=True)", "mx.min(largest[:1], axis=-1, keepdims=True)"),
        torch=("torch.amin(largest, dim=-1, keepdim=True)", "torch.amin(largest[:1], dim=-1, keepdim=True)"),
    ),
    Mutant(
        "1.7.2",
        "one threshold for the whole batch",
        FILE,
        mlx=("mx.min(largest, axis=-1, keepdims=True)", "mx.min(largest)"),
        torch=("torch.amin(largest, dim=-1, keepdim=True)", "torch.amin(largest)"),
    ),
    Mutant("1.7.2", "drops the k-th token itself", FILE, both=("where(logits < ", "where(logits <= ")),
    Mutant(
        "1.7.2",
        "hides the tokens that equal the k-th, beyond the first k",
        FILE,
        mlx=("    largest = mx.topk(logits,", MLX_FIRST_K),
        torch=("    largest = torch.topk(logits,", TORCH_FIRST_K),
    ),
    Mutant(
        "1.7.3",
        "marks sorted positions, and does not go back to the tokens' own places",
        FILE,
        mlx=("    before = mx.put_along_axis(mx.zeros_like(logits), order, before, axis=-1)\n", ""),
        torch=("    before = torch.zeros_like(logits).scatter(-1, order, before)\n", ""),
    ),
    Mutant(
        "1.7.3",
        "goes back by a gather, the permutation itself and not its inverse",
        FILE,
        mlx=(
            "mx.put_along_axis(mx.zeros_like(logits), order, before, axis=-1)",
            "mx.take_along_axis(before, order, axis=-1)",
        ),
        torch=("torch.zeros_like(logits).scatter(-1, order, before)", "torch.gather(before, -1, order)"),
    ),
    Mutant(
        "1.7.3",
        "leaves out the token that crosses the line",
        FILE,
        both=("axis=-1) - weights", "axis=-1)"),
        torch=("dim=-1) - weights", "dim=-1)"),
    ),
    Mutant(
        "1.7.3",
        "takes one token more when top_p is reached exactly",
        FILE,
        both=("before < max(top_p, 1e-38)", "before <= max(top_p, 1e-38)"),
    ),
    Mutant(
        "1.7.3",
        "softmax over the batch",
        FILE,
        mlx=("order, axis=-1), axis=-1)", "order, axis=-1), axis=0)"),
        torch=("order), axis=-1)", "order), axis=0)"),
    ),
    Mutant(
        "1.7.3",
        "the order of row 0 for all rows",
        FILE,
        mlx=(
            "mx.argsort(-logits, axis=-1)",
            "mx.broadcast_to(mx.argsort(-logits[:1], axis=-1), logits.shape)",
        ),
        torch=(
            "torch.argsort(-logits, dim=-1, stable=True)",
            "torch.argsort(-logits[:1], dim=-1, stable=True).expand_as(logits)",
        ),
    ),
    Mutant(
        "1.7.3",
        "a threshold in place of the set: every token of at least 1 - top_p",
        FILE,
        both=("before < max(top_p, 1e-38)", "softmax(logits, axis=-1) > 1 - top_p"),
    ),
    Mutant(
        "1.7.4",
        "temp 0 counts as not given, and becomes 1",
        FILE,
        both=("        if temp == 0:\n", "        if temp < 0:\n"),
    ),
    Mutant(
        "1.7.4",
        "divides by the temperature last",
        FILE,
        both=(" / temp\n" + TOP_K + TOP_P, "\n" + TOP_K + TOP_P + "        logits = logits / temp\n"),
    ),
    Mutant("1.7.4", "top-p before top-k", FILE, both=(TOP_K + TOP_P, TOP_P + TOP_K)),
    Mutant(
        "1.7.4",
        "top-k or top-p, not both",
        FILE,
        both=("        if top_p is not None and top_p < 1:", "        elif top_p is not None and top_p < 1:"),
    ),
    Mutant(
        "1.7.4",
        "takes the best token of what top-k and top-p left",
        FILE,
        mlx=("return draw(logits)", "return mx.argmax(logits, axis=-1)"),
        torch=("return draw(logits)", "return torch.argmax(logits, dim=-1)"),
    ),
    Mutant(
        "1.7.4",
        "divides in bf16",
        FILE,
        mlx=("logits.astype(mx.float32) / temp", "logits / temp"),
        torch=("logits.float() / temp", "logits / temp"),
    ),
    Mutant(
        "1.7.4",
        "divides the caller's logits in place",
        FILE,
        torch=("logits.float() / temp", "logits.float().div_(temp)"),
    ),
    Mutant("1.7.4", "forgets top-p when it is below one half", FILE, both=("top_p < 1:", "0.5 < top_p < 1:")),
]

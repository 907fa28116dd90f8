"""Wrong solutions of Week 1 Day 7."""

from authors.mutants import Mutant, wrong

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
        "one threshold for the whole batch",
        FILE,
        mlx=("mx.min(largest, axis=-1, keepdims=True)", "mx.min(largest)"),
        torch=("torch.amin(largest, dim=-1, keepdim=True)", "torch.amin(largest)"),
    ),
    Mutant(
        "1.7.2",
        "hides the tokens that equal the k-th, beyond the first k",
        FILE,
        mlx=("    largest = mx.topk(logits,", MLX_FIRST_K),
        torch=("    largest = torch.topk(logits,", TORCH_FIRST_K),
    ),
    Mutant(
        "1.7.3",
        "takes one token more when top_p is reached exactly",
        FILE,
        both=("before < max(top_p, 1e-38)", "before <= max(top_p, 1e-38)"),
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
    *wrong(
        "1.7.4",
        FILE,
        ("temp 0 counts as not given, and becomes 1", "        if temp == 0:\n", "        if temp < 0:\n"),
        (
            "divides by the temperature last",
            " / temp\n" + TOP_K + TOP_P,
            "\n" + TOP_K + TOP_P + "        logits = logits / temp\n",
        ),
        ("top-p before top-k", TOP_K + TOP_P, TOP_P + TOP_K),
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
]

"""Wrong solutions of Week 1 Day 1."""

from authors.mutants import Mutant, wrong

MUTANTS = [
    Mutant(
        "1.1.1",
        "normalises over the last axis whatever the axis is",
        "basics.py",
        mlx=("mx.sum(exps, axis=axis, keepdims=True)", "mx.sum(exps, axis=-1, keepdims=True)"),
        torch=("torch.sum(exps, dim=axis, keepdim=True)", "torch.sum(exps, dim=-1, keepdim=True)"),
    ),
    Mutant(
        "1.1.1",
        "never subtracts the maximum",
        "basics.py",
        mlx=("mx.exp(x - mx.max(x, axis=axis, keepdims=True))", "mx.exp(x)"),
        torch=("torch.exp(x - torch.amax(x, dim=axis, keepdim=True))", "torch.exp(x)"),
    ),
    Mutant(
        "1.1.1",
        "computes in float32 and forgets to come back",
        "basics.py",
        mlx=("mx.exp(x - ", "mx.exp(x.astype(mx.float32) - "),
        torch=("torch.exp(x - ", "torch.exp(x.float() - "),
    ),
    Mutant(
        "1.1.1",
        "subtracts the maximum from the caller's array",
        "basics.py",
        mlx=(
            "exps = mx.exp(x - mx.max(x, axis=axis, keepdims=True))",
            "x -= mx.max(x, axis=axis, keepdims=True)\n    exps = mx.exp(x)",
        ),
        torch=(
            "exps = torch.exp(x - torch.amax(x, dim=axis, keepdim=True))",
            "x -= torch.amax(x, dim=axis, keepdim=True)\n    exps = torch.exp(x)",
        ),
    ),
    *wrong(
        "1.1.2",
        "basics.py",
        (
            "multiplies by w and not by its transpose, when the shapes allow it",
            "out = x @ w.T",
            "out = x @ (w if w.shape[0] == w.shape[1] else w.T)",
        ),
        ("forgets the bias", "return out if bias is None else out + bias", "return out"),
    ),
    *wrong(
        "1.1.3",
        "attention.py",
        ("scales by 1/D and not by 1/√D", "1 / math.sqrt(query.shape[-1])", "1 / query.shape[-1]"),
        (
            "takes a scale of 0.0 for none given",
            "scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale",
            "scale = scale or 1 / math.sqrt(query.shape[-1])",
        ),
        ("adds the mask before the scale", "scores = scores + mask", "scores = scores + mask * scale"),
        inside="scaled_dot_product_attention_simple",
    ),
    Mutant(
        "1.1.4",
        "reads the heads as (H, L, D) without a transpose",
        "attention.py",
        inside="SimpleMultiHeadAttention.__call__",
        mlx=(
            "reshape(B, -1, self.num_heads, self.head_dim).swapaxes(1, 2)",
            "reshape(B, self.num_heads, -1, self.head_dim)",
        ),
        torch=(
            "reshape(B, -1, self.num_heads, self.head_dim).transpose(1, 2)",
            "reshape(B, self.num_heads, -1, self.head_dim)",
        ),
    ),
]

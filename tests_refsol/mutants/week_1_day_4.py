"""Wrong solutions of Week 1 Day 4."""

from authors.mutants import Mutant, wrong

MUTANTS = [
    *wrong(
        "1.4.1",
        "basics.py",
        ("always adds 1e-5, whatever eps it was made with", "mean_square + self.eps", "mean_square + 1e-5"),
        ("default eps of 1e-6", "eps: float = 1e-5", "eps: float = 1e-6"),
    ),
    Mutant(
        "1.4.1",
        "squares first and widens then, so that float16 overflows",
        "basics.py",
        mlx=("mx.square(wide)", "mx.square(x).astype(mx.float32)"),
        torch=("torch.square(wide)", "torch.square(x).float()"),
    ),
    Mutant(
        "1.4.1",
        "stays in float32",
        "basics.py",
        mlx=("normed.astype(x.dtype) * self.weight", "normed * self.weight"),
        torch=("normed.to(x.dtype) * self.weight", "normed * self.weight"),
    ),
    Mutant(
        "1.4.1",
        "divides in place, which in float32 is the caller's array",
        "basics.py",
        torch=(
            "normed = wide * torch.rsqrt(mean_square + self.eps)",
            "normed = wide\n        normed *= torch.rsqrt(mean_square + self.eps)",
        ),
    ),
    *wrong(
        "1.4.2",
        "basics.py",
        (
            "x·e^x / (1 + e^x), which is infinity / infinity at large inputs",
            "x * xp.sigmoid(x)",
            "x * xp.exp(x) / (1 + xp.exp(x))",
        ),
        (
            "x·(1 - e^-x / (1 + e^-x)), which is infinity / infinity at very negative inputs",
            "x * xp.sigmoid(x)",
            "x * (1 - xp.exp(-x) / (1 + xp.exp(-x)))",
        ),
    ),
    Mutant(
        "1.4.2",
        "stays in float32",
        "basics.py",
        mlx=("x * mx.sigmoid(x)", "x.astype(mx.float32) * mx.sigmoid(x.astype(mx.float32))"),
        torch=("x * torch.sigmoid(x)", "x.float() * torch.sigmoid(x.float())"),
    ),
    Mutant(
        "1.4.3",
        "silu on the up half",
        "qwen3_mlp.py",
        both=(
            "silu(linear(x, self.w_gate)) * linear(x, self.w_up)",
            "linear(x, self.w_gate) * silu(linear(x, self.w_up))",
        ),
    ),
]

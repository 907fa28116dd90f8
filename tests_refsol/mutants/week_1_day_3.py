"""Wrong solutions of Week 1 Day 3."""

from authors.mutants import Mutant, wrong

MUTANTS = [
    Mutant(
        "1.3.1",
        "always float32",
        "attention.py",
        mlx=("0.0, -mx.inf).astype(dtype)", "0.0, -mx.inf)"),
        torch=("0.0, -torch.inf).to(dtype)", "0.0, -torch.inf)"),
    ),
    *wrong(
        "1.3.1",
        "attention.py",
        (
            "accepts more queries than keys, and hides everything from some of them",
            "if not 0 < L <= S:",
            "if L < 1 or S < 1:",
        ),
        (
            "a loop over the queries, a row of the mask each",
            "return xp.where(keys <= queries, 0.0, -xp.inf)",
            "return xp.stack([xp.where(keys <= S - L + i, 0.0, -xp.inf) for i in range(L)])",
        ),
    ),
    Mutant(
        "1.3.1",
        "the queries' positions alone in float16, exact up to 2,048",
        "attention.py",
        mlx=("mx.arange(S - L, S)[:, None]", "mx.arange(S - L, S).astype(mx.float16)[:, None]"),
        torch=(
            "torch.arange(S - L, S, device=device)[:, None]",
            "torch.arange(S - L, S, device=device).half()[:, None]",
        ),
    ),
    Mutant(
        "1.3.2",
        "looks for NaN among the weights, which makes the host wait",
        "attention.py",
        inside="scaled_dot_product_attention_grouped",
        mlx=(
            "    weights = softmax(scores, axis=-1)",
            "    assert not mx.isnan(scores).any().item()\n    weights = softmax(scores, axis=-1)",
        ),
        torch=(
            "    weights = softmax(scores, axis=-1)",
            "    assert not torch.isnan(scores).any()\n    weights = softmax(scores, axis=-1)",
        ),
    ),
    Mutant(
        "1.3.2",
        "copies K to float32, to have float32 scores",
        "attention.py",
        mlx=(
            "query.reshape(*batch, Hkv, -1, D) @ key.swapaxes(-2, -1)",
            "query.reshape(*batch, Hkv, -1, D) @ key.astype(mx.float32).swapaxes(-2, -1)",
        ),
        torch=(
            "query.reshape(*batch, Hkv, -1, D) @ key.transpose(-2, -1)",
            "query.float().reshape(*batch, Hkv, -1, D) @ key.float().transpose(-2, -1)",
        ),
    ),
    *wrong(
        "1.3.2",
        "attention.py",
        (
            "takes a scale of 0.0 for none given",
            "scale = 1 / math.sqrt(D) if scale is None else scale",
            "scale = scale or 1 / math.sqrt(D)",
            "scaled_dot_product_attention_grouped",
        ),
        (
            "adds the mask before the scale",
            "        scores = scores + mask\n    weights",
            "        scores = scores + mask * scale\n    weights",
        ),
    ),
    Mutant(
        "1.3.2",
        "causal by name makes its own mask, and more queries than keys give NaN",
        "attention.py",
        mlx=(
            "mask = causal_mask(L, S, mx.float32)",
            "mask = mx.where(mx.arange(S) <= mx.arange(S - L, S)[:, None], 0.0, -mx.inf)",
        ),
        torch=(
            "mask = causal_mask(L, S, torch.float32, device=scores.device)",
            "mask = torch.where(torch.arange(S) <= torch.arange(S - L, S)[:, None], 0.0, -torch.inf)",
        ),
    ),
    Mutant(
        "1.3.2",
        "scales in bf16, and converts the scaled scores to float32",
        "attention.py",
        mlx=(
            "scores.reshape(*batch, H, L, S).astype(mx.float32) * scale",
            "(scores.reshape(*batch, H, L, S) * scale).astype(mx.float32)",
        ),
        torch=(
            "scores.reshape(*batch, H, L, S).float() * scale",
            "(scores.reshape(*batch, H, L, S) * scale).float()",
        ),
    ),
    *wrong(
        "1.3.3",
        "qwen3_attention.py",
        (
            "eps of another model, 1e-6, whatever rms_norm_eps is",
            "_head_norm(query, self.q_norm, self.rms_norm_eps)",
            "_head_norm(query, self.q_norm, 1e-6)",
        ),
        ("always causal, whatever the mask is", ", mask=mask\n", ', mask="causal"\n'),
    ),
]

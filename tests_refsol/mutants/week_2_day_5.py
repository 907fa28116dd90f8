"""Wrong solutions of Week 2 Day 5."""

from authors.mutants import Mutant, wrong

FILE = "flash_attention.py"

MUTANTS = [
    Mutant(
        "2.5.1",
        "scale or default: a scale of 0.0 becomes 1/√D",
        FILE,
        both=(
            "1 / math.sqrt(query.shape[-1]) if scale is None else scale",
            "scale or 1 / math.sqrt(query.shape[-1])",
        ),
        inside="fused_attention",
    ),
    Mutant(
        "2.5.1",
        "hides with -1e9 for the kernel's sake: a query that sees nothing gets the mean of what is hidden",
        FILE,
        inside="fused_attention",
        mlx=(
            'bias = "causal" if',
            'mask = None if mask is None else mx.maximum(mask, -1e9)\n    bias = "causal" if',
        ),
        torch=("bias = None if", "mask = None if mask is None else mask.clamp(min=-1e9)\n    bias = None if"),
    ),
    Mutant(
        "2.5.1",
        "forgets is_causal",
        FILE,
        inside="fused_attention",
        mlx=('bias = "causal" if is_causal else None if', "bias = None if"),
        torch=("scale, bias, is_causal)", "scale, bias)"),
    ),
    Mutant(
        "2.5.1",
        "right numbers with K and V repeated for each query head",
        FILE,
        inside="fused_attention",
        mlx=(
            "    out = mx.fast",
            "    key, value = (mx.repeat(x, query.shape[1] // x.shape[1], axis=1) for x in (key, value))\n"
            "    out = mx.fast",
        ),
        torch=(
            "    out = fused",
            "    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))\n"
            "    out = fused",
        ),
    ),
    Mutant(
        "2.5.1",
        "the wide type instead of query's: bf16 comes back as float32",
        FILE,
        inside="fused_attention",
        mlx=("out, 0)", "out.astype(mx.float32), 0)"),
        torch=("out, 0)", "out.float(), 0)"),
    ),
    Mutant(
        "2.5.2",
        "one query under is_causal: on torch it sees the first key alone",
        FILE,
        inside="flash_attention_device",
        torch=("if L == S:", "if L == S or L == 1:"),
    ),
    Mutant(
        "2.5.2",
        "a mask and is_causal together: both hide",
        FILE,
        inside="flash_attention_device",
        torch=(
            "device=query.device)\n    return fused_attention(query, key, value, scale, mask, may_hide_all=False)",
            "device=query.device)\n"
            "    return fused_attention(query, key, value, scale, mask, is_causal=mask is not None)",
        ),
    ),
    Mutant(
        "2.5.2",
        "causality only for squares: with a past it is forgotten",
        FILE,
        inside="flash_attention_device",
        mlx=("scale, is_causal=True)", "scale, is_causal=L == S)"),
        torch=("None if L == 1 else causal_mask(L, S, query.dtype, device=query.device)", "None"),
    ),
    Mutant(
        "2.5.2",
        "lets the kernel have more queries than keys",
        FILE,
        inside="flash_attention_device",
        mlx=("if L > S:", "if L > 10 * S:"),
        torch=("if L == S:", "if L >= S:"),
    ),
    Mutant(
        "2.5.2",
        "an array mask under which causality is added: hidden twice",
        FILE,
        inside="flash_attention_device",
        mlx=(
            "scale, mask, may_hide_all=may_hide_all)",
            "scale, mask, is_causal=mask is not None and query.shape[2] > 1)",
        ),
        torch=(
            "    if not isinstance(mask, str):\n"
            "        return fused_attention(query, key, value, scale, mask, may_hide_all=may_hide_all)",
            "    if not isinstance(mask, str):\n"
            "        causal = mask is not None and query.shape[2] > 1\n"
            "        return fused_attention(query, key, value, scale, mask, is_causal=causal)",
        ),
    ),
    *wrong(
        "2.5.2",
        FILE,
        ("forgets the scale on the way", "    if not isinstance", "    scale = None\n    if not isinstance"),
        (
            "a mask with one row for all queries is lost when there is one query",
            "    if not isinstance",
            "    mask = None if query.shape[2] == 1 else mask\n    if not isinstance",
        ),
        inside="flash_attention_device",
    ),
]

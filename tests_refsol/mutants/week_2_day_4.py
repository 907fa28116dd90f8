"""Wrong solutions of Week 2 Day 4."""

from authors.mutants import Mutant, wrong

FILE = "flash_attention.py"

MUTANTS = [
    *wrong(
        "2.4.1",
        FILE,
        (
            "shifts by -inf where nothing is seen: NaN",
            "xp.where(m == -xp.inf, 0, m)[..., None]",
            "m[..., None]",
        ),
        (
            "scale or default: a scale of 0.0 becomes 1/√D",
            "1 / math.sqrt(D) if scale is None else scale",
            "scale or 1 / math.sqrt(D)",
        ),
        inside="attention_statistics",
    ),
    Mutant(
        "2.4.1",
        "right numbers with K and V repeated for each query head",
        FILE,
        inside="attention_statistics",
        mlx=(
            "    scores = query.reshape",
            "    key, value = (mx.repeat(x, H // Hkv, axis=-3) for x in (key, value))\n"
            "    Hkv = H\n"
            "    scores = query.reshape",
        ),
        torch=(
            "    scores = query.reshape",
            "    key, value = (x.repeat_interleave(H // Hkv, dim=-3) for x in (key, value))\n"
            "    Hkv = H\n"
            "    scores = query.reshape",
        ),
    ),
    Mutant(
        "2.4.1",
        "statistics in the type of the inputs",
        FILE,
        inside="attention_statistics",
        mlx=("reshape(*batch, H, L, S).astype(mx.float32)", "reshape(*batch, H, L, S)"),
        torch=("reshape(*batch, H, L, S).float()", "reshape(*batch, H, L, S)"),
    ),
    *wrong(
        "2.4.2",
        FILE,
        ("forgets to rescale o", "o = o_a * shrink_a[..., None] +", "o = o_a +"),
        (
            "rescales the first side alone, as if the second had the larger maximum",
            "o_b * shrink_b[..., None]\n    return o, m, l_a * shrink_a + l_b * shrink_b",
            "o_b\n    return o, m, l_a * shrink_a + l_b",
        ),
        ("two empty sides: -inf - (-inf)", "shift = xp.where(m == -xp.inf, 0, m)", "shift = m"),
        (
            "writes into its first input",
            "    o = o_a * shrink_a[..., None] + o_b * shrink_b[..., None]\n",
            "    o_a *= shrink_a[..., None]\n    o = o_a + o_b * shrink_b[..., None]\n",
        ),
        inside="merge_attention",
    ),
    *wrong(
        "2.4.3",
        FILE,
        ("0 / 0", "xp.where(l == 0, 1, l)[..., None]", "l[..., None]"),
        (
            "undoes the shift: multiplies by exp(m)",
            "o, _, l = statistics\n",
            "o, m, l = statistics\n    l = l * xp.exp(m)\n",
        ),
        inside="finish_attention",
    ),
    Mutant(
        "2.4.3",
        "converts before it divides",
        FILE,
        inside="finish_attention",
        mlx=(
            "(o / mx.where(l == 0, 1, l)[..., None]).astype(dtype)",
            "o.astype(dtype) / mx.where(l == 0, 1, l)[..., None].astype(dtype)",
        ),
        torch=(
            "(o / torch.where(l == 0, 1, l)[..., None]).to(dtype)",
            "o.to(dtype) / torch.where(l == 0, 1, l)[..., None].to(dtype)",
        ),
    ),
    *wrong(
        "2.4.4",
        FILE,
        ("upper left: query i stands at position i", "past = S - L", "past = 0"),
        (
            "a loop over the queries of a tile",
            "return xp.where(keys <= queries, 0.0, -xp.inf)",
            "return xp.stack([xp.where(keys <= query, 0.0, -xp.inf) for query in queries])",
        ),
        inside="mask_tile",
    ),
    Mutant(
        "2.4.4",
        "slices an axis of length 1",
        FILE,
        inside="mask_tile",
        mlx=(
            "mx.broadcast_to(mask, mx.broadcast_shapes(mask.shape, (L, S)))[..., rows, columns]",
            "mask.reshape((1,) * (2 - mask.ndim) + mask.shape)[..., rows, columns]",
        ),
        torch=(
            "torch.broadcast_tensors(mask, mask.new_empty(1).expand(L, S))[0][..., rows, columns]",
            "mask.reshape((1,) * (2 - mask.dim()) + tuple(mask.shape))[..., rows, columns]",
        ),
    ),
    Mutant(
        "2.4.4",
        "builds the whole causal mask and slices it",
        FILE,
        inside="mask_tile",
        mlx=(
            "    return mx.where(keys <= queries, 0.0, -mx.inf)",
            "    whole = mx.arange(S) <= mx.arange(S - L, S)[:, None]\n"
            "    return mx.where(whole, 0.0, -mx.inf)[rows, columns]",
        ),
        torch=(
            "    return torch.where(keys <= queries, 0.0, -torch.inf)",
            "    whole = torch.arange(S, device=device) <= torch.arange(S - L, S, device=device)[:, None]\n"
            "    return torch.where(whole, 0.0, -torch.inf)[rows, columns]",
        ),
    ),
    Mutant(
        "2.4.4",
        "the queries' positions in float16, exact up to 2,048",
        FILE,
        inside="mask_tile",
        mlx=("keys <= queries,", "keys <= queries.astype(mx.float16),"),
        torch=("keys <= queries,", "keys <= queries.half(),"),
    ),
    Mutant(
        "2.4.5",
        "tiles of the causal mask on the default device, wherever the scores are",
        FILE,
        inside="flash_attention_tiled",
        torch=("rows, columns, device=query.device)", "rows, columns)"),
    ),
    Mutant(
        "2.4.5",
        "reads every tile of a mask, to leave out those that hide everything",
        FILE,
        inside="flash_attention_tiled",
        mlx=(
            "            k, v = key",
            "            bias = mask_tile(mask, L, S, rows, columns)\n"
            "            if merged is not None and bias is not None and mx.all(bias == -mx.inf).item():\n"
            "                continue\n"
            "            k, v = key",
        ),
        torch=(
            "            tile = attention",
            "            if merged is not None and bias is not None and torch.all(bias == -torch.inf):\n"
            "                continue\n"
            "            tile = attention",
        ),
    ),
    Mutant(
        "2.4.5",
        "ignores causality where there are more queries than keys",
        FILE,
        inside="flash_attention_tiled",
        mlx=(
            "    causal, before =",
            "    mask = None if isinstance(mask, str) and L > S else mask\n    causal, before =",
        ),
        torch=("    causal =", "    mask = None if isinstance(mask, str) and L > S else mask\n    causal ="),
    ),
    *wrong(
        "2.4.5",
        FILE,
        (
            "the scale twice: on the query, and in every tile",
            "attention_statistics(q, k, v, scale, ",
            "attention_statistics(q * (scale or 1), k, v, scale, ",
        ),
        (
            "tiles of queries only: all keys at once",
            "        for left in range(0, S - L + rows.stop if causal else S, tile_size):\n"
            "            columns = slice(left, min(left + tile_size, S))\n",
            "        for left in [0]:\n            columns = slice(0, S - L + rows.stop if causal else S)\n",
        ),
        (
            "tiles of keys only where nothing is hidden by causality: all queries at once",
            "for top in range(0, L, tile_size):\n        rows, merged = slice(top, min(top + tile_size, L)), None",
            "for top in range(0, L, tile_size) if causal else [0]:\n"
            "        rows, merged = slice(top, min(top + tile_size, L) if causal else L), None",
        ),
        inside="flash_attention_tiled",
    ),
]

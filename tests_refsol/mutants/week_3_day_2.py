"""Wrong solutions of Week 3 Day 2. The day's tests must fail on each of them."""

from authors.mutants import Mutant, wrong

FILE, BLOCKS = "paged_attention.py", "blocks/block_table.py"

MUTANTS = [
    *wrong(
        "3.2.1",
        BLOCKS,
        (
            "padding has one slot in use, as a list for one fixed kernel has it",
            "[(pad_block, len(tables), 0, 0, 0)]",
            "[(pad_block, len(tables), 1, 0, 0)]",
        ),
        (
            "lists a shared page once",
            "            rows.append((table[index], ",
            "            if table[index] in [row[0] for row in rows]:\n                continue\n"
            "            rows.append((table[index], ",
        ),
        (
            "an empty list where nothing is in use",
            "    count = max(1, len(rows)) if count is None else count\n",
            "    count = len(rows) if count is None else count\n    if count == 0:\n"
            "        return FlatBlocks([], [], [], [], [])\n",
        ),
        (
            "first_positions count from the first token seen",
            "max(start - first, 0), first)",
            "max(start - first, 0), max(first, start))",
        ),
        (
            "cuts the list at count and says nothing",
            "    if len(rows) > count:",
            "    rows = rows[:count]\n    if len(rows) > count:",
        ),
        part="serving",
    ),
    Mutant(
        "3.2.2",
        "hides by multiplying with 0",
        FILE,
        inside="gather_pages",
        mlx=(
            "mx.where(hidden, mx.array(0, pages.dtype), pages[block_list])",
            "pages[block_list] * (1 - hidden.astype(pages.dtype))",
        ),
        torch=(
            "pages.index_select(0, block_list).masked_fill_(hidden, 0)",
            "pages.index_select(0, block_list) * (1 - hidden.to(pages.dtype))",
        ),
    ),
    Mutant(
        "3.2.2",
        "hides in the pool, then gathers",
        FILE,
        inside="gather_pages",
        torch=(
            "return pages.index_select(0, block_list).masked_fill_(hidden, 0)",
            "pages[block_list] = pages[block_list].masked_fill(hidden, 0)\n"
            "    return pages.index_select(0, block_list)",
        ),
        mlx=(
            "return mx.where(hidden, mx.array(0, pages.dtype), pages[block_list])",
            "pages[block_list] = mx.where(hidden, mx.array(0, pages.dtype), pages[block_list])\n"
            "    return pages[block_list]",
        ),
    ),
    Mutant(
        "3.2.2",
        "the pool in float32 first",
        FILE,
        inside="gather_pages",
        mlx=(
            "mx.where(hidden, mx.array(0, pages.dtype), pages[block_list])",
            "mx.where(hidden, 0.0, pages.astype(mx.float32)[block_list])",
        ),
        torch=("pages.index_select(0, block_list)", "pages.float().index_select(0, block_list)"),
    ),
    Mutant(
        "3.2.2",
        "copies the pool and drops what is not listed",
        FILE,
        inside="gather_pages",
        mlx=("pages[block_list])", "(pages + 0)[block_list])"),
        torch=("pages.index_select(0, block_list)", "pages.clone().index_select(0, block_list)"),
    ),
    Mutant(
        "3.2.2",
        "hides everything below 0, also numbers of a mask",
        FILE,
        both=("mask == -xp.inf", "mask < 0"),
        inside="gather_pages",
    ),
    *wrong(
        "3.2.3",
        FILE,
        ("shrinks l and forgets o", "(o * shrink[..., None])", "(o * (shrink > 0)[..., None])"),
        (
            "no guard: -inf for requests without pages goes through the product",
            "xp.where(largest == -xp.inf, 0, largest)",
            "largest",
        ),
        inside="merge_blocks",
    ),
    Mutant(
        "3.2.4",
        "scale or 1/√D: 0 is taken for nothing",
        FILE,
        both=("keys, values, scale, mask[", "keys, values, scale or None, mask["),
        inside="paged_decode_statistics",
    ),
    Mutant(
        "3.2.4",
        "a pool for each request",
        FILE,
        inside="paged_decode_statistics",
        mlx=(
            "    B, H, D = query.shape\n",
            "    B, H, D = query.shape\n"
            "    value_pages = mx.contiguous(mx.broadcast_to(value_pages, (B, *value_pages.shape)))[0]\n",
        ),
        torch=(
            "    B, H, D = query.shape\n",
            "    B, H, D = query.shape\n    value_pages = value_pages.expand(B, -1, -1, -1, -1).contiguous()[0]\n",
        ),
    ),
    Mutant(
        "3.2.4",
        "a merge in the type of the pages",
        FILE,
        inside="paged_decode_statistics",
        mlx=(
            "merge_blocks((o[:, :, 0], m[..., 0], l[..., 0]), owners)",
            "merge_blocks(tuple(x.astype(query.dtype) for x in (o[:, :, 0], m[..., 0], l[..., 0])), owners)",
        ),
        torch=(
            "merge_blocks((o[:, :, 0], m[..., 0], l[..., 0]), owners)",
            "merge_blocks(tuple(x.to(query.dtype) for x in (o[:, :, 0], m[..., 0], l[..., 0])), owners)",
        ),
    ),
    *wrong(
        "3.2.5",
        FILE,
        ("every token sees every request's past", "seen = own & (slots", "seen = (own | True) & (slots"),
        ("the whole last page is seen, also behind its last token", " & (slots < block_usage[:, None])", ""),
        (
            "a window of one token more",
            "(keys > positions[:, None, None] - window)",
            "(keys >= positions[:, None, None] - window)",
        ),
        inside="past_mask",
    ),
    Mutant(
        "3.2.5",
        "positions in bf16, which has no 257",
        FILE,
        inside="past_mask",
        mlx=(
            "(keys <= positions[:, None, None])",
            "(keys.astype(mx.bfloat16) <= positions[:, None, None].astype(mx.bfloat16))",
        ),
        torch=(
            "(keys <= positions[:, None, None])",
            "(keys.bfloat16() <= positions[:, None, None].bfloat16())",
        ),
    ),
    Mutant(
        "3.2.6",
        "forgets the scale",
        FILE,
        both=("keys, values, scale, mask.bias", "keys, values, None, mask.bias"),
        inside="paged_prompt_statistics",
    ),
    Mutant(
        "3.2.6",
        "holds all scores of a step at once",
        FILE,
        inside="paged_prompt_statistics",
        mlx=(
            "flash_attention_tiled(queries, keys, values, scale, mask.bias, return_statistics=True)",
            "attention_statistics(queries, keys, values, scale, mask.bias)",
        ),
        torch=(
            "    o, m, l = fused_statistics(query.transpose(0, 1)[None], keys, values, scale, mask.bias, mask.seen)\n",
            "    from .flash_attention import attention_statistics\n\n"
            "    o, m, l = attention_statistics(query.transpose(0, 1)[None], keys, values, scale, mask.bias)\n",
        ),
    ),
    Mutant(
        "3.2.6",
        "reads the whole bias again in each layer for the hidden slots",
        FILE,
        inside="paged_prompt_statistics",
        mlx=("mask.slots", "mx.max(mask.bias, axis=0).reshape(mask.slots.shape)"),
        torch=("mask.slots", "mask.bias.amax(dim=0).view(mask.slots.shape)"),
    ),
]

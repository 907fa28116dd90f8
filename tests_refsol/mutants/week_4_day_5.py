"""Wrong solutions of Week 4 Day 5."""

from authors.mutants import Mutant, wrong

ROWS = "quantized_kv.py"


def _pair(task: str, inside: str, idea: str, torch: tuple[str, str], mlx: tuple[str, str]) -> Mutant:
    return Mutant(task, idea, ROWS, torch=torch, mlx=mlx, inside=inside)


# Task 1.
SCALES = "(x.abs().amax(dim=-1) / largest)"
SCALES_MLX = "(mx.abs(x).max(axis=-1) / largest)"
STEPS = "torch.where(scales > 0, scales.float(), 1)"
STEPS_MLX = "mx.where(scales > 0, scales.astype(mx.float32), 1)"
ROUNDED = [
    *wrong(
        "4.5.1",
        ROWS,
        ("codes may be -128", "x / steps", "x / steps * (largest + 1) / largest"),
        ("rounds down", "x / steps", "x / steps - 0.5"),
        ("codes have no sign", "x / steps", "abs(x) / steps"),
        ("always 8 bits", "/ largest)", "/ 127)"),
        ("half the range, as of two sides", "/ largest)", "/ (2 * largest))"),
        inside="quantize_rows",
    ),
    _pair(
        "4.5.1",
        "quantize_rows",
        "codes for the scale before it was rounded",
        (STEPS, STEPS.replace("scales.float()", SCALES)),
        (STEPS_MLX, STEPS_MLX.replace("scales.astype(mx.float32)", SCALES_MLX)),
    ),
    _pair(
        "4.5.1",
        "quantize_rows",
        "the largest number, and not the farthest",
        (SCALES, "(x.amax(dim=-1).abs() / largest)"),
        (SCALES_MLX, "(mx.abs(x.max(axis=-1)) / largest)"),
    ),
]

# Task 2.
ATTENDED = [
    *wrong(
        "4.5.2",
        ROWS,
        ("keys have no scale", "key_scales.T", "(key_scales**0).T"),
        ("values have no scale", "value_scales.T", "(value_scales**0).T"),
        (
            "a value's scale counts in the softmax, too",
            "softmax(scores",
            "softmax(scores * value_scales.T[:, None]",
        ),
        ("the first slots of the pool", "part[slots]", "part[: slots.shape[0]]"),
        ("the whole pool", "part[slots]", "part"),
        (
            "takes a scale of 0.0 for none given",
            "(D**-0.5 if scale is None else scale)",
            "(scale or D**-0.5)",
        ),
        inside="attend_quantized",
    ),
    _pair(
        "4.5.2",
        "attend_quantized",
        "keys are dequantised",
        (
            "key_codes.permute(1, 2, 0) * key_scales.T.unsqueeze(1)",
            "(key_codes * key_scales[..., None]).permute(1, 2, 0)",
        ),
        (
            "key_codes.transpose(1, 2, 0) * key_scales.T[:, None]",
            "(key_codes * key_scales[..., None]).transpose(1, 2, 0)",
        ),
    ),
]

# Task 3.
SHARE = "errors.norm() / rows.norm()"
SHARE_MLX = "mx.linalg.norm(errors.flatten()) / mx.linalg.norm(rows.flatten())"
COSTS = [
    *wrong(
        "4.5.3",
        ROWS,
        ("always per channel", "axis, -1", "0, -1"),
        ("the axes are mixed up", "axis, -1", "-1 - axis, -1"),
        ("always 8 bits", "quantize_rows(rows, largest)", "quantize_rows(rows)"),
        ("an array, not a number", "return float(", "return ("),
        inside="rounding_error",
    ),
    _pair(
        "4.5.3",
        "rounding_error",
        "the mean of the rows' errors",
        (SHARE, "(errors.norm(dim=-1) / rows.norm(dim=-1)).mean()"),
        (SHARE_MLX, "(mx.linalg.norm(errors, axis=-1) / mx.linalg.norm(rows, axis=-1)).mean()"),
    ),
]

# Tasks 4 and 5.
COLD = "cold_blocks/cold_blocks.py"
HELD = "        if digest in level.slots:\n"
TOUCHED = "            level.touch(digest)\n            return\n"
OLDEST = "oldest = next(iter(level.slots))"
DOWN = "            self.put_away(oldest, Place(level.name, slot), first + 1)\n"
FREED = DOWN + "            level.free.append(slot)\n"
KEEP = "        slot = level.slots[digest] = level.free.pop()\n"
ANYWHERE = (
    "        if self.level_of(digest) is not None:\n"
    "            level = next(each for each in self.levels if digest in each.slots)\n"
)
FREE = "                level.free.append(slot)\n"
TOLD = "                self.moves.append(Move(digest, Place(level.name, slot), GONE))\n"
BLOCK = "        block = next(iter(self.idle))\n"
MOVE = "        self.moves.append(Move(digest, Place(level.name, level.slots[digest]), Place(POOL, block)))\n"
PUTS = wrong(
    "4.5.4",
    COLD,
    ("nobody hears of what is gone", "            self.moves.append(Move(digest, source, GONE))\n", ""),
    ("what a level holds is copied again", HELD + TOUCHED, ""),
    ("what a level holds stays as old as it was", TOUCHED, "            return\n"),
    ("held in any level is enough", HELD, ANYWHERE),
    ("the newest text makes room", OLDEST, "oldest = next(reversed(level.slots))"),
    ("the oldest text is dropped", DOWN, ""),
    ("skips a level", DOWN, DOWN.replace("first + 1", "min(first + 2, len(self.levels))")),
    (
        "the new text is written before the old one has left",
        KEEP + "        self.moves.append(",
        KEEP + "        self.moves.insert(max(0, len(self.moves) - 1), ",
    ),
    part="serving",
    inside="ColdBlocks.put_away",
)
BACKS = wrong(
    "4.5.5",
    COLD,
    (
        "from the slowest level",
        "level for level in self.levels if",
        "level for level in self.levels[::-1] if",
    ),
    ("what comes back stays as old as it was", "        level.touch(digest)\n", ""),
    ("what comes back leaves its level", MOVE, MOVE + "        level.free.append(level.slots.pop(digest))\n"),
    ("a forgotten text's slot is lost", FREE, "", "ColdBlocks.forget"),
    ("is forgotten in the fastest level alone", TOLD, TOLD + "                return\n", "ColdBlocks.forget"),
    (
        "puts nothing away",
        "        self.cold.put_away(self.digest_of[block], Place(POOL, block))\n",
        "",
        "KeepingCache.evict",
    ),
    (
        "the oldest text's block, idle or not",
        BLOCK,
        BLOCK.replace("self.idle", "self.digest_of"),
        "KeepingCache.evict",
    ),
    (
        "straight to the last level",
        "Place(POOL, block))",
        "Place(POOL, block), max(0, len(self.cold.levels) - 1))",
        "KeepingCache.evict",
    ),
    part="serving",
    inside="ColdBlocks.bring_back",
)

# Task 6.
BEST = "max(enumerate(gains), key=lambda each: (each[1], each[0]))[0]"
CHOICES = wrong(
    "4.5.6",
    "cold_blocks/swap_or_compute.py",
    (
        "stops at the first slow block",
        BEST,
        "next((k for k, name in enumerate(levels) if costs.back.get(name, 0.0) > compute), len(levels))",
    ),
    ("all or nothing", BEST, "len(levels) if [*gains][-1] >= 0 else 0"),
    ("counts the cheap ones", BEST, "sum(costs.back.get(name, 0.0) <= compute for name in levels)"),
    ("the smaller of two equal numbers", BEST, BEST.replace("each[0])", "-each[0])")),
    ("what was not measured is dear", "level, 0.0", "level, compute + 1"),
    ("nothing comes back unmeasured", "return len(levels)", "return 0"),
    ("a compute time of 0 is no measurement", "if compute is None", "if not compute"),
    part="serving",
    inside="blocks_to_bring_back",
)

MUTANTS = [
    *ROUNDED,
    *ATTENDED,
    *COSTS,
    *PUTS,
    *BACKS,
    *CHOICES,
]

"""Wrong solutions of Week 2 Day 2."""

from authors.mutants import Mutant

FILE = "quantize.py"


def _words(idea: str, inside: str, **edits) -> Mutant:
    return Mutant("2.2.1", idea, FILE, inside=inside, **edits)


def _quantize(idea: str, **edits) -> Mutant:
    return Mutant("2.2.2", idea, FILE, inside="quantize_weights", **edits)


def _dequantize(idea: str, **edits) -> Mutant:
    return Mutant("2.2.3", idea, FILE, inside="dequantize_weights", **edits)


def _tiled(idea: str, **edits) -> Mutant:
    return Mutant("2.2.4", idea, FILE, inside="quantized_matmul_tiled", **edits)


MUTANTS = [
    _words(
        "the first number in the highest bits",
        "numbers_to_words",
        mlx=("mx.arange(0, 32, bits, dtype=mx.uint32)", "mx.arange(32 - bits, -1, -bits).astype(mx.uint32)"),
        torch=(
            "torch.arange(0, 32, bits, device=numbers.device)",
            "torch.arange(32 - bits, -1, -bits, device=numbers.device)",
        ),
    ),
    _words(
        "the two halves of each byte exchanged",
        "numbers_to_words",
        mlx=("neighbours << shifts", "neighbours << (shifts ^ (4 if bits == 4 else 0))"),
        torch=("neighbours << shifts", "neighbours << (shifts ^ (4 if bits == 4 else 0))"),
    ),
    _words(
        "the highest number of a word comes out with a sign",
        "words_to_numbers",
        mlx=(
            "((words[..., None] >> shifts) & (2**bits - 1))",
            "mx.where(shifts == 32 - bits, words.view(mx.int32)[..., None] >> shifts.astype(mx.int32), "
            "((words[..., None] >> shifts) & (2**bits - 1)).astype(mx.int32))",
        ),
        torch=(
            "((words.view(torch.int32).unsqueeze(-1) >> shifts) & (2**bits - 1))",
            "torch.where(shifts == 32 - bits, words.view(torch.int32).unsqueeze(-1) >> shifts, "
            "(words.view(torch.int32).unsqueeze(-1) >> shifts) & (2**bits - 1))",
        ),
    ),
    _words(
        "always masks four bits",
        "words_to_numbers",
        mlx=("(2**bits - 1)", "15"),
        torch=("return words.view(torch.uint8)", "return words.view(torch.uint8) & 15"),
    ),
    _quantize(
        "rounds down and not to the nearest mark",
        mlx=("mx.round((groups - biases) / scales)", "mx.floor((groups - biases) / scales)"),
        torch=("torch.round((groups - biases) / scales)", "torch.floor((groups - biases) / scales)"),
    ),
    _quantize(
        "the lowest number is the bias: 0 is no mark",
        mlx=(
            "numbers = ",
            "scales, biases = mx.maximum((high - low) / levels, SMALLEST_SCALE), low\n    numbers = ",
        ),
        torch=(
            "numbers = ",
            "scales, biases = ((high - low) / levels).clamp(min=SMALLEST_SCALE), low\n    numbers = ",
        ),
    ),
    _quantize(
        "computes in the type of w",
        mlx=("groups = w.astype(mx.float32)", "groups = w"),
        torch=("groups = w.float()", "groups = w"),
    ),
    _quantize(
        "rounds with the scales and biases that were rounded to w's type",
        mlx=(
            "numbers = ",
            "scales, biases = (part.astype(w.dtype).astype(mx.float32) for part in (scales, biases))\n    numbers = ",
        ),
        torch=(
            "numbers = ",
            "scales, biases = (part.to(w.dtype).float() for part in (scales, biases))\n    numbers = ",
        ),
    ),
    _dequantize(
        "subtracts the bias",
        mlx=("+ biases.astype(mx.float32)[..., None]", "- biases.astype(mx.float32)[..., None]"),
        torch=("+ biases.float().unsqueeze(-1)", "- biases.float().unsqueeze(-1)"),
    ),
    _dequantize(
        "number i takes scale i % groups, not i // group_size",
        mlx=(
            "groups * scales.astype(mx.float32)[..., None] + biases.astype(mx.float32)[..., None]",
            "groups.flatten(-2) * mx.tile(scales.astype(mx.float32), group_size) "
            "+ mx.tile(biases.astype(mx.float32), group_size)\n"
            "    numbers = numbers.reshape(*scales.shape, group_size)",
        ),
        torch=(
            "groups * scales.float().unsqueeze(-1) + biases.float().unsqueeze(-1)",
            "groups.flatten(-2) * torch.cat([scales.float()] * group_size, -1) "
            "+ torch.cat([biases.float()] * group_size, -1)\n"
            "    numbers = numbers.reshape(*scales.shape, group_size)",
        ),
    ),
    _dequantize(
        "computes in the type of the scales",
        mlx=(
            "groups * scales.astype(mx.float32)[..., None] + biases.astype(mx.float32)[..., None]",
            "groups.astype(scales.dtype) * scales[..., None] + biases[..., None]",
        ),
        torch=(
            "groups * scales.float().unsqueeze(-1) + biases.float().unsqueeze(-1)",
            "groups.to(scales.dtype) * scales.unsqueeze(-1) + biases.unsqueeze(-1)",
        ),
    ),
    _dequantize(
        "hands out float32",
        mlx=(".flatten(-2).astype(scales.dtype)", ".flatten(-2)"),
        torch=("numbers.flatten(-2).to(scales.dtype)", "numbers.flatten(-2)"),
    ),
    _tiled(
        "exchanges the two products when W is square",
        both=(
            "outputs, total = [],",
            "transpose_b = transpose_b != (scales.shape[0] == scales.shape[1] * group_size)\n    outputs, total = [],",
        ),
    ),
    _tiled(
        "forgets the rows behind the last full tile",
        both=(
            "for start in range(0, scales.shape[0], TILE_ROWS):",
            "for start in range(0, max(1, scales.shape[0] // TILE_ROWS) * TILE_ROWS, TILE_ROWS):",
        ),
    ),
    _tiled(
        "takes the scales of the first tile for every tile",
        both=("b[rows], scales[rows],", "b[rows], scales[: b[rows].shape[0]],"),
    ),
    _tiled("the last tile overwrites the others", both=("total = total + (", "total = 0 * total + (")),
    _tiled(
        "dequantises all of W first: right numbers, and no memory saved",
        mlx=(
            "return dequantize_weights(b[rows], scales[rows], biases[rows], group_size, bits).astype(a.dtype)",
            "whole = dequantize_weights(b, scales, biases, group_size, bits).astype(a.dtype)\n"
            "        mx.eval(whole)\n        return whole[rows]",
        ),
        torch=(
            "return dequantize_weights(b[rows], scales[rows], biases[rows], group_size, bits).to(a.dtype)",
            "return dequantize_weights(b, scales, biases, group_size, bits).to(a.dtype)[rows]",
        ),
    ),
    _tiled(
        "adds the tiles in the type of a",
        mlx=(
            "total + (a[..., start : start + TILE_ROWS] @ tile(start)).astype(mx.float32)",
            "total.astype(a.dtype) + a[..., start : start + TILE_ROWS] @ tile(start)",
        ),
        torch=(
            "total + (a[..., start : start + TILE_ROWS] @ tile(start)).float()",
            "total.to(a.dtype) + a[..., start : start + TILE_ROWS] @ tile(start)",
        ),
    ),
    _tiled(
        "hands out the type of the scales",
        mlx=(
            "return mx.concatenate(outputs, axis=-1) if transpose_b else total.astype(a.dtype)",
            "return (mx.concatenate(outputs, axis=-1) if transpose_b else total).astype(scales.dtype)",
        ),
        torch=(
            "return torch.cat(outputs, dim=-1) if transpose_b else total.to(a.dtype)",
            "return (torch.cat(outputs, dim=-1) if transpose_b else total).to(scales.dtype)",
        ),
    ),
]

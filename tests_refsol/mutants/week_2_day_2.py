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
        "computes in the type of w",
        mlx=("groups = w.astype(mx.float32)", "groups = w"),
        torch=("groups = w.float()", "groups = w"),
    ),
    _dequantize(
        "hands out float32",
        mlx=(".flatten(-2).astype(scales.dtype)", ".flatten(-2)"),
        torch=("numbers.flatten(-2).to(scales.dtype)", "numbers.flatten(-2)"),
    ),
    _tiled(
        "takes the scales of the first tile for every tile",
        both=("b[rows], scales[rows],", "b[rows], scales[: b[rows].shape[0]],"),
    ),
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

"""Wrong solutions of Week 2 Day 3."""

from authors.mutants import Mutant

FILE = "quantized_weights.py"
KERNEL = "return mx.quantized_matmul(a, b, scales, biases, transpose=transpose_b, group_size=group_size, bits=bits)"
TABLE = "table = torch.stack([scales, biases + 8 * scales], dim=-1)"
COUNT = "parts = (self.weight, self.scales, self.biases, self.prepared)"
DEVICE = "quantized_matmul_device(*w.operands(x), transpose_b=True)"
BIAS = "return out if bias is None else out + bias"


def _device(idea: str, mlx=None, torch=None) -> Mutant:
    return Mutant("2.3.1", idea, FILE, mlx=mlx, torch=torch)


def _nbytes(idea: str, *edit: str) -> Mutant:
    return Mutant("2.3.2", idea, FILE, both=edit, inside="QuantizedWeights.nbytes")


def _linear(idea: str, *edit: str) -> Mutant:
    return Mutant("2.3.3", idea, FILE, both=edit, inside="quantized_linear")


MUTANTS = [
    _device(
        "leaves out the transpose, whose default in MLX is to transpose",
        mlx=(
            KERNEL,
            KERNEL.replace("transpose=transpose_b", "transpose=scales.shape[1] * group_size == a.shape[-1]"),
        ),
        torch=(
            "kernel = prepare_weights(w).prepared if transpose_b else None",
            "square = w.shape[0] == w.shape[1]\n"
            "    kernel = prepare_weights(w).prepared if transpose_b or square else None",
        ),
    ),
    _device(
        "scales and biases exchanged",
        mlx=(KERNEL, KERNEL.replace("scales, biases,", "biases, scales,")),
        torch=(TABLE, "table = torch.stack([biases + 8 * scales, scales], dim=-1)"),
    ),
    _device(
        "scales of float32 with an `a` of bf16: the product is float32",
        mlx=("return scales.astype(dtype), biases.astype(dtype)", "return scales, biases"),
    ),
    _device(
        "the rows of the table are outputs, not groups",
        torch=("table.transpose(0, 1)", "table.reshape(table.shape[1], table.shape[0], 2)"),
    ),
    _device(
        "rounds bias and scale to bf16 before the sum that nearly cancels",
        torch=(TABLE, "table = torch.stack([scales, biases.bfloat16() + 8 * scales.bfloat16()], dim=-1)"),
    ),
    _device(
        "the kernel of 4 bits for 8 bits as well",
        torch=(
            "kernel = prepare_weights(w).prepared if transpose_b else None",
            "w = QuantizedWeights(b[:, : b.shape[1] * 4 // bits], scales, biases, group_size, 4)\n"
            "    kernel = prepare_weights(w).prepared if transpose_b else None",
        ),
    ),
    _nbytes(
        "counts the prepared form in place of the words, though both are there",
        COUNT,
        "parts = (self.prepared,) if self.prepared else (self.weight, self.scales, self.biases)",
    ),
    _linear("forgets the bias", BIAS, "return out"),
    _linear(
        "multiplies by W where it is square",
        DEVICE,
        "quantized_matmul_device(*w.operands(x), transpose_b=w.shape[0] != w.shape[1])",
    ),
    _linear(
        "prepares the kernel's form anew at each call",
        "elif w.prepared is not None:",
        "elif w.weight is None:",
    ),
    _linear(
        "the prepared form for many rows too, though tiles are faster",
        "if in_tiles(x, w):",
        "if in_tiles(x, w) and w.prepared is None:",
    ),
]

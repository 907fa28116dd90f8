"""Gaudi: the only file that calls Intel's `habana_frameworks`, and the one file of this port without a twin in MLX.

Every vendor call is wrapped in a function that has a PyTorch twin (`*_twin`). A tensor on an HPU uses the vendor's
call and every other tensor the twin, so the port has one code path. Written from the public source of the plug-in and
from vLLM's Gaudi plug-in, and tested on CPUs against an imitation; not run on a Gaudi.
"""

# The plug-in, and `torch.hpu`, which it registers, exist on a Gaudi alone.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

# Set first, since the plug-in reads these when torch is imported. LAZY_MODE 0 is eager: torch.compile builds graphs.
# AUTOLOAD 0: a plug-in that does not fit would break `import torch`; detect() below loads it and catches the error.
# WEIGHT_SHARING 0: lazy mode would wrap every parameter in another class; vLLM's plug-in avoids it as well.
# LAZY_COLLECTIVES: sums over several cards can be part of an HPU graph.
import os

os.environ.setdefault("PT_HPU_LAZY_MODE", "0")
os.environ.setdefault("PT_HPU_AUTOLOAD", "0")
os.environ.setdefault("PT_HPU_WEIGHT_SHARING", "0")
os.environ.setdefault("PT_HPU_ENABLE_LAZY_COLLECTIVES", "true")

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def keep_recipes() -> None:
    """Lets the plug-in keep compiled graphs, its recipes, on disk: without it each start compiles every bucket again.

    In the user's cache folder, one folder for each version of the plug-in, unless the user has named another one.
    """
    if find_spec("habana_frameworks") is None:
        return
    try:
        release = version("habana-torch-plugin")
    except PackageNotFoundError:
        release = "unknown"
    try:
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (named if named.is_absolute() else Path.home() / ".cache") / "tiny-llm" / f"gaudi-{release}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or none that can be written: each start compiles again
        return
    # Folder, whether to empty it at the start, its size in MiB, whether it is on a network file system.
    os.environ.setdefault("PT_HPU_RECIPE_CACHE_CONFIG", f"{folder},false,8192,false")


keep_recipes()

import torch  # noqa: E402 (after the environment)
import torch.nn.functional as F  # noqa: E402


@dataclass(frozen=True)
class Detection:
    """The result of `detect`: whether an HPU can be used, whether the plug-in is lazy, and one line on why."""

    available: bool
    lazy: bool
    reason: str


@cache
def detect() -> Detection:
    """Loads the plug-in if there is one, which registers `torch.hpu`. Never raises; the result is cached."""
    if find_spec("habana_frameworks") is None:
        return Detection(False, False, "no habana_frameworks in this environment")
    try:
        import habana_frameworks.torch.core  # noqa: F401  (registers the device)
        from habana_frameworks.torch.utils.internal import is_lazy
    except Exception as error:  # whatever does not fit: an assertion on torch's version, a library, a symbol
        line = " ".join(str(error).split())
        return Detection(False, False, f"the plug-in does not load: {type(error).__name__}: {line}")
    if not torch.hpu.is_available():
        return Detection(False, is_lazy(), "the plug-in is here but it finds no card")
    return Detection(True, is_lazy(), f"{torch.hpu.device_count()} x {torch.hpu.get_device_name()}")


def available() -> bool:
    """Whether tensors can live on an HPU here."""
    return detect().available


def mark_step() -> None:
    """Ends and launches the graph that lazy mode has collected so far; does nothing elsewhere.

    Caches call it when they `materialize`: after a call of the model from which the host reads nothing, lazy mode would
    only have written down what to do.
    """
    if detect().available and detect().lazy:
        import habana_frameworks.torch.core as htcore

        htcore.mark_step()


def load_collectives(device: str) -> None:
    """Registers HCCL with torch.distributed. It reads this process's rank from the environment, which must be set."""
    if device == "hpu":
        import habana_frameworks.torch.distributed.hccl  # noqa: F401


def compile_static(function: Callable) -> Callable:
    """The function compiled by Intel's compiler, once per set of shapes. Not for lazy mode.

    Dynamo may keep symbols for sizes that vary, and then traces less; the vendor's compiler gets the numbers.
    """
    return torch.compile(function, backend="hpu_backend", options={"force_static_compile": True})


class _AsModule(torch.nn.Module):
    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor | None) -> torch.Tensor | None:
        return self.function(*inputs)


def wrap_in_graph(function: Callable, max_graphs: int) -> Callable:
    """The function as HPU graphs, one per set of shapes, recorded on its first call. For lazy mode.

    The graphs' key has no types and no values of arrays; numbers, strings and None count by value. Each graph returns
    the same arrays at every replay.

    Args:
        function: called with arrays and Nones, by position.
        max_graphs: further sets of shapes run without a graph.
    """
    from habana_frameworks.torch.hpu import wrap_in_hpu_graph

    # Without the tensor cache inputs are handed over and not copied, and intermediate results are released.
    return wrap_in_hpu_graph(_AsModule(function), disable_tensor_cache=True, max_graphs=max_graphs)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """x / √(mean(x²) + eps) · weight over the last axis, with statistics in float32.

    Args:
        x: (..., D).
        weight: (D,).

    Returns:
        (..., D) in x's type.
    """
    if x.device.type != "hpu":
        return rms_norm_twin(x, weight, eps)
    from habana_frameworks.torch.hpex.normalization import FusedRMSNorm

    # The kernel needs one type for both.
    return FusedRMSNorm.apply(x, weight.to(x.dtype), eps)


def rms_norm_twin(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the pairs (i, i + D/2) of every head, as Qwen3 does (not the traditional pairs 2i, 2i + 1).

    Args:
        x: (B, L, H, D).
        cos, sin: (L, D) or (B, L, D), the rows of the positions, whose second half repeats the first.

    Returns:
        (B, L, H, D) in x's type; computed in the widest of the three types.
    """
    if x.device.type != "hpu":
        return apply_rope_twin(x, cos, sin)
    from habana_frameworks.torch.hpex.kernels import RotaryPosEmbeddingMode, apply_rotary_pos_emb

    B, L, H, D = x.shape
    cos, sin = (rows.expand(B, L, D).reshape(B * L, 1, D) for rows in (cos, sin))
    # By position: x, cos, sin, position_ids, offset, mode. The rows are gathered, so no ids and no offset.
    blockwise = RotaryPosEmbeddingMode.BLOCKWISE
    rotated = apply_rotary_pos_emb(x.reshape(B * L, H, D), cos, sin, None, 0, blockwise)
    return rotated.reshape(x.shape).to(x.dtype)


def apply_rope_twin(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    # Day 1.2's rotation on whole heads at once: half as many operations, which makes a decode step shorter.
    wide, cos, sin = x.float(), cos.unsqueeze(-2), sin.unsqueeze(-2)  # the same angles for all heads
    a, b = wide.chunk(2, dim=-1)
    return torch.addcmul(wide * cos, torch.cat([-b, a], dim=-1), sin).to(x.dtype)


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
) -> torch.Tensor:
    """softmax(query @ keyᵀ · scale + bias) @ value; query head h reads key head h // (H / Hkv).

    Args:
        query: (B, H, L, D).
        key, value: (B, Hkv, S, D) in query's type, with H a multiple of Hkv; never repeated.
        scale: a number.
        bias: added to the scores, broadcastable to (B, H, L, S), in query's type.
        is_causal: for L = S; not supported together with a bias.

    Returns:
        (B, H, L, D) in query's type. The row of a query that sees no key is undefined.
    """
    if bias is not None:
        # The kernels need four axes, with one mask for all heads or one per head. Expanding makes a view, not a copy.
        heads = bias.shape[-3] if bias.dim() > 2 else 1
        bias = bias.expand(query.shape[0], heads, query.shape[2], key.shape[2])
    if query.device.type != "hpu":
        return fused_attention_twin(query, key, value, scale, bias, is_causal)
    from habana_frameworks.torch.hpex.kernels import FusedSDPA

    # By position: q, k, v, mask, dropout, causal, scale, softmax mode, recompute (the flash-style kernel, which keeps
    # no score matrix; one query has no matrix to keep), valid lengths, side of the padding (the default would be left).
    options = (softmax_mode(query.dtype), query.shape[2] > 1, None, "right")
    return FusedSDPA.apply(query, key, value, bias, 0.0, is_causal, scale, *options)


def softmax_mode(dtype: torch.dtype) -> str:
    """The mode of the vendor's softmax: float32 for bf16 queries, whatever the model.

    vLLM's plug-in asks for it for Qwen2 and Qwen2.5-VL, whose biases make scores too large for bf16, and for "fast"
    otherwise; Qwen3 normalises queries and keys. No model is known here, and the course's exponentials and sums are
    float32 for every model. What the mode costs the other models is not known: nothing was run on a card.
    """
    return "fp32" if dtype == torch.bfloat16 else "None"


def fused_attention_twin(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
) -> torch.Tensor:
    attend = partial(F.scaled_dot_product_attention, attn_mask=bias, is_causal=is_causal, scale=scale)
    B, H, L, D = query.shape
    if L == 1 and (bias is None or bias.shape[1] == 1):
        # Treat the heads of a group as additional queries of one head; torch's CPU kernel would repeat K and V.
        return attend(query.reshape(B, key.shape[1], -1, D), key, value).reshape(B, H, L, D)
    return attend(query, key, value, enable_gqa=True)


def has_statistics_kernel(query: torch.Tensor) -> bool:
    """Whether `fused_statistics` takes these queries, (B, H, L, D): all on a CPU, and a decode's one on a Gaudi.

    Not the queries of a chunk on a Gaudi: `hpu_attention.py` says why. They are computed in tiles.
    """
    return query.device.type == "cpu" or (query.device.type == "hpu" and query.shape[2] == 1)


def fused_statistics(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    bias: torch.Tensor,
    seen: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention without the final division, as Day 2.4's `attention_statistics`, in as few operations as there are.

    For what `has_statistics_kernel` says yes to; `flash_attention.py` computes the rest.

    A kernel may use another m than the largest score: only o · exp(m) and l · exp(m) matter, since merging and the
    final division use nothing else.

    Args:
        query: (B, H, L, D).
        key, value: (B, Hkv, S, D) in query's type, with H a multiple of Hkv; never repeated.
        scale: 1/√D when None.
        bias: added to the scores, (L, S) or (B, 1, L, S), the same for all heads; -inf hides a key.
        seen: (L,) or (B, 1, L) booleans, the queries that see a key, made once per step. When None, the bias is read
            once more to make them.

    Returns:
        (o, m, l), all float32: (B, H, L, D), (B, H, L) and (B, H, L). A query that sees no key has o = 0, m = -inf,
        l = 0.
    """
    bias = bias.expand(query.shape[0], 1, query.shape[2], key.shape[2])
    if query.device.type != "hpu":
        return fused_statistics_twin(query, key, value, scale, bias, seen)
    return decode_statistics(query, key, value, query.shape[3] ** -0.5 if scale is None else scale, bias)


def decode_statistics(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Statistics of one query per row by plain products, as in vLLM's plug-in; scores and sums are float32.

    Args:
        query: (B, H, 1, D).
        key, value: (B, Hkv, S, D) in query's type.
        scale: a number.
        bias: (B, 1, 1, S).

    Returns:
        See `fused_statistics`.
    """
    B, H, L, D = query.shape
    Hkv, S = key.shape[1:3]
    scores = (
        float32_product(query.reshape(B, Hkv, -1, D), key.transpose(-2, -1)).view(B, H, L, S) * scale + bias
    )
    m = scores.amax(dim=-1)
    weights = torch.exp(scores - torch.where(m == -torch.inf, 0, m)[..., None])
    o = float32_product(weights.to(value.dtype).view(B, Hkv, -1, S), value)
    return o.view(B, H, L, D), m, weights.sum(dim=-1)


def float32_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b with float32 results, as the matrix engine sums: in bf16 a score of 41 may be off by 0.125.

    Args:
        a: (..., L, D).
        b: (..., D, S), with the same axes in front.

    Returns:
        (..., L, S), float32.
    """
    if a.device.type != "hpu":
        return a.float() @ b.float()
    # torch refuses a wider `out` elsewhere; vLLM's plug-in asks for its float32 scores in the same way.
    out = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=torch.float32, device=a.device)
    return torch.matmul(a, b, out=out)


def fused_statistics_twin(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    bias: torch.Tensor,
    seen: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    # torch's CPU kernel returns the logarithm of the sum with the output. It needs as many K/V heads as query heads, so
    # a K/V head becomes a row of the batch, which its group reads without a copy.
    B, H, L, D = query.shape
    Hkv, S = key.shape[1:3]
    if L == 1:  # the heads of a group become queries of one head, and the batch stays as it is
        queries, mask = query.reshape(B, Hkv, -1, D), bias.expand(B, 1, H // Hkv, S)
    else:
        queries = query.reshape(B * Hkv, -1, L, D)
        key, value = (x.flatten(0, 1).unsqueeze(1).expand(-1, H // Hkv, S, D) for x in (key, value))
        mask = bias.expand(B, Hkv, L, S).reshape(-1, 1, L, S)
    out, logsumexp = attention_with_logsumexp(queries, key, value, scale, mask.to(query.dtype))
    logsumexp = logsumexp.reshape(B, H, L)
    out = out.reshape(B, H, L, D).float()
    return statistics_of_seen(bias, seen, out, logsumexp, torch.ones_like(logsumexp))


def attention_with_logsumexp(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and the logarithm of its sum of exponentials, by torch's CPU kernel. CPU tensors only.

    Args:
        query: (B, H, L, D).
        key, value: (B, H, S, D) in query's type, as many heads as query heads.
        scale: 1/√D when None.
        bias: (B, 1, L, S) in query's type, added to the scores.

    Returns:
        out (B, H, L, D) in query's type; logsumexp (B, H, L), float32.
    """
    # `F.scaled_dot_product_attention` calls the same kernel and drops the second result.
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return attend(query, key, value, attn_mask=bias, scale=scale)


def statistics_of_seen(
    bias: torch.Tensor, seen: torch.Tensor | None, o: torch.Tensor, m: torch.Tensor, l: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(o, m, l), but (0, -inf, 0) where a query sees no key: a kernel's result there is undefined, even NaN."""
    seen = torch.any(bias > -torch.inf, dim=-1) if seen is None else seen
    return torch.where(seen[..., None], o, 0), torch.where(seen, m, -torch.inf), torch.where(seen, l, 0)


def convert_from_uint4(
    words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """(q - zero) · scale for words of 4 bits along the outputs. It dequantises; it does not multiply.

    Args:
        words: (I, O / 8) int32: bits 4j to 4j + 3 of word c of a row hold its column 8c + j.
        scales: (I / group_size, O), bf16.
        zeros: (I / group_size, O / 8) int32, whole numbers from 0 to 15, packed in the same way.
        dtype: the type of the result.

    Returns:
        (I, O).
    """
    # Intel's page has the operator in lazy mode, and vLLM's plug-in calls it in compiled code: not one by one in eager.
    if words.device.type != "hpu" or not (torch.compiler.is_compiling() or detect().lazy):
        return convert_from_uint4_twin(words, scales, zeros, dtype)
    return torch.ops.hpu.convert_from_uint4(words, scales, zeros, dtype)


def convert_from_uint4_twin(
    words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    from .quantize import words_to_numbers  # this port's own, written on Day 2.2

    q = words_to_numbers(words, 4).unflatten(0, (scales.shape[0], -1))
    zeros, scales = words_to_numbers(zeros, 4).unsqueeze(1), scales.unsqueeze(1)
    return ((q - zeros) * scales).flatten(0, 1).to(dtype)


def zero_points(scales: torch.Tensor, biases: torch.Tensor) -> torch.Tensor | None:
    """The zero point of each group, for which q · scale + bias is (q - zero) · scale.

    Args:
        scales, biases: both of the same shape.

    Returns:
        Whole numbers from 0 to 15 of that shape, int32. None if some group has no such zero, to within the rounding of
        `biases`; a group whose numbers all have one sign has none.
    """
    wide, bias = scales.float(), biases.float()
    zeros = torch.round(-bias / wide)
    near = (bias + zeros * wide).abs() <= torch.finfo(biases.dtype).eps * bias.abs()
    fits = near & (zeros >= 0) & (zeros <= 15)
    return zeros.int() if fits.all() else None


def uint4_matrix(
    numbers: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, device: torch.device | str
) -> "Uint4Matrix | None":
    """Lays out a matrix for `convert_from_uint4`, on the CPU, and moves it to `device`.

    Args:
        numbers: (O, I) whole numbers from 0 to 15.
        scales, biases: (O, I / group_size).

    Returns:
        None if the matrix has no whole zeros, or O is not a multiple of 8: its words are then dequantised in the graph.
    """
    zeros = zero_points(scales, biases)
    if zeros is None or numbers.shape[0] % 8:
        return None
    words, narrow, zeros = (part.to(device) for part in uint4_parts(numbers, scales, zeros))
    return Uint4Matrix(words, narrow, zeros, (numbers.shape[0], numbers.shape[1]), scales.dtype)


def uint4_parts(
    numbers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words, scales and zeros of `convert_from_uint4`, from numbers (O, I) and scales and zeros (O, I / group_size)."""
    from .quantize import numbers_to_words  # this port's own, written on Day 2.2

    words, zero_words = (numbers_to_words(part.T, 4).view(torch.int32) for part in (numbers, zeros))
    return words, scales.T.to(torch.bfloat16).contiguous(), zero_words


@dataclass(frozen=True, eq=False)
class Uint4Matrix:
    """A matrix (O, I) as `convert_from_uint4` reads it: dequantised in the graph, then an ordinary product."""

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    shape: tuple[int, int]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes + self.zeros.nbytes

    @property
    def device(self) -> torch.device:
        return self.words.device

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x @ Wᵀ, (..., I) to (..., O), in x's type."""
        return x @ convert_from_uint4(self.words, self.scales, self.zeros, torch.bfloat16).to(x.dtype)


def mixture_of_experts(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w_gate_up: Any,
    w_down: Any,
    first: int = 0,
    multiply: Callable[..., torch.Tensor] = F.linear,
) -> torch.Tensor:
    """Each token's weighted sum of what its experts compute. Shapes do not depend on how many rows an expert has.

    Args:
        x: (T, E).
        experts, weights: (T, k), from `route`.
        w_gate_up: n matrices (2F, E); an array (n, 2F, E) on an HPU goes to Intel's operator.
        w_down: n matrices (E, F), likewise.
        first: the number of the first of these n experts; others of a token add nothing.
        multiply: x (T, I) and a matrix (O, I), of whatever kind they are, to (T, O).

    Returns:
        (T, E) in x's type.
    """
    if x.device.type != "hpu" or not isinstance(w_gate_up, torch.Tensor):
        return mixture_of_experts_twin(x, experts, weights, w_gate_up, w_down, first, multiply)
    # As in vLLM's plug-in: one matrix per expert, and the numbers of the first and the last of them.
    return torch.ops.hpu.mixture_of_experts(
        hidden_states=x,
        expert_routing_table=experts.long(),
        router_weights=weights.to(x.dtype),
        w12=list(w_gate_up.unbind()),
        w3=list(w_down.unbind()),
        permuted_weights=True,
        activation="silu",
        experts_min=first,
        experts_max=first + len(w_gate_up) - 1,
    )


def mixture_of_experts_twin(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    w_gate_up: Any,
    w_down: Any,
    first: int = 0,
    multiply: Callable[..., torch.Tensor] = F.linear,
) -> torch.Tensor:
    # Every expert computes all rows. A token that did not choose it counts 0.
    out = torch.zeros(x.shape, device=x.device)
    for expert, (w_in, w_out) in enumerate(zip(w_gate_up, w_down, strict=True), start=first):
        gate, up = multiply(x, w_in).chunk(2, dim=-1)
        share = torch.where(experts == expert, weights, 0).sum(dim=-1, keepdim=True)
        out = out + share * multiply(F.silu(gate) * up, w_out).float()
    return out.to(x.dtype)


def self_check(device: str = "hpu") -> list[tuple[str, float | str]]:
    """Compares each fused function on `device` with its twin on the CPU.

    Returns:
        (name, largest absolute difference) of each; where it fails on the device, its error in one line instead.
    """
    compiled = compile_static if device == "hpu" and not detect().lazy else None
    found: list[tuple[str, float | str]] = []
    for name, function, inputs in _self_check_cases():
        on_device = compiled(function) if compiled and name == "uint4" else function
        try:
            there = on_device(*(tensor.to(device) for tensor in inputs)).cpu()
            found.append((name, (there.float() - function(*inputs).float()).abs().max().item()))
        except (
            Exception
        ) as error:  # whatever one operator of the vendor does not take: the others are still checked
            found.append((name, f"{type(error).__name__}: {' '.join(str(error).split())}"))
    return found


def _self_check_cases() -> list[tuple[str, Callable, list[torch.Tensor]]]:
    """(name, function, inputs) of each fused function; the inputs are on the CPU."""
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)
    angles = torch.arange(5.0)[:, None] / 10 ** torch.linspace(0, 3, 64).repeat(2)
    query, key, value = normal(2, 4, 5, 128), normal(2, 2, 8, 128), normal(2, 2, 8, 128)
    past = torch.full((5, 8), -torch.inf, dtype=torch.bfloat16).triu(4)

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        return fused_attention(q, k, v, 128**-0.5, bias, is_causal)

    def statistics(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """What a merge uses: the output, and the logarithm of the sum, which does not depend on m."""
        o, m, l = fused_statistics(q, k, v, 128**-0.5, bias)
        return torch.cat([o / l[..., None], (m + l.log())[..., None]], dim=-1)

    numbers, scales = torch.arange(64 * 128).reshape(128, 64).fmod(16).int(), normal(128, 2).abs()
    words, *table = uint4_parts(numbers, scales, torch.full((128, 2), 7, dtype=torch.int32))
    return [
        ("RMSNorm", rms_norm, [normal(2, 5, 128), normal(128)]),
        ("RoPE", apply_rope, [normal(2, 5, 4, 128), angles.cos(), angles.sin()]),
        ("attention", attend, [query, key, value]),
        ("causal attention", partial(attend, is_causal=True), [query, key[:, :, :5], value[:, :, :5]]),
        ("causal attention with a past", attend, [query, key, value, past]),
        ("decode statistics", statistics, [query[:, :, :1], key, value, past[:1].float()]),
        ("mixture", mixture_of_experts, _mixture_inputs(normal)),
        ("uint4", partial(convert_from_uint4, dtype=torch.bfloat16), [words, *table]),
    ]


def _mixture_inputs(normal: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Five tokens with two of three experts each."""
    experts = torch.tensor([[0, 2], [2, 1], [1, 0], [2, 0], [0, 1]])
    return [normal(5, 64), experts, normal(5, 2).abs(), normal(3, 256, 64) / 8, normal(3, 64, 128) / 8]


detect()  # now, so that `torch.hpu` exists after this import

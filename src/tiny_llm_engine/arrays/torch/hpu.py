"""Gaudi: the only file that calls Intel's `habana_frameworks`, and the one file of this port without a twin in MLX.

Operations have a twin in PyTorch, in `fused.py`, which calls these for tensors on an HPU. Written from the public
source of the plug-in and from vLLM's Gaudi plug-in, and tested on CPUs against an imitation; not run on a Gaudi.
"""

# The plug-in, and `torch.hpu`, which it registers, exist on a Gaudi alone.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

# Set first, since the plug-in reads these when torch is imported. LAZY_MODE 0 is eager: torch.compile builds graphs.
# AUTOLOAD 0: a plug-in that does not fit would break `import torch`; detect() below loads it and catches the error.
# WEIGHT_SHARING 0: lazy mode would wrap every parameter in another class; vLLM's plug-in avoids it as well.
# LAZY_COLLECTIVES: sums over several cards can be part of an HPU graph.
# FUSER…: torch.compile's graphs are compiled on several threads, for a shorter warm-up; vLLM's plug-in sets it as well.
import os

os.environ.setdefault("PT_HPU_LAZY_MODE", "0")
os.environ.setdefault("PT_HPU_AUTOLOAD", "0")
os.environ.setdefault("PT_HPU_WEIGHT_SHARING", "0")
os.environ.setdefault("PT_HPU_ENABLE_LAZY_COLLECTIVES", "true")
if os.environ["PT_HPU_LAZY_MODE"] == "0":
    os.environ.setdefault("FUSER_ENABLE_MULTI_THREADED_INVOCATIONS", "1")

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from ...machine.user_cache import user_cache


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
        folder = user_cache() / f"gaudi-{release}"
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # no home, or none that can be written: each start compiles again
        return
    # Folder, whether to empty it at the start, its size in MiB, whether it is on a network file system.
    os.environ.setdefault("PT_HPU_RECIPE_CACHE_CONFIG", f"{folder},false,8192,false")


keep_recipes()

import torch  # noqa: E402 (after the environment)


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


def largest_fp8(device: str) -> float:
    """The largest number in e4m3: 240 on a Gaudi 2, whose uppermost exponent is for infinity and NaN; 448 elsewhere.

    After vllm-gaudi's `extension/ops.py`. Not run on a Gaudi.
    """
    return 448.0 if device != "hpu" or "3" in torch.hpu.get_device_name() else 240.0


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


def card_of_rank(local_rank: int) -> dict[str, str]:
    """The variable that names the card of one of several ranks on this machine; nothing without an HPU.

    Under torchrun the plug-in sets it from the rank. It cannot for an engine that starts its ranks itself: that process
    is rank 0 without being told so, and would take any free card, perhaps another rank's.

    Raises:
        ValueError: fewer cards are visible.
    """
    if not available():
        return {}
    visible = os.environ.get("HABANA_VISIBLE_MODULES")
    modules = visible.split(",") if visible else list(map(str, range(local_rank + 1)))
    if local_rank >= len(modules):
        raise ValueError(f"HABANA_VISIBLE_MODULES is {visible}: rank {local_rank} needs a card of its own")
    return {"HLS_MODULE_ID": modules[local_rank]}


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


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The vendor's kernel; see `fused.rms_norm`."""
    from habana_frameworks.torch.hpex.normalization import FusedRMSNorm

    # The kernel needs one type for both.
    return FusedRMSNorm.apply(x, weight.to(x.dtype), eps)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The vendor's kernel; see `fused.apply_rope`."""
    from habana_frameworks.torch.hpex.kernels import RotaryPosEmbeddingMode, apply_rotary_pos_emb

    B, L, H, D = x.shape
    cos, sin = (rows.expand(B, L, D).reshape(B * L, 1, D) for rows in (cos, sin))
    # By position: x, cos, sin, position_ids, offset, mode. The rows are gathered, so no ids and no offset.
    blockwise = RotaryPosEmbeddingMode.BLOCKWISE
    rotated = apply_rotary_pos_emb(x.reshape(B * L, H, D), cos, sin, None, 0, blockwise)
    return rotated.reshape(x.shape).to(x.dtype)


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """One call of FusedSDPA; see `fused.fused_attention`."""
    from habana_frameworks.torch.hpex.kernels import FusedSDPA

    # By position: q, k, v, mask, dropout, causal, scale, softmax mode, recompute (the flash-style kernel, which keeps
    # no score matrix; one query has no matrix to keep), valid lengths, side of the padding (the default would be left).
    options = (softmax_mode(query.dtype), query.shape[2] > 1, lengths, "right")
    return FusedSDPA.apply(query, key, value, bias, 0.0, is_causal, scale, *options)


def softmax_mode(dtype: torch.dtype) -> str:
    """The mode of the vendor's softmax: float32 for bf16 queries, whatever the model.

    vLLM's plug-in asks for it for Qwen2 and Qwen2.5-VL, whose biases make scores too large for bf16, and for "fast"
    otherwise; Qwen3 normalises queries and keys. No model is known here, and the course's exponentials and sums are
    float32 for every model. What the mode costs the other models is not known: nothing was run on a card. Known is what
    the bridge's sources do: 1.19 compares the mode with "fast" and takes its default for anything else, so that "fp32"
    changes nothing there; a later one has "fp32", for bf16 without gradients.
    """
    return "fp32" if dtype == torch.bfloat16 else "None"


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
        See `fused.fused_statistics`.
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

"""Number of KV blocks that fit: into a device's memory after a profiling run, or into a share of a CPU's free RAM."""

from collections.abc import Callable

from tiny_llm_engine.machine.ram import free_ram
from tiny_llm_engine.models.layer_weights import ModelShape
from tiny_llm_engine.solutions.backend import Backend

# On a CPU the pool shares RAM with the weights, the activations and other programs: it takes a quarter of the free RAM.
CPU_SHARE = 0.25
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SCALE_BYTES = 2  # of a row in int8


def kv_bytes_per_token(
    config: ModelShape, dtype: str, num_layers: int | None = None, kv_cache_dtype: str = "auto"
) -> int:
    """Bytes of keys and values per token, of all layers or of `num_layers`; `kv_cache_dtype`: see `EngineOptions`."""
    rows = 2 * (num_layers or config.num_hidden_layers) * config.num_key_value_heads
    if kv_cache_dtype == "auto":
        return rows * config.head_dim * BYTES[dtype]
    return rows * (config.head_dim + (SCALE_BYTES if kv_cache_dtype == "int8" else 0))


def blocks_that_fit(
    backend_module: Backend,
    device: str,
    block_bytes: int,
    most: int,
    gpu_memory_utilization: float,
    peak_bytes: Callable[[], int],
    graph_share: float = 0.0,
) -> int:
    """The number of blocks in the pool, without its pad block.

    On CUDA and in MLX: `gpu_memory_utilization` of all memory, minus what is in use (the weights) and what the largest
    step needs. On an HPU: that share of what these two leave, less a reserve for graphs, as in vLLM's plug-in (not run
    on a Gaudi). On a CPU: a quarter of the free RAM, and at most `most` blocks.

    Args:
        backend_module: `backend_mlx` or `backend_torch`.
        block_bytes: bytes of one block in all layers.
        most: number of blocks that all requests together can ever use.
        gpu_memory_utilization: share of the memory, above 0 and at most 1.
        peak_bytes: runs the largest step and returns the bytes that it needed; not called on a CPU.
        graph_share: of what an HPU has for blocks, the share that is left to its graphs.

    Raises:
        ValueError: not a single block fits.
    """
    memory = backend_module.device_memory(device)
    if memory is None:
        available, fix = CPU_SHARE * free_ram(), "give num_blocks, or end other programs"
    else:
        free, total = memory
        peak = peak_bytes()
        if device == "hpu":
            # The device may keep more after the profile than its allocator counts.
            left, _ = backend_module.device_memory(device) or memory
            available = min(free - peak, left) * gpu_memory_utilization * (1 - graph_share)
        else:
            available = gpu_memory_utilization * total - (total - free) - peak
        most, fix = (
            2**62,
            "raise gpu_memory_utilization, lower max_num_batched_tokens, or take a smaller model",
        )
    blocks = min(int(available // block_bytes) - 1, most)
    if blocks < 1:
        raise ValueError(
            f"{max(0, available) / 2**20:.0f} MiB are left for keys and values, and two blocks need "
            f"{2 * block_bytes / 2**20:.1f} MiB: {fix}"
        )
    return blocks


def check_pool(backend_module: Backend, device: str, num_blocks: int, block_bytes: int) -> None:
    """Check that a pool of this many blocks, and its pad block, is not larger than the free memory.

    Raises:
        ValueError: it is.
    """
    memory = backend_module.device_memory(device)
    free, needed = free_ram() if memory is None else memory[0], (num_blocks + 1) * block_bytes
    if needed > free:
        sizes = f"{needed / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB are free"
        raise ValueError(f"num_blocks is {num_blocks}: the pool needs {sizes}: give fewer")

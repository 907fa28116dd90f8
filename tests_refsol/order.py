"""Which files begin first in a run of all tests: those that take the processor longest.

So no core waits at the end for the last long test of another one.
"""

import pytest

FIRST = (
    "test_hpu", "test_graphs", "test_ranks", "test_llm", "test_setup_torch", "test_doctor_hpu", "test_tensor_parallel",
    "test_batch_main", "test_families", "test_quantized_model", "test_bench_chunked_prefill", "test_buckets",
    "test_lazy_chunks", "test_chunked_prefill", "test_vendor_torch", "test_doctor_command", "test_server",
    "test_learner_commands", "test_main", "test_checkpoint_memory", "test_chunk_signatures", "test_week_4_day_1",
)  # fmt: skip


def place_in_a_run(item: pytest.Item) -> int:
    """Sort key of a test; tests of one file stay together."""
    name = item.path.stem
    return FIRST.index(name) if name in FIRST else len(FIRST)

"""Which files begin first in a run of all tests: those that take the processor longest.

So no core waits at the end for the last long test of another one.
"""

import pytest

FIRST = (
    "test_learner_commands", "test_hpu", "test_llm", "test_grading", "test_speculation", "test_batch_main", "test_main",
    "test_server", "test_real_answers", "test_lab", "test_families", "test_doctor_hpu", "test_logits_processors",
    "test_setup_torch", "test_ranks", "test_server_soak", "test_tiny_model", "test_week_4_day_1", "test_policies",
    "test_lazy_chunks", "test_soak", "test_bench_chunked_prefill", "test_buckets", "test_native_part", "test_commands",
    "test_checkpoint_memory",
)  # fmt: skip


def place_in_a_run(item: pytest.Item) -> int:
    """Sort key of a test; tests of one file stay together."""
    name = item.path.stem
    return FIRST.index(name) if name in FIRST else len(FIRST)

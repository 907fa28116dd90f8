"""Which files begin first in a run of all tests: those that take the processor longest.

So no core waits at the end for the last long test of another one.
"""

import pytest

_FILES = """
    test_hpu test_learner_commands test_llm test_ranks test_native test_doctor_hpu test_setup_torch
    test_logits_processors test_main test_batch_main test_real_answers test_families test_server test_grading
    test_graphs test_tiny_model test_import_rules test_speculation test_week_4_day_1 test_buckets test_native_part
    test_lab test_book test_server_soak test_checkpoint_memory test_soak test_mixtures test_native_quantized
    test_real_model_pages test_commands
"""
FIRST = _FILES.split()


def place_in_a_run(item: pytest.Item) -> int:
    """Sort key of a test; tests of one file stay together."""
    name = item.path.stem
    return FIRST.index(name) if name in FIRST else len(FIRST)

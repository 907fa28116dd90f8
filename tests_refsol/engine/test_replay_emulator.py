"""The emulator of captured steps: the engine stays right under it, and the classic mistakes show."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from support.replay_emulator import RecordedGraph, ReplayEmulator
from tiny_llm_course.trace.serve import endless_sequence
from tiny_llm_engine.models.weights.random_weights import RandomCheckpoint, shape
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.graphs.padded_steps import warm_up
from tiny_llm_extensions.make_loop import make_loop
from tiny_llm_extensions.runners import packed_runner
from tiny_llm_ref import serving
from tiny_llm_ref.serving import BlockAllocator, make_buckets

BUDGET, ROWS, LONGEST, PAGE = 16, 4, 64, 8


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


# ---- what a capture and a replay are


def test_one_capture_serves_all_inputs_of_a_shape():
    double = ReplayEmulator(lambda x: x * 2)
    assert double(torch.ones(2)).tolist() == [2, 2]
    assert double(torch.full((2,), 5.0)).tolist() == [10, 10]
    assert double(torch.ones(3)).tolist() == [2, 2, 2]
    assert len(double.graphs) == 2


def test_no_python_runs_in_a_replay():
    seen = []
    step = ReplayEmulator(lambda x: seen.append(1) or x + 1)
    results = [step(torch.full((2,), float(i))).clone() for i in range(3)]
    assert len(seen) == 1 and [r.tolist() for r in results] == [[1, 1], [2, 2], [3, 3]]


def test_views_follow_the_arrays_that_they_look_at():
    step = ReplayEmulator(lambda x: (x + 1).view(2, 2).T[0])
    assert [step(torch.arange(4.0) + i).tolist() for i in (0, 10)] == [[1, 3], [11, 13]]


def test_memory_that_outlives_the_step_is_written_in_every_replay():
    """As the pools of keys and values are."""
    pool = torch.zeros(4)
    step = ReplayEmulator(lambda slots, x: pool.index_copy_(0, slots, x) * 1)
    for slot in (1, 3):
        step(torch.tensor([slot]), torch.tensor([float(slot)]))
    assert pool.tolist() == [0, 1, 0, 3]


# ---- the mistakes that it is for


def test_results_that_are_kept_without_a_copy_are_lost():
    step = ReplayEmulator(lambda x: x + 1)
    kept = [step(torch.full((2,), float(i))) for i in range(3)]
    assert kept[0] is kept[2] and kept[0].tolist() == [3, 3]
    step(torch.ones(3))  # another shape's graph uses the same memory
    assert kept[0].isnan().all()


def test_each_value_of_a_number_of_python_is_a_graph_and_of_an_array_is_not():
    numbers, arrays = (ReplayEmulator(lambda x, length: x * length) for _ in "ab")
    for length in range(5):
        numbers(torch.ones(2), length)
        arrays(torch.ones(2), torch.tensor(length))
    assert (len(numbers.graphs), len(arrays.graphs)) == (5, 1)


def test_none_and_an_array_are_two_graphs():
    step = ReplayEmulator(lambda x, past: x if past is None else x + past)
    assert step(torch.ones(1), None).tolist() == [1] and step(torch.ones(1), torch.ones(1)).tolist() == [2]
    assert len(step.graphs) == 2


def test_types_are_no_part_of_the_key():
    """Two arrays that differ only in their type share a graph, and the second is converted: never mix types."""
    step = ReplayEmulator(lambda x: x / 2)
    step(torch.tensor([4]))
    assert step(torch.tensor([3.5])).tolist() == [1.5] and len(step.graphs) == 1


def test_an_object_is_a_new_key_every_time():
    """A frozen dataclass with arrays in it is hashed by the identity of the arrays: give the arrays themselves."""

    @dataclass(frozen=True)
    class Metadata:
        mask: torch.Tensor

    step = ReplayEmulator(lambda x, metadata: x + metadata.mask)
    for _ in range(3):
        step(torch.ones(1), Metadata(torch.ones(1)))
    assert len(step.graphs) == 3


def test_an_array_that_the_step_reads_from_outside_is_frozen():
    outside = {"mask": torch.zeros(2)}
    step = ReplayEmulator(lambda x: x + outside["mask"])
    step(torch.ones(2))
    outside["mask"] = torch.full((2,), 100.0)
    assert step(torch.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize(
    "read", [lambda x: x[: int(x[0])], lambda x: x * x.sum().item(), lambda x: 1 if x[0] else 2]
)
def test_a_number_that_python_reads_ends_the_capture(read):
    with pytest.raises(RuntimeError, match="the host reads a number"):
        ReplayEmulator(read)(torch.ones(2))


def test_a_recorded_graph_is_not_run_before_it_is_replayed_again():
    x = torch.ones(2)
    with RecordedGraph() as graph:
        y = x + 1
    x.fill_(5)
    assert y.tolist() == [2, 2]
    graph.replay()
    assert y.tolist() == [6, 6]


# ---- the engine


class Served:
    """Requests answered by the hybrid scheduler on a small model.

    Args:
        capture: what the runner captures graphs with.
        num_blocks: few make preemptions.
    """

    def __init__(self, port, network, capture, num_blocks=8, padded=True, **options):
        self.allocator = BlockAllocator(num_blocks, PAGE, watermark=0.0)
        buckets = make_buckets("exponential", BUDGET, ROWS, LONGEST, PAGE) if padded else None
        given = {} if capture is None else {"capture": lambda step: self._keep(capture(step))}
        self.runner = packed_runner(port, network, num_blocks, PAGE, buckets=buckets, **given)
        self.kinds: list[str] = []
        self.loop = make_loop(
            serving,
            "hybrid",
            self.runner,
            self.allocator,
            max_num_batched_tokens=BUDGET,
            max_num_seqs=ROWS,
            buckets=buckets,
            on_event=lambda event: self.kinds.append(event.kind),
            **options,
        )

    def _keep(self, captured):
        self.graphs = captured.graphs
        return captured

    def answers(self, prompts):
        made = [
            endless_sequence(serving, prompt, 9, LONGEST, number) for number, prompt in enumerate(prompts)
        ]
        for sequence in made:
            self.loop.add(sequence)
        while self.loop.has_work_remaining():
            self.loop.step()
        return [list(sequence.tokens) for sequence in made]


PROMPTS = [
    *([*range(300, 320), number] for number in range(3)),  # a shared beginning of two blocks
    [7] * 30,
    [3, 1, 4, 1, 5],
    [*range(300, 316), 9, 9],
]


@pytest.fixture(scope="module")
def small():
    port = Port("tiny_llm_ref", "torch", "cpu", "float32")
    port.seed(0)
    checkpoint = RandomCheckpoint(shape("tiny-qwen3", 2), port.backend_module, "float32", "cpu")
    return port, port.Qwen3ModelWeek3(checkpoint, attention="tiled")


@pytest.mark.parametrize("mixed_steps", [True, False])
def test_the_engine_gives_the_same_answers_from_captured_steps(small, mixed_steps):
    """With preemptions, cached prefixes, and steps of chunks and decodes together."""
    plain = Served(*small, None, padded=False, mixed_steps=mixed_steps)
    captured = Served(*small, ReplayEmulator, mixed_steps=mixed_steps)
    expected = plain.answers(PROMPTS) + plain.answers(PROMPTS)
    assert captured.answers(PROMPTS) + captured.answers(PROMPTS) == expected
    assert len({tuple(answer) for answer in expected}) > 3, "the answers depend on the prompts"
    assert "preempt" in captured.kinds
    graphs = captured.graphs
    assert 1 < len(graphs) <= len(captured.runner.buckets.warm_up_list())


def test_a_warm_up_captures_every_graph_that_serving_needs(small):
    captured = Served(*small, ReplayEmulator)
    warm_up(captured.runner)
    graphs = captured.graphs
    listed = len(captured.runner.buckets.warm_up_list())
    assert len(graphs) == listed
    captured.answers(PROMPTS)
    assert len(graphs) == listed


def test_logits_that_tests_keep_are_copies(small):
    port, network = small
    kept = []
    served = Served(port, network, ReplayEmulator)
    served.runner.on_logits = lambda rows, logits: kept.append(logits)
    served.answers(PROMPTS[:2])
    assert len(kept) > 2 and all(np.isfinite(logits).all() for logits in kept)

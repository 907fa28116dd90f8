"""What an accelerator cannot show here: the torch port's sampler reads nothing back, and a step reads one number."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tiny_llm_engine.solutions.solution import resolve

READ = torch.ops.aten._local_scalar_dense.default  # what .item(), int(t) and bool(t) end in


class Reads(TorchDispatchMode):
    """Counts the numbers that travel to Python."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is READ
        return function(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def port():
    return resolve("tiny_llm_ref", "torch")


@pytest.mark.parametrize("temp", [0, 0.7])
@pytest.mark.parametrize(("top_p", "top_k"), [(None, None), (0.9, None), (None, 5), (0.9, 5), (0.9, 500)])
def test_the_sampler_needs_no_number_and_every_shape_is_known_before(port, temp, top_p, top_k):
    """On the meta device there are shapes and no numbers: a host read, or a shape that depends on a number, raises."""
    logits = torch.empty(3, 40, dtype=torch.bfloat16, device="meta")
    assert port.make_sampler(temp, top_p, top_k)(logits).shape == (3,)


@pytest.mark.parametrize("greedy", [True, False])
def test_a_step_reads_one_number(port, greedy):
    sampler = None if greedy else port.make_sampler(0.7, 0.9, 5)
    scores = torch.randn(1, 4, 40)
    with Reads() as reads:
        port.generate.next_token(lambda inputs: scores, [1, 2, 3, 4], sampler)
    assert reads.count == 1

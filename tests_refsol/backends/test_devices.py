"""The torch port keeps everything on the model's device: proved on `meta`, where mixing devices raises.

No accelerator is needed, and none is imitated: torch itself refuses an operator whose inputs live on two devices. The
one value that may travel is the token id at the end of a step, and reading it from `meta` raises as well.
"""

import pytest
import torch

from tiny_llm_course.grading.small_models import CASES, random_weights
from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.solutions.solution import resolve


@pytest.fixture
def model():
    case = CASES["untied-3"]
    weights = {name: torch.tensor(w, device="meta") for name, w in random_weights(case).items()}
    return resolve("ref", "torch").Qwen3ModelWeek1(Checkpoint(case.config, weights))


def test_the_model_takes_ids_from_the_host_and_stays_on_its_device(model):
    logits = model(torch.tensor([[1, 2, 3]]))
    assert (logits.device.type, logits.shape) == ("meta", (1, 3, 53))


@pytest.mark.parametrize("options", [(0.0, None, None), (1.0, None, None), (0.7, 0.9, 5)])
def test_the_sampler_stays_on_the_device_and_reads_nothing(options):
    ids = resolve("ref", "torch").make_sampler(*options)(torch.zeros((4, 50), device="meta"))
    assert (ids.device.type, ids.shape) == ("meta", (4,))


def test_a_step_reads_one_number_and_that_at_its_end(model):
    """`next_token` gets as far as the read of the chosen id, which `meta` cannot answer."""
    with pytest.raises(RuntimeError, match=r"item\(\) cannot be called on meta"):
        resolve("ref", "torch").generate.next_token(model, [1, 2, 3])


def test_meta_does_see_a_mixed_operator():
    with pytest.raises(RuntimeError, match="meta"):
        torch.zeros(2, device="meta") + torch.zeros(2)

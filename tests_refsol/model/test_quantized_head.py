"""A head in few bits: from which matrix it is made, and which heads are refused."""

from dataclasses import replace

import pytest

from tiny_llm_engine.models.output_head import HEAD, QuantizedHead
from tiny_llm_engine.models.quantization import EMBEDDING, WeightQuantizer
from tiny_llm_engine.models.weights.random_weights import RandomCheckpoint, shape


def checkpoint(b, **changes) -> RandomCheckpoint:
    config = replace(shape("tiny-qwen3", 1), vocab_size=96, **changes)
    return RandomCheckpoint(config, b.backend_module, "float32", b.device)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_head_is_a_copy_of_the_table_or_the_head_itself(b, is_tied, bits):
    plain = checkpoint(b, tie_word_embeddings=is_tied)
    made = QuantizedHead(plain, WeightQuantizer(b, bits))
    sizes = 96, plain.config.hidden_size
    head, table = made.weight(HEAD, *sizes), made.weight(EMBEDDING, *sizes)
    source = plain.weight(EMBEDDING if is_tied else HEAD, *sizes)
    assert (head.bits, tuple(head.shape)) == (bits, sizes) and not made.config.tie_word_embeddings
    assert table is plain.weight(EMBEDDING, *sizes)
    x = b.array([[1.0] + [0.0] * (sizes[1] - 1)])  # gives the first column
    error = abs(b.numpy(b.quantized_linear(x, head))[0] - b.numpy(source)[:, 0]).max()
    assert 0 < error < 0.02, "of numbers with a deviation of 0.02; the other matrix would be off by more"


def test_a_head_that_cannot_be_quantized_is_refused(b):
    quantizer = WeightQuantizer(b, 4)
    with pytest.raises(ValueError, match="rows of a multiple of 32 numbers, and has 40: leave"):
        QuantizedHead(checkpoint(b), quantizer).weight(HEAD, 96, 40)
    once = QuantizedHead(checkpoint(b), WeightQuantizer(b, 8))
    with pytest.raises(ValueError, match="the head has 8 bits already"):
        QuantizedHead(once, quantizer).weight(HEAD, 96, once.config.hidden_size)

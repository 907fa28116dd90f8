"""torch's int4 kernel behind quantised weights: where it is used, and what CUDA's would be given (not run on CUDA)."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tiny_llm_engine.arrays.torch import int4
from tiny_llm_ref.torch_backend import prepare_weights, quantize_matrix, quantized_linear, words_to_numbers
from tiny_llm_ref.torch_backend.quantized_weights import kernel_constants


def quantized(rows: int = 40, columns: int = 256, bits: int = 4):
    generator = torch.Generator().manual_seed(rows + columns)
    return quantize_matrix(torch.randn(rows, columns, generator=generator), 64, bits)


def laid_out(w) -> int4.Int4Matrix:
    table = kernel_constants(w.scales, w.biases, torch.bfloat16)
    return int4.Int4Matrix.of(words_to_numbers(w.weight, 4), table, w.group_size, w.dtype, "cpu")


def test_a_cpu_with_vectors_uses_the_kernel_and_others_their_tiles(monkeypatch):
    for capability, has_kernel in (("AVX512", True), ("AVX2", True), ("DEFAULT", False), ("NO AVX", False)):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda c=capability: c)
        assert (prepare_weights(quantized()).prepared is not None) == has_kernel, capability
        assert prepare_weights(quantized(bits=8)).prepared is None
        assert quantized_linear(torch.ones(2, 256), prepare_weights(quantized())).shape == (2, 40)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
def test_rows_are_padded_to_what_the_kernel_takes(rows):
    matrix = laid_out(quantized(rows))
    assert matrix.words.shape[0] % 16 == 0 and matrix.shape == (rows, 256)
    assert matrix(torch.ones(3, 256)).shape == (3, rows)


@pytest.mark.parametrize("columns", [64, 256])
def test_cuda_is_given_pairs_of_numbers_the_first_one_high(monkeypatch, columns):
    """The call that lays out for CUDA, seen from outside: uint8 (O, I / 2), and blocks that divide the columns."""
    calls = []
    monkeypatch.setattr(torch, "_convert_weight_to_int4pack", lambda *call: calls.append(call) or call[0])
    monkeypatch.setattr(int4, "_on_cuda", lambda tensor: True)
    w = quantized(columns=columns)
    matrix = laid_out(w)
    ((pairs, blocks),) = calls
    numbers = words_to_numbers(w.weight, 4).numpy()
    expected = np.zeros((48, columns // 2), np.uint8)
    expected[:40] = numbers[:, ::2] * 16 + numbers[:, 1::2]
    assert pairs.dtype == torch.uint8 and blocks in (2, 4, 8) and columns % (16 * blocks) == 0
    np.testing.assert_array_equal(pairs.numpy(), expected)
    assert matrix.table.shape == (columns // 64, 48, 2) and matrix.table.dtype == torch.bfloat16


@pytest.mark.parametrize("columns", [64, 256])
def test_cudas_operators_accept_these_shapes(columns):
    """torch's own shape functions of the CUDA operators, on tensors without data that say they are on CUDA."""
    with FakeTensorMode():
        pairs = torch.empty(48, columns // 2, dtype=torch.uint8, device="cuda")
        words = torch._convert_weight_to_int4pack(pairs, 8 if columns % 128 == 0 else 2)
        table = torch.empty(columns // 64, 48, 2, dtype=torch.bfloat16, device="cuda")
        x = torch.empty(3, columns, dtype=torch.bfloat16, device="cuda")
        assert torch._weight_int4pack_mm(x, words, 64, table).shape == (3, 48)


@pytest.mark.parametrize("bits", [4, 8])
def test_words_stay_on_their_device_and_nothing_is_read(bits):
    """On `meta` every read of a value raises, and so does an operator whose inputs live on two devices."""
    w = prepare_weights(quantized(bits=bits), device="meta")
    assert w.prepared is None and w.device.type == "meta"
    assert quantized_linear(torch.ones(3, 256, device="meta"), w).device.type == "meta"

"""What loading costs in memory, measured in a process of its own. Linux only."""

import json
import struct
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tiny_llm_engine.machine.installation import installed_backends

MEGABYTE = 2**20
TENSORS = 20


def write_zeros(file: Path, dtype: str, megabytes: int) -> None:
    """A safetensors file of zeros, with a hole for the data: it takes no space on the disk."""
    each = megabytes * MEGABYTE // TENSORS
    shape = [each // 1024 // {"F32": 4, "BF16": 2}[dtype], 1024]
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(TENSORS)]
    entry, places = {"dtype": dtype, "shape": shape}, [[i * each, (i + 1) * each] for i in range(TENSORS)]
    entries = {name: {**entry, "data_offsets": place} for name, place in zip(names, places, strict=True)}
    header = json.dumps(entries).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + megabytes * MEGABYTE)


@pytest.fixture
def peak_of_loading(forks, edit):
    """A function for the megabytes of anonymous memory that loading adds at its highest."""
    edit("config.json", num_hidden_layers=TENSORS)

    def peak(folder: Path, backend: str, dtype: str, *bits: str) -> float:
        done = forks.run("tests_refsol.model.peak_of_loading", str(folder), backend, dtype, *bits)
        assert done.returncode == 0, done.stderr
        return int(done.stdout) / MEGABYTE

    return peak


if sys.platform == "linux":

    @pytest.mark.parametrize("backend", installed_backends())
    def test_a_converted_checkpoint_is_in_memory_once(folder, peak_of_loading, backend):
        write_zeros(folder / "model.safetensors", "BF16", 100)
        peak = peak_of_loading(folder, backend, "float32")
        print(f"{peak:.0f} MB")
        assert 195 < peak < 1.2 * 200

    @pytest.mark.parametrize("backend", installed_backends())
    def test_a_checkpoint_in_its_own_type_is_not_copied(folder, peak_of_loading, backend):
        write_zeros(folder / "model.safetensors", "F32", 200)
        peak = peak_of_loading(folder, backend, "float32")
        print(f"{peak:.0f} MB")
        # torch leaves it in the mapped file; MLX reads it into its own memory.
        assert peak < {"torch": 20, "mlx": 1.1 * 200}[backend]

    @pytest.mark.parametrize("backend", installed_backends())
    def test_quantizing_dequantises_one_matrix_at_a_time(folder, peak_of_loading, backend):
        """100 MB in bf16 become 31 MB; beside them one matrix takes 4 bytes a number for a moment: 10 MB."""
        write_zeros(folder / "model.safetensors", "BF16", 100)
        peak = peak_of_loading(folder, backend, "bfloat16", "4")
        print(f"{peak:.0f} MB")
        assert 30 < peak < 31 + 5 * 10


@pytest.mark.port("torch")
def test_a_vector_does_not_keep_its_file_in_memory(tmp_path):
    """Norms stay when a kernel has packed the matrices; a part of the mapped file would keep all of it."""
    import torch
    from safetensors.torch import save_file

    save_file({"norm": torch.ones(3), "matrix": torch.ones(500, 4)}, tmp_path / "model.safetensors")
    stored = import_module("tiny_llm_engine.backends.backend_torch").open_safetensors(
        tmp_path / "model.safetensors"
    )
    assert stored["norm"].untyped_storage().nbytes() == stored["norm"].nbytes

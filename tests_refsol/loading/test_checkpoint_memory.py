"""What loading costs in memory, measured in a process of its own. Linux only: it reads /proc."""

import json
import os
import struct
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tiny_llm_kit.engine.port import installed_backends

MEGABYTE = 2**20
TENSORS = 20
# Anonymous memory is what the process itself holds; pages of the mapped file can be dropped at any time.
# A thread samples it every millisecond, as a peak is over when loading ends.
PROGRAM = """
import sys, threading, time
from tiny_llm_kit.engine.loading import load_checkpoint
from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.model.quantization import WeightQuantizer

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

def sample():
    while not done.is_set():
        samples.append(anonymous())
        time.sleep(0.001)

folder, backend, dtype, *bits = sys.argv[1:]
port = Port("ref", backend, "cpu")
quantizer = WeightQuantizer(port, int(bits[0])) if bits else None
samples, done = [anonymous()], threading.Event()
sampler = threading.Thread(target=sample)
sampler.start()
checkpoint = load_checkpoint(folder, backend, device="cpu", dtype=dtype, quantizer=quantizer)
samples.append(anonymous())
done.set()
sampler.join()
print(max(samples) - samples[0])
"""


def write_zeros(file: Path, dtype: str, megabytes: int) -> None:
    """A safetensors file of zeros, with a hole for the data: it takes no space on the disk."""
    each = megabytes * MEGABYTE // TENSORS
    shape = [each // 1024 // {"F32": 4, "BF16": 2}[dtype], 1024]
    entries = {
        f"model.layers.{i}.mlp.up_proj.weight": {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [i * each, (i + 1) * each],
        }
        for i in range(TENSORS)
    }
    header = json.dumps(entries).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + megabytes * MEGABYTE)


def peak_of_loading(folder: Path, backend: str, dtype: str, *bits: str) -> float:
    """Megabytes of anonymous memory that loading adds at its highest."""
    command = [sys.executable, "-c", PROGRAM, str(folder), backend, dtype, *bits]
    # Otherwise glibc keeps freed arrays for later, and what is held depends on the order of many small steps.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    return (
        int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
        / MEGABYTE
    )


if sys.platform == "linux":

    @pytest.mark.parametrize("backend", installed_backends())
    def test_a_converted_checkpoint_is_in_memory_once(folder, backend):
        write_zeros(folder / "model.safetensors", "BF16", 100)
        peak = peak_of_loading(folder, backend, "float32")
        print(f"{peak:.0f} MB")
        assert 195 < peak < 1.2 * 200

    @pytest.mark.parametrize("backend", installed_backends())
    def test_a_checkpoint_in_its_own_type_is_not_copied(folder, backend):
        write_zeros(folder / "model.safetensors", "F32", 200)
        peak = peak_of_loading(folder, backend, "float32")
        print(f"{peak:.0f} MB")
        # torch leaves it in the mapped file; MLX reads it into its own memory.
        assert peak < {"torch": 20, "mlx": 1.1 * 200}[backend]

    @pytest.mark.parametrize("backend", installed_backends())
    def test_quantizing_dequantises_one_matrix_at_a_time(folder, backend):
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
    stored = import_module("tiny_llm_kit.engine.backends.backend_torch").open_safetensors(
        tmp_path / "model.safetensors"
    )
    assert stored["norm"].untyped_storage().nbytes() == stored["norm"].nbytes

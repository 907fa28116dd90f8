"""Random damage to safetensors headers: an error line or a correct read, never a crash or a large allocation."""

import json
import struct
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.safetensors_folder import read_header

fuzz = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def damage(content: bytes, flips: list[tuple[int, int]]) -> bytes:
    """Overwrites bytes of the length and of the header."""
    end = 8 + int.from_bytes(content[:8], "little")
    damaged = bytearray(content)
    for position, byte in flips:
        damaged[position % end] = byte
    return bytes(damaged)


def load(folder, backend: str) -> int:
    """The number of tensors read, or 0 for a refusal; anything but a `CheckpointError` is let through."""
    try:
        return len(load_checkpoint(folder, backend, device="cpu").weights)
    except CheckpointError as error:
        assert len(str(error).splitlines()) == 1
        return 0


FLIPS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4)


@pytest.mark.parametrize("backend", installed_backends())
@fuzz
@given(flips=FLIPS)
def test_flipped_bytes(folder, backend, flips):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    # A new file each time: torch keeps the pages of the old one mapped.
    file.unlink()
    file.write_bytes(damage(whole, flips))
    try:
        # One, if a name is that of no weight now: a model would miss it.
        assert load(folder, backend) in (0, 1, 2)
    finally:
        file.unlink()
        file.write_bytes(whole)


NUMBERS = st.integers(-2, 50_000) | st.sampled_from([2**31, 2**32, 2**63, 2**64, 10**300]) | st.just(1.5)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F16", "U32", "I64", "F8_E4M3", "F4", "C64", "", None]),
        "shape": st.lists(NUMBERS, max_size=9) | st.just(None),
        "data_offsets": st.lists(NUMBERS, min_size=1, max_size=3) | st.text(),
    }
)


@pytest.mark.parametrize("backend", installed_backends())
@fuzz
@given(entries=st.dictionaries(st.text(), ENTRIES, min_size=1, max_size=3), length=NUMBERS)
def test_headers_that_promise_anything(folder, backend, entries, length):
    header = json.dumps(entries).encode()
    # Half of them with the true length, so that the reader comes as far as the entries.
    promised = len(header) if length < 25_000 else int(length) % 2**64
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", promised) + header + bytes(64))
    load(folder, backend)


@pytest.mark.parametrize("backend", installed_backends())
def test_of_two_equal_names_the_checked_one_is_read(folder, backend):
    """Readers of JSON may differ on which of two equal keys counts. The library and both ports take the last."""
    other = '"model.norm.weight":{"dtype":"F16","shape":[2,16],"data_offsets":[40960,41024]},'
    file = folder / "model.safetensors"
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = b"{" + other.encode() + content[9:end]
    file.write_bytes(struct.pack("<Q", len(header)) + header + content[end:])
    assert read_header(file)["model.norm.weight"].shape == (32,)
    assert load_checkpoint(folder, backend, device="cpu").weight("model.norm.weight", 32).shape == (32,)


def test_a_promised_size_is_not_allocated(tmp_path):
    file = tmp_path / "model.safetensors"
    entry = {"dtype": "F32", "shape": [2**30, 2**10], "data_offsets": [0, 2**42]}
    header = json.dumps({"model.norm.weight": entry}).encode()
    for promised in (len(header), 2**33, 2**63):
        file.write_bytes(struct.pack("<Q", promised) + header)
        tracemalloc.start()
        with pytest.raises(CheckpointError, match="broken, or not safetensors"):
            read_header(file)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000

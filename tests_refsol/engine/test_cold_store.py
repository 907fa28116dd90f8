"""An engine that keeps blocks outside its pool gives the same answers, whatever happens to its memory and files."""

import errno
import os
import random
import threading
import time
from pathlib import Path

import pytest

from support.cold import FakeFolder
from tiny_llm_extensions.cold_blocks import block_folder, cold_store
from tiny_llm_extensions.cold_blocks.block_folder import BlockFolder
from tiny_llm_extensions.cold_blocks.moves import BlockCosts
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.open_engine import open_engine
from tiny_llm_ref import SamplingParams

RANDOM = random.Random(4)
PROMPTS = [[RANDOM.randrange(5, 400) for _ in range(50 + 9 * i)] for i in range(3)]
SMALL = {"num_blocks": 14, "block_size": 8, "max_num_seqs": 2}
SMALL |= {"max_num_batched_tokens": 64, "max_model_len": 110}
ROOMY = {**SMALL, "num_blocks": 200}
BLOCKS = 60  # of the prompts and their answers
WAYS = {
    "memory": {"kv_offloading_size": 1.0},
    "memory, of int8": {"kv_offloading_size": 1.0, "kv_cache_dtype": "int8"},
    "ahead": {"kv_offloading_size": 1.0, "async_scheduling": True},
    "buckets": {"kv_offloading_size": 1.0, "bucketing_strategy": "linear"},
}


@pytest.fixture(scope="module")
def expected(b, whole):
    """By the type of pages the answers of an engine with room, and the rows that it computes."""
    engines = {kind: EngineOptions(**ROOMY, kv_cache_dtype=kind) for kind in ("auto", "int8")}
    return {kind: closed(open_engine(b, *whole, options)) for kind, options in engines.items()}


@pytest.fixture
def engine(b, whole, monkeypatch):
    """Opens an engine in which a GiB is the memory of this many blocks, and copies cost nothing."""
    monkeypatch.setattr(
        BlockCosts, "observe", lambda *costs: None
    )  # on a busy machine computing may cost less
    block_bytes = SMALL["block_size"] * 2 * 2 * whole[0].config.num_key_value_heads * whole[0].config.head_dim
    block_bytes *= 4 if b.float_dtype == "float32" else 2
    monkeypatch.setattr(cold_store, "GIB", BLOCKS * block_bytes)

    def opened(model="a model", **options):
        return open_engine(b, *whole, EngineOptions(**{**SMALL, **options}), model=model)

    return opened


def turns(engine, count=2):
    """The answers of conversations that return, and the rows that were computed for them."""
    answers = []
    for turn in range(count):
        prompts, params = [[*each, *[9 + turn] * turn] for each in PROMPTS], SamplingParams(max_tokens=4)
        requests = [engine.request(None, prompt, params) for prompt in prompts]
        engine.run(requests)
        answers += [list(request.sequences[0].tokens) for request in requests]
    assert engine.allocator.num_free == engine.allocator.num_blocks
    return answers, engine.runner.computed_tokens


def closed(engine, count=2):
    try:
        return turns(engine, count)
    finally:
        engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_those_of_a_roomy_pool(engine, expected, way):
    answers, least = expected[WAYS[way].get("kv_cache_dtype", "auto")]
    found, computed = closed(engine(**WAYS[way]))
    assert found == answers
    assert computed < 1.3 * least or way == "buckets", (least, computed)


def test_the_next_engine_finds_the_blocks_in_the_folder(engine, expected, tmp_path):
    options = {"kv_offloading_folder": str(tmp_path), "kv_offloading_folder_size": 1.0}
    answers, computed = closed(engine(**options))
    again, few = closed(engine(**options))
    assert again == answers == expected["auto"][0] and few < computed / 2
    other, many = closed(engine("another model", **options))
    assert other == answers and many == computed, "the blocks of another model are never read"


def test_memory_and_folder_hold_no_more_than_they_were_given(engine, expected, tmp_path):
    options = {"kv_offloading_folder": str(tmp_path), "kv_offloading_folder_size": 0.2}
    options["kv_offloading_size"] = 0.1
    assert closed(engine(**options))[0] == expected["auto"][0]
    assert {folder.stat().st_mode & 0o777 for folder in tmp_path.iterdir()} == {0o700}
    assert 0.1 * BLOCKS < len([*tmp_path.rglob("*.kv")]) <= 0.2 * BLOCKS
    engine(**{**options, "kv_offloading_folder_size": 0.1}).close()
    assert len([*tmp_path.rglob("*.kv")]) == 0.1 * BLOCKS


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def swap(file: Path) -> None:
    file.write_bytes(next(other for other in file.parent.iterdir() if other != file).read_bytes())


def test_a_damaged_file_is_computed_again(engine, expected, tmp_path, caplog):
    options = {"kv_offloading_folder": str(tmp_path)}
    answers, _ = closed(engine(**options))
    opened = engine(**options)
    for number, file in enumerate(sorted(tmp_path.rglob("*.kv"))):
        (cut, flip, swap, Path.unlink)[number % 4](file)
    assert closed(opened)[0] == answers == expected["auto"][0]
    assert "was damaged: it is deleted, and its tokens are computed again" in caplog.text


def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_once_and_drops_blocks(engine, expected, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Path, "replace", full)
    assert closed(engine(kv_offloading_folder=str(tmp_path)))[0] == expected["auto"][0]
    [said] = caplog.messages
    assert said.endswith("any more: No space left on device") and not [*tmp_path.rglob("*.*")]


def test_blocks_that_wait_for_a_full_disk_say_nothing_more(tmp_path, monkeypatch, caplog):
    folder, can_go_on = BlockFolder(tmp_path, "m", 8), threading.Event()

    folder._worker.submit(can_go_on.wait)  # all three are begun before the first one fails
    monkeypatch.setattr(Path, "replace", full)
    for letter in (b"a", b"b", b"c"):
        folder.write(letter * 32, memoryview(b"01234567"))
    can_go_on.set()
    folder.close()
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("copy", ["save", "restore"])
def test_a_text_whose_copy_fails_is_computed(engine, expected, monkeypatch, caplog, copy, ahead):
    """A step after it may read the block that it was to fill, also one that was submitted already."""
    opened = engine(kv_offloading_size=1.0, async_scheduling=ahead)
    monkeypatch.setattr(type(opened.extensions["cold"].pages), copy, full)
    assert turns(opened)[0] == expected["auto"][0]
    assert "No space left on device" in caplog.text
    monkeypatch.undo()
    assert turns(opened)[0] == expected["auto"][0]
    assert opened.extensions["cold"].copied["memory", "pool"] > 0
    opened.close()


@pytest.mark.parametrize("ahead", [False, True])
def test_requests_with_one_beginning_read_it_from_the_folder_once(engine, expected, tmp_path, ahead):
    options = {"kv_offloading_folder": str(tmp_path), "async_scheduling": ahead}
    closed(engine(**options), 1)
    opened = engine(**options)
    requests = [opened.request(None, [*PROMPTS[0], 9, each], SamplingParams(max_tokens=4)) for each in (7, 7)]
    opened.run(requests)
    one, other = (list(request.sequences[0].tokens) for request in requests)
    assert (
        one == other
        and opened.extensions["cold"].copied["folder", "pool"] == len(PROMPTS[0]) // SMALL["block_size"]
    )
    assert closed(opened)[0] == expected["auto"][0]


def test_two_engines_share_a_folder(engine, expected, tmp_path):
    options = {"kv_offloading_folder": str(tmp_path), "kv_offloading_folder_size": 0.3}
    one, two = engine(**options), engine(**options)
    assert turns(one)[0] == turns(two)[0] == turns(one)[0] == expected["auto"][0]
    one.close()
    two.close()


def test_what_a_killed_process_has_begun_is_no_block(tmp_path):
    old, new = (
        tmp_path / "m" / f"{name * 64}.1{suffix}" for name, suffix in (("a", ".part"), ("b", ".part"))
    )
    old.parent.mkdir()
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (time.time() - 3600,) * 2)
    folder = BlockFolder(tmp_path, "m", 8)
    assert folder.digests() == [] and not old.exists() and new.exists(), "another engine may be writing"
    folder.write(b"t" * 32, memoryview(b"01234567"))
    folder.fetch(b"t" * 32)
    while folder.fetched(b"t" * 32) is None:
        folder.wait()
    assert folder.take(b"t" * 32) == b"01234567" and folder.digests() == [b"t" * 32]
    folder.close()


def test_quantised_blocks_come_back_rounded(engine, expected):
    opened = engine(num_quantized_blocks=BLOCKS, kv_offloading_size=0.2)
    found, computed = turns(opened)
    copied = opened.extensions["cold"].copied
    assert min(copied["pool", "quantized"], copied["quantized", "pool"]) > 0
    assert computed < 1.3 * expected["auto"][1]
    count = len(PROMPTS)
    assert found[:count] == expected["auto"][0][:count], "nothing has come back before the second turn"
    opened.close()


def test_reset_forgets_blocks_everywhere(engine, tmp_path):
    opened = engine(kv_offloading_folder=str(tmp_path), kv_offloading_size=0.1)
    _, first = turns(opened, 1)
    opened.reset_prefix_cache()
    _, both = turns(opened, 1)
    assert both == 2 * first
    opened.close()


IN_PARTS = {"kv_offloading_size": 1, "tensor_parallel_size": 2}
QUANTIZED = {"num_quantized_blocks": 3, "kv_cache_dtype": "int8"}
WRONG = [
    ({"kv_offloading_size": -1}, "kv_offloading_size is -1: give at least 0"),
    ({"kv_offloading_size": 1, "enable_prefix_caching": False}, "what is put away are cached blocks"),
    (IN_PARTS, "blocks of several ranks cannot be put away yet"),
    (QUANTIZED, "num_quantized_blocks and kv_cache_dtype: all blocks are quantised already"),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_wrong_options_are_one_line(options, words):
    with pytest.raises(ValueError, match=words):
        EngineOptions(**options)


def test_what_the_machine_does_not_have_is_one_line(engine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"kv_offloading_size is 1e\+08 GiB, and .* GiB are free: give less"):
        engine(kv_offloading_size=1e8)
    with pytest.raises(ValueError, match="give a folder that can be written"):
        engine(kv_offloading_folder=str(tmp_path / "file"))
    with pytest.raises(ValueError, match="for models that are loaded by their name"):
        engine(None, kv_offloading_folder=str(tmp_path))


def test_a_models_name_depends_on_its_weights_and_what_rounds(b, two_layers, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in Path(two_layers).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    options = {"backend": b.name, "solution": "tiny_llm_ref", **SMALL}
    options["kv_offloading_folder"] = str(tmp_path / "kv")

    def name(**more):
        with LLM(folder, **{**options, **more}) as llm:
            return llm.engine.extensions.get("cold").folder.path.name

    first = name()
    assert name(max_num_seqs=3) == first != name(kv_cache_dtype="int8")
    weights = next(folder.glob("*.safetensors"))
    flip(weights)
    assert name() != first


def folder_with(digest: bytes, path: Path) -> BlockFolder:
    folder = BlockFolder(path, "m", len(digest))
    folder.write(digest, memoryview(digest))
    return folder


@pytest.mark.parametrize(
    "make", [folder_with, lambda there, path: FakeFolder(1, lambda digest: digest != there)]
)
def test_a_reader_gives_each_block_once_to_the_copy_that_was_planned(make, tmp_path, monkeypatch):
    """The contract of `BlockReader`, of the folder and of the tests' fake."""
    monkeypatch.setattr(block_folder, "MOST_READS", 1)
    there, lost = b"t" * 32, b"l" * 32
    reader = make(there, tmp_path)

    def answer(digest):
        while (found := reader.fetched(digest)) is None:
            reader.wait()
        return found

    assert reader.fetched(there) is None, "a block was read that nobody has asked for"
    reader.fetch(there)
    reader.fetch(there)
    assert answer(there) is True and reader.fetched(there) is None, "a block was given for two copies"
    for other in (lost, b"o" * 32):
        reader.fetch(other)
        assert answer(other) is False
    assert reader.take(there) == there, "a block whose copy is planned was dropped for another one"
    assert reader.take(there) == there, "the second of two copies finds nothing"
    with pytest.raises(OSError, match="cannot be read any more"):
        reader.take(lost)

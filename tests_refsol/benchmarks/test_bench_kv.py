"""`pdm run bench-kv`: every case in turns, bytes of a token, where blocks come from, tables worked out by hand."""

import io
import json
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks import kv_pages, kv_pages_report, reports, returning
from tiny_llm_kit.trace import provenance

PROVENANCE = {
    "machine": {"system": "Linux", "processor": "P", "cores": 2}, "versions": {}, "date": "today",
    "device": "cuda, NVIDIA H200",
}  # fmt: skip


def test_a_run_times_every_way_in_every_case(b, tmp_path):
    file = tmp_path / "kv.json"
    sizes = "--model tiny-qwen3 --batch-size 1 2 --input-len 3 130 --output-len 2 --rounds 2 --threads 1"
    kv_pages.main([*sizes.split(), "--backend", b.name, "--dtype", "float32", "--json", str(file)])
    result = json.loads(file.read_text())
    assert [(case["rows"], case["context"]) for case in result["cases"]] == [
        (1, 3), (1, 130), (2, 3), (2, 130),
    ]  # fmt: skip
    for case in result["cases"]:
        assert list(case["seconds"]) == ["auto", "int8", "fp8_e4m3"]
        assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in case["seconds"].values())
    plain, int8, fp8 = result["token_bytes"].values()
    assert plain == 4 * fp8 and fp8 < int8 < plain


def test_the_table_has_tokens_per_second_and_ratios():
    result = {
        "backend": "torch",
        "plan": {"model": "m", "dtype": "float32", "rounds": 3, "threads": 2},
        "provenance": PROVENANCE,
        "token_bytes": {"auto": 2000, "int8": 510},
        "cases": [{"rows": 4, "context": 1000, "seconds": {"auto": [0.5, 0.1, 0.2], "int8": [0.1] * 3}}],
    }  # fmt: skip
    written = io.StringIO()
    kv_pages_report.show(Console(file=written, width=100), result)
    assert " ".join(written.getvalue().splitlines()[-1].split()) == "4 × 1,000 20.0 40.0 2.00 × 8"


def test_a_conversation_returns_from_every_level(b, tmp_path):
    file = tmp_path / "kv.json"
    sizes = "--returning --model tiny-qwen3 --input-len 300 --rounds 1 --threads 1 --dtype float32"
    kv_pages.main([*sizes.split(), "--backend", b.name, "--folder", str(tmp_path), "--json", str(file)])
    result = json.loads(file.read_text())
    computed, _, *copied = result["samples"]
    expected = result["samples"][computed][0]["alone"]["answer"]
    for name, samples in result["samples"].items():
        for sample in samples:
            for case in ("alone", "beside"):
                assert sample[case]["cached"] == (0 if name == computed else 256)
                assert sample[case]["answer"] == expected or "int8" in name
            assert sample["beside"]["gap"] > 0 and sample["beside"]["usual"] > 0
            assert (sample["block"] is not None) == (name in copied) == bool(result["block_bytes"][name])
    assert result["block_bytes"]["memory"] == result["block_bytes"]["disk, cached"]
    assert 3 * result["block_bytes"]["int8, memory"] < result["block_bytes"]["memory"]
    assert list(tmp_path.iterdir()) == [file]  # the folders are gone


def test_a_victims_longest_gap_is_one_while_the_conversation_returns():
    times = [0.0, 9.0, 10.0, 12.0, 15.0, 25.0]
    assert returning.gaps(times, arrival=10.0, ttft=4.0) == {"gap": 3.0, "usual": 5.0}


def test_a_short_conversation_has_no_block():
    with pytest.raises(ValueError, match="--input-len 128: give more than a block of 128 tokens"):
        returning.measure(returning.ReturningPlan(input_len=128), None, print)  # pyright: ignore


def test_the_table_of_returns_has_times_copies_and_answers():
    def sample(ttft, block, answer, cached=0):
        case = {"ttft": ttft, "cached": cached, "answer": answer}
        return {"alone": case, "beside": {**case, "gap": 0.05, "usual": 0.02}, "block": block}

    result = {
        "kind": "kv-returning",
        "backend": "torch",
        "plan": {"model": "m", "dtype": "float32", "rounds": 3, "threads": 2, "input_len": 4000},
        "provenance": PROVENANCE,
        "block_size": 128,
        "block_bytes": {"computed": 0, "memory": 6_000_000},
        "samples": {
            "computed": [sample(seconds, None, [1, 2]) for seconds in (9.0, 2.0, 1.0)],
            "memory": [sample(0.1, seconds, [1, n], 1280) for n, seconds in enumerate((0.004, 0.003, 0.001))],
        },
    }
    written = io.StringIO()
    reports.show(Console(file=written, width=100), result)
    lines = [" ".join(line.split()) for line in written.getvalue().splitlines()]
    assert "computed 2,000 1.0 × 2,000 50 20" in lines and "memory 100 20.0 × 100 50 20" in lines
    assert "m, float32, torch on cuda, NVIDIA H200, Linux" in lines
    assert "computed 6 of 6" in lines and "memory 60 3.00 2.00 2 of 6" in lines


def test_a_gpu_is_named_in_the_provenance(monkeypatch):
    """As its vendor's tool says it; without the tool, or where it fails, there is no name."""
    for command in ("no-such-tool", f"{sys.executable} -c print(1);exit(9)"):
        monkeypatch.setitem(provenance.NAMES, "hpu", command)
        assert [provenance.provenance(device)["device"] for device in ("cpu", "hpu")] == ["cpu", "hpu"]
    said = SimpleNamespace(stdout="NVIDIA H200\nNVIDIA H200\n")
    monkeypatch.setattr(provenance.subprocess, "run", lambda command, **others: said)
    assert provenance.provenance("cuda")["device"] == "cuda, NVIDIA H200"

"""`pdm run bench-kv`: every way in every case, where blocks come from, and the longest gap."""

from benchmarks import kv_pages, returning


def test_a_run_times_every_way_in_every_case(b, bench):
    sizes = "--model tiny-qwen3 --batch-size 1 2 --input-len 3 130 --output-len 2 --rounds 2 --threads 1"
    _, result = bench(kv_pages.main, sizes, "--dtype float32 --backend", b.name)
    cases = [(case["rows"], case["context"]) for case in result["cases"]]
    assert cases == [(1, 3), (1, 130), (2, 3), (2, 130)]
    for case in result["cases"]:
        assert list(case["seconds"]) == ["auto", "int8", "fp8_e4m3"]
        assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in case["seconds"].values())
    plain, int8, fp8 = result["token_bytes"].values()
    assert plain == 4 * fp8 and fp8 < int8 < plain


def test_a_conversation_returns_from_every_level(b, bench, tmp_path):
    sizes = "--returning --model tiny-qwen3 --input-len 300 --rounds 1 --threads 1 --dtype float32"
    _, result = bench(kv_pages.main, sizes, f"--backend {b.name} --folder {tmp_path}")
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
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"], "a folder has stayed"


def test_a_victims_longest_gap_is_one_while_the_conversation_returns():
    times = [0.0, 9.0, 10.0, 12.0, 15.0, 25.0]
    assert returning.gaps(times, arrival=10.0, ttft=4.0) == {"gap": 3.0, "usual": 5.0}

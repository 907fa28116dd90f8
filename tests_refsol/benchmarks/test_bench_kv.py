"""`pdm run bench-kv`: every case in turns, bytes of a token, and a table worked out by hand."""

import io
import json

from rich.console import Console

from benchmarks import kv_pages, kv_pages_report


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
        "provenance": {
            "machine": {"system": "Linux", "processor": "P", "cores": 2}, "versions": {}, "date": "today",
        },
        "token_bytes": {"auto": 2000, "int8": 510},
        "cases": [{"rows": 4, "context": 1000, "seconds": {"auto": [0.5, 0.1, 0.2], "int8": [0.1] * 3}}],
    }  # fmt: skip
    written = io.StringIO()
    kv_pages_report.show(Console(file=written, width=100), result)
    assert written.getvalue().splitlines()[-1].split() == [
        "4",
        "×",
        "1,000",
        "20.0",
        "40.0",
        "2.00",
        "×",
        "8",
    ]

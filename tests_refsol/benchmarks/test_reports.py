"""How results are shown, computed once more from the sealed ones, and what a seal proves."""

import html
import io
import json
import re
import sys
from collections import defaultdict
from statistics import median
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks import latency, reports, scheduler, throughput
from benchmarks.command import progress_bar
from benchmarks.latency_report import Roof, points, roof
from book.tools import result_tables, screens
from tiny_llm_course.trace import provenance

SEALED = dict(screens.sealed_results())


def printed(result: dict) -> list[str]:
    """Every line as its words."""
    console = Console(width=120, file=io.StringIO())
    reports.show(console, result)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_the_sealed_results_print_the_tables_that_are_kept_beside_them():
    """`pdm run book capture` writes them again."""
    kept = result_tables.FILE.read_text(encoding="utf-8")
    assert kept == result_tables.tables(screens.benchmark_screens(), SEALED.items())


def speeds(result: dict) -> dict[str, dict[str, float]]:
    """Tokens per second by case and engine: with its best threads; of prompts where an answer has one token."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    if result["kind"] in ("decode", "prefill"):
        for case in result["cases"]:
            tokens = case["rows"] if result["kind"] == "decode" else case["context"]
            for name, seconds in case["seconds"].items():
                engines = found[f"{result['kind']} {case['rows']} × {case['context']:,}"]
                engines[name] = max(engines[name], tokens / median(seconds))
    if result["kind"] in ("throughput", "real-model"):
        case = "{num_prompts} × {input_len} + {output_len}".format(**result["plan"])
        for name, each in result.get("cases", {case: result}).items():
            for engine, runs in each["runs"].items():
                kind = "output" if runs[0]["output_tokens"] > runs[0]["requests"] else "prompt"
                found[name][engine] = median(run[f"{kind}_tokens"] / run["seconds"] for run in runs)
    return found


def test_speeds_are_medians_compared_with_ours_and_the_list_has_the_fastest_other_program():
    """Our engine in another way is no other program; a loss is bold."""
    expected = []
    for result_name, result in SEALED.items():
        shown = printed(result)
        for case, engines in speeds(result).items():
            ours = engines["tiny-llm"]
            ratios = {name: f"{ours / speed:.2f} ×" for name, speed in engines.items()}
            for name, speed in engines.items():
                [row] = [line for line in shown if line.startswith(f"{name} {case} ")]
                assert row.startswith(f"{name} {case} {speed:.1f} ")
                assert f" {ratios[name]}" in row or name == "tiny-llm"
            if others := [name for name in engines if "tiny-llm" not in name]:
                best = max(others, key=engines.get)
                ratio = f"**{ratios[best]}**" if ratios[best] < "1" else ratios[best]
                figures = f"{ours:.1f} | {best} | {engines[best]:.1f} | {ratio}"
                expected.append(f"| {result_name} | {case} | {figures}")
    listed = result_tables.fastest_baselines(SEALED.items()).partition("|---")[2].splitlines()[1:]
    assert sorted(line.rpartition(" | ")[0] for line in listed) == sorted(expected)


def test_results_of_this_command_are_read_like_those_of_the_three_before_it():
    decode, chunks = SEALED["decode-torch"], SEALED["roofline-torch"]
    of_memory = decode["read_bandwidth_bytes_per_second"].items()
    roofs = {n: {"bytes_per_second": speed, "operations_per_second": 1.0} for n, speed in of_memory}
    cases = [case | {"phase": "decode"} for case in decode["cases"]]
    assert printed({**decode, "kind": "latency", "roofs": roofs, "cases": cases}) == printed(decode)
    samples = [(each["tokens"], {"tiny-llm": each["seconds"]}) for each in chunks["cases"]]
    cases = [{"phase": "chunk", "context": tokens, "seconds": seconds} for tokens, seconds in samples]
    now = {**chunks, "kind": "latency", "cases": cases}
    assert printed(now) == printed(chunks) and screens.has_roofline(now) and not screens.has_roofline(decode)


def test_a_roof_is_a_slope_and_then_flat_and_sixteen_bits_have_half_the_bytes():
    limit, result = Roof(bytes=10.0, operations=40.0), SEALED["roofline-mlx"]
    assert (limit.bend, limit.at(1), limit.at(4), limit.at(100)) == (4, 10, 40, 40)
    assert roof(result).bytes == max(each["bytes_per_second"] for each in result["roofs"].values())
    full, half = points(result)[0], points({**result, "plan": {**result["plan"], "dtype": "bfloat16"}})[0]
    assert half.intensity == pytest.approx(2 * full.intensity) and half.speed == full.speed


# ---- results that are kept


def test_a_seal_holds_when_keys_that_are_numbers_become_texts():
    sealed = provenance.seal({"speeds": {500: 1.0, 2000: 2.0}})
    assert provenance.is_sealed(json.loads(json.dumps(sealed)))


SMALL = "--config tiny-qwen3 --layers 1 --threads 1 --rounds 1 --device cpu"
COMMANDS = {
    "latency": (latency, f"{SMALL} --phase decode chunk --batch-size 2 --input-len 4 40 --output-len 1"),
    "throughput": (throughput, f"{SMALL} --num-prompts 2 --input-len 20 --output-len 3 --num-blocks 4"),
    "scheduler": (scheduler, "--waiting 20 5 --steps 3 --rounds 1"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_keeps_a_sealed_result_and_prints_it(name, results, quick_roofs, monkeypatch, capsys):
    """As the book does."""
    module, typed = COMMANDS[name]
    monkeypatch.setenv("COLUMNS", "88")
    monkeypatch.setattr(provenance, "_git", lambda *arguments: "0123456789ab")
    module.main([*typed.split(), "--save", "x"])
    *shown, last = capsys.readouterr().out.strip().splitlines()
    kept = json.loads((results / "x.json").read_text(encoding="utf-8"))
    assert last == "kept: x.json" and provenance.is_sealed(kept)
    assert (kept["options"], kept["provenance"]["commit"]) == (typed, "0123456789ab")
    pages = dict(screens.benchmark_screens())
    assert set(pages) == ({"benchmark-x", "x"} if name == "latency" else {"benchmark-x"})
    page = html.unescape(re.sub(r"<[^>]*>", "", pages["benchmark-x"]))
    assert page.startswith(f"$ pdm run bench-{name} {typed[:20]}")
    assert [line.rstrip() for line in shown] == page.strip().splitlines()[-len(shown) :]
    (results / "x.json").write_text(json.dumps(kept | {"plan": {}}), encoding="utf-8")
    with pytest.raises(RuntimeError, match="changed after it was sealed"):
        list(screens.benchmark_screens())


def test_a_kept_result_has_no_secrets(results):
    line = "--rounds 2 --api-key secret --header a=secret b=secret --save x --seed 3 --api-key=secret --header=a=secret"
    result = {}
    provenance.keep(Console(file=io.StringIO()), result, "one", line.split())
    assert result["options"] == "--rounds 2 --seed 3"


def test_a_gpu_is_named_in_the_provenance(monkeypatch):
    """As its vendor's tool says it; without the tool, or where it fails, there is no name."""
    for command in ("no-such-tool", f"{sys.executable} -c print(1);exit(9)"):
        monkeypatch.setitem(provenance.NAMES, "hpu", command)
        assert [provenance.provenance(device)["device"] for device in ("cpu", "hpu")] == ["cpu", "hpu"]
    said = SimpleNamespace(stdout="NVIDIA H200\nNVIDIA H200\n")
    monkeypatch.setattr(provenance.subprocess, "run", lambda command, **others: said)
    assert provenance.provenance("cuda")["device"] == "cuda, NVIDIA H200"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_bar_counts_what_is_told_on_a_terminal_alone(is_terminal, monkeypatch, capsys):
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar() as report:
        report("chunk 32", 20)
        report("chunk 128", 20)
    assert capsys.readouterr().out == ""
    assert re.findall("chunk 128|1/20", stream.getvalue())[-2:] == ["chunk 128", "1/20"] * is_terminal

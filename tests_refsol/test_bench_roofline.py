"""The measured roofline: operations and bytes counted from the shape, roofs that were measured, a drawing of both."""

import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks import bench_roofline as command
from benchmarks import reports, roofline_report
from benchmarks.roofline import RooflinePlan, fastest_product, measure, work
from benchmarks.roofline_report import Roof, points, roof
from book.tools import roofline_screen, screens
from tiny_llm_kit.engine.port import Port, installed_backends
from tiny_llm_kit.trace import provenance
from tiny_llm_kit.trace.shapes import RandomCheckpoint, shape

BACKENDS = installed_backends()


def scripted() -> dict:
    """Two numbers of tokens on one and two threads; one token is faster on one thread."""
    cases = [
        {"tokens": 1, "threads": 1, "seconds": [0.01, 0.5, 0.01]},
        {"tokens": 64, "threads": 1, "seconds": [0.2, 0.2, 0.2]},
        {"tokens": 1, "threads": 2, "seconds": [0.03, 0.02, 0.02]},
        {"tokens": 64, "threads": 2, "seconds": [0.1, 0.1, 0.1]},
    ]
    machine = {"system": "Linux x86_64", "processor": "a processor", "cores": 2, "load_before": 0.1}
    return {
        "kind": "roofline",
        "backend": "torch",
        "plan": {
            **RooflinePlan("tiny-qwen3", 2, "float32", tokens=(1, 64), threads=(1, 2), rounds=3).__dict__
        },
        "provenance": {"machine": machine, "versions": {"torch": "2"}, "date": "2026-11-21"},
        "roofs": {
            "1": {"bytes_per_second": 16e9, "operations_per_second": 50e9},
            "2": {"bytes_per_second": 20e9, "operations_per_second": 40e9},
        },
        "cases": cases,
    }


def test_the_work_of_a_call_is_counted_from_the_weights_and_from_who_sees_whom():
    """Against a model's own arrays, and against a loop over every token."""
    config = shape("tiny-qwen3", 3)
    port = Port("tiny_llm_ref", BACKENDS[0], "cpu", "float32")
    model = port.Qwen3ModelWeek2(
        RandomCheckpoint(config, port.backend_module, "float32", "cpu"), attention="device"
    )
    names = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")
    weights = sum(getattr(layer, name).nbytes for layer in model.layers for name in names) // 4
    keys = 2 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers
    attention = 2 * 2 * config.num_attention_heads * config.head_dim * config.num_hidden_layers
    for tokens in (1, 5):
        seen = sum(position + 1 for position in range(tokens))
        found = work(config, tokens, 4)
        assert found.operations == 2 * tokens * weights + seen * attention
        assert found.bytes == 4 * (weights + tokens * keys)
    assert work(config, 1, 2).intensity == pytest.approx(1, rel=0.01), (
        "one token: an operation a byte in bf16"
    )


def test_a_roof_is_a_slope_and_then_flat():
    limit = Roof(bytes=10.0, operations=40.0)
    assert (limit.bend, limit.at(1), limit.at(4), limit.at(100)) == (4, 10, 40, 40)


def test_each_call_counts_with_its_best_number_of_threads_and_the_highest_roof():
    result = scripted()
    assert roof(result) == Roof(20e9, 50e9)
    one, many = points(result)
    assert (one.seconds, many.seconds) == (0.01, 0.1), "medians: 0.5 was an accident"
    assert one.speed == pytest.approx(work(shape("tiny-qwen3", 2), 1, 4).operations / 0.01)


def test_the_table_has_the_share_of_the_lower_roof():
    console, result = Console(width=80, file=io.StringIO()), scripted()
    reports.show(console, result)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert "memory 20.0 GB/s, the fastest large product 50 Gop/s: the bend is at 2.5 op/byte" in lines
    needed = work(shape("tiny-qwen3", 2), 1, 4)
    share = needed.operations / 0.01 / (20e9 * needed.intensity)
    assert any(line.startswith("1 10.0 10.00 0.5 0.2") and f"{share:.0%}" in line for line in lines), lines
    assert max(map(len, console.file.getvalue().splitlines())) <= 80


def test_the_drawing_has_every_call_below_its_roof():
    result = scripted()
    svg = roofline_screen.drawing(result)
    circles = [
        (float(x), float(y)) for x, y in re.findall(r'<circle class="box-\w" cx="(\S+)" cy="(\S+)"', svg)
    ]
    assert len(circles) == 2 and "bend: 2.5" in svg and svg.count("<title") == 1
    slope = re.search(r'<path class="line" d="M(\S+) (\S+) L(\S+) (\S+) H(\S+)"/>', svg)
    x0, y0, x1, y1, _ = map(float, slope.groups())
    for x, y in circles:
        limit = y1 if x >= x1 else y0 + (x - x0) / (x1 - x0) * (y1 - y0)
        assert y >= limit, "this one is slower than its roof, so it lies lower"
        assert roofline_screen.Axes.LEFT - 4 <= x <= roofline_screen.Axes.RIGHT + 4
        assert roofline_screen.Axes.TOP <= y <= roofline_screen.Axes.BOTTOM
    faster = {**result, "cases": [{**case, "seconds": [0.005]} for case in result["cases"]]}
    [_, higher] = re.findall(r'<circle .*? cy="(\S+)"', roofline_screen.drawing(faster))
    assert float(higher) < circles[1][1], "faster is higher"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_call_is_measured_with_every_number_of_threads(backend, monkeypatch):
    port, asked = Port("tiny_llm_ref", backend, "cpu", "float32"), []
    monkeypatch.setattr(port.backend_module, "read_bandwidth", lambda device: 1e9)
    monkeypatch.setattr(
        port.backend_module, "product_speed", lambda device, dtype, size: asked.append(size) or 2e9
    )
    result = measure(RooflinePlan("tiny-qwen3", 1, "float32", (1, 3, 40), (1, 2), 2), port, iter)
    found = [(case["tokens"], case["threads"], len(case["seconds"])) for case in result["cases"]]
    assert found == [(tokens, threads, 2) for threads in (1, 2) for tokens in (1, 3, 40)]
    assert all(second > 0 for case in result["cases"] for second in case["seconds"])
    roofs = {"bytes_per_second": 1e9, "operations_per_second": 2e9}
    assert result["roofs"] == {"1": roofs, "2": roofs} and asked == [256, 2048] * 2
    assert json.loads(json.dumps(result)) == result


def test_the_roof_is_that_of_the_fastest_type_and_a_hopeless_one_is_not_tried():
    speeds, asked = {"float32": 50.0, "bfloat16": 3.0, "float16": 80.0}, []
    backend_module = SimpleNamespace(
        product_speed=lambda device, kind, size: asked.append((kind, size)) or speeds[kind]
    )
    for device, size in (("cpu", 2048), ("cuda", 8192)):
        assert fastest_product(SimpleNamespace(backend_module=backend_module, device=device), speeds) == 80.0
        small, large = [(kind, size // 8) for kind in speeds], [("float32", size), ("float16", size)]
        assert asked == small + large
        asked.clear()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_speed_of_a_product_is_its_operations_over_the_fastest_time(backend, monkeypatch):
    """Two for each of size · size · size; of three timed ones the fastest."""
    backend_module, clock = (
        Port("tiny_llm_ref", backend, "cpu", "float32").backend_module,
        iter([0, 9, 0, 7, 0, 4, 0, 8]),
    )
    untimed = 2 if backend == "mlx" else 0  # torch's first one is timed, and not counted
    for _ in range(untimed):
        next(clock)
    monkeypatch.setattr(backend_module.time, "perf_counter", lambda: next(clock))
    assert backend_module.product_speed("cpu", "float32", 64) == 2 * 64**3 / 4


def test_the_command_keeps_a_sealed_result_for_the_table_and_the_drawing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(screens, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "measure", lambda plan, port, progress: {**scripted(), "plan": {
        **plan.__dict__, "tokens": [1, 64], "threads": [1, 2]}})  # fmt: skip
    command.main(["--config", "tiny-qwen3", "--layers", "2", "--save", "r"])
    assert "kept: r.json" in capsys.readouterr().out
    assert provenance.is_sealed(json.loads((tmp_path / "r.json").read_text(encoding="utf-8")))
    (table, page), (drawing, svg) = screens.benchmark_screens()
    assert (table, drawing) == ("benchmark-r", "r")
    assert "bench-roofline --config tiny-qwen3 --layers 2" in page and svg.startswith("<svg")


def test_a_call_that_is_longer_than_the_model_reads_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--config", "tiny-qwen3", "--tokens", "4", "4097"])
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err
        == "4,097 tokens with the answer: the model reads at most 4,096; choose fewer\n"
    )


def test_sixteen_bits_halve_the_bytes_and_double_what_is_done_with_each():
    result = scripted()
    half = {**result, "plan": {**result["plan"], "dtype": "bfloat16"}}
    assert points(half)[0].intensity == pytest.approx(2 * points(result)[0].intensity)
    assert roofline_report.points(half)[0].speed == points(result)[0].speed
    assert replace(points(half)[0], intensity=0) == replace(points(result)[0], intensity=0)

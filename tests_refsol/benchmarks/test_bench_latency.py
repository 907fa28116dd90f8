"""`pdm run bench-latency`: fair turns, figures that can be recomputed, baselines, roofs, sealed results."""

import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks import baselines, latency, latency_report, reports
from benchmarks.latency import LatencyPlan, engines, fastest_product, measure
from benchmarks.latency_report import Roof, points, roof, work
from book.tools import roofline_screen, screens
from tiny_llm_given.layers import DenseLinear
from tiny_llm_kit.engine import samples
from tiny_llm_kit.engine.backends.installation import installed_backends
from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.engine.profiling.kv_budget import kv_bytes_per_token
from tiny_llm_kit.engine.weights.random_weights import RandomCheckpoint, shape
from tiny_llm_kit.trace import provenance

TINY = LatencyPlan(config="tiny-qwen3", layers=1, dtype="float32", threads=(1,), rounds=2, output_len=2)
BASELINES = {"torch": ("transformers",)}
BACKENDS = installed_backends()


def no_bar(what, total=None):
    """Shows nothing."""


def port_of(backend: str) -> Port:
    return Port("tiny_llm_ref", backend, "cpu", "float32")


def test_every_candidate_runs_once_a_round_and_the_order_turns():
    ran, ticks = [], iter(range(100))
    runs = {name: (lambda name=name: ran.append(name)) for name in "abc"}
    seconds = samples.interleave(runs, 3, warmup=1, clock=lambda: next(ticks))
    assert "".join(ran) == "abc" + "abc" + "bca" + "cab"
    assert seconds == {name: [1, 1, 1] for name in "abc"}


def test_spread_and_ratio_are_those_of_medians_and_quartiles():
    assert samples.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert samples.spread([7.0]) == 0
    assert samples.ratio([2.0, 8.0, 4.0], [1.0, 1.0, 9.0]) == 4


def scripted(kind: str = "decode") -> dict:
    """Two engines on one and two threads: ours is better on one, theirs on two."""
    cases = [
        {"rows": 4, "context": 10, "threads": 1, "seconds": {"tiny-llm": [0.5, 0.5], "theirs": [4.0, 4.0]}},
        {"rows": 4, "context": 10, "threads": 2, "seconds": {"tiny-llm": [0.6, 0.6], "theirs": [1.0, 3.0]}},
    ]
    return {
        "kind": kind,
        "weight_bytes": {"tiny-llm": 600},
        "kv_bytes_per_token": 10,
        "read_bandwidth_bytes_per_second": {"1": 2000.0, "2": 4000.0},
        "cases": cases,
    }


def latest(kind: str) -> dict:
    """The same as `bench-latency` has it now: with its phase in each case, and both roofs."""
    roofs = {str(n): {"bytes_per_second": 2000.0 * n, "operations_per_second": 1.0} for n in (1, 2)}
    result = scripted(kind)
    del result["read_bandwidth_bytes_per_second"]
    cases = [{**case, "phase": kind} for case in result["cases"]]
    return {**result, "kind": "latency", "roofs": roofs, "cases": [{"phase": "other"}, *cases]}


@pytest.mark.parametrize("made", [scripted, latest])
def test_each_engine_is_shown_with_its_best_threads_and_ours_compared_with_it(made):
    ours, theirs = latency_report.lines(made("decode"), "decode")
    assert (ours.threads, ours.tokens_per_second, ours.ours_is) == (1, 8.0, None)
    assert (theirs.threads, theirs.tokens_per_second, theirs.ours_is) == (2, 2.0, 4.0)
    # 600 bytes of weights and 4 rows of 10 tokens of 10 bytes, at 4000 bytes a second at best.
    assert ours.roofline == pytest.approx(1000 / 4000 / 0.5)
    assert theirs.roofline == pytest.approx(1000 / 4000 / 2.0)


@pytest.mark.parametrize("made", [scripted, latest])
def test_a_prompt_counts_its_tokens_and_has_no_roofline(made):
    ours, _ = latency_report.lines(made("prefill"), "prefill")
    assert (ours.tokens_per_second, ours.roofline) == (20.0, None)


@pytest.fixture
def quick_roofs(monkeypatch):
    """Roofs that take no time: the sizes of products that were asked for."""
    asked = []
    for backend in BACKENDS:
        kit = port_of(backend).backend_module
        monkeypatch.setattr(kit, "read_bandwidth", lambda device: 1e9)
        monkeypatch.setattr(kit, "product_speed", lambda device, dtype, size: asked.append(size) or 2e9)
    return asked


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("quantization", [None, "4bit"])
def test_a_benchmark_measures_every_case(backend, quantization, quick_roofs):
    chosen = replace(TINY, batch_size=(1, 3), input_len=(5, 300), quantization=quantization)
    plan = replace(chosen, compare=BASELINES.get(backend, ()))
    result = measure(plan, port_of(backend), no_bar)
    assert [(c["phase"], c["rows"], c["context"], c["threads"]) for c in result["cases"]] == [
        ("decode", 1, 5, 1), ("decode", 1, 300, 1), ("decode", 3, 5, 1), ("decode", 3, 300, 1),
        ("prefill", 1, 5, 1), ("prefill", 1, 300, 1),
    ]  # fmt: skip
    for case in result["cases"]:
        assert {len(seconds) for seconds in case["seconds"].values()} == {2}
        assert all(second > 0 for seconds in case["seconds"].values() for second in seconds)
        assert ("tiny-llm 4bit" in case["seconds"]) == (quantization == "4bit")
        assert ("transformers static" in case["seconds"]) == (backend == "torch")
    assert result["provenance"]["versions"] and result["roofs"]["1"]["bytes_per_second"] == 1e9
    assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize("backend", BACKENDS)
def test_chunks_are_measured_with_every_number_of_threads_and_by_our_engine_alone(backend, quick_roofs):
    plan = replace(
        TINY, phase=("chunk",), input_len=(1, 3, 40), threads=(1, 2), compare=BASELINES.get(backend, ())
    )
    told = []
    result = measure(plan, port_of(backend), lambda *run: told.append(run))
    found = [(case["context"], case["threads"], len(case["seconds"]["tiny-llm"])) for case in result["cases"]]
    assert found == [(tokens, threads, 2) for threads in (1, 2) for tokens in (1, 3, 40)]
    assert told == [("chunk, threads: 1", 2), ("chunk, threads: 2", 2)]
    assert {tuple(case["seconds"]) for case in result["cases"]} == {("tiny-llm",)}
    roofs_ = {"bytes_per_second": 1e9, "operations_per_second": 2e9}
    assert result["roofs"] == {"1": roofs_, "2": roofs_} and quick_roofs == [256, 2048] * 2
    assert [point.tokens for point in points(result)] == [1, 3, 40]


def test_chunks_of_one_size_are_timed_between_those_of_others(quick_roofs, monkeypatch):
    """They are compared with each other, so a slow minute must hit all of them."""
    ran = []
    monkeypatch.setattr(
        latency.Week2Calls, "prefill", lambda self, tokens, sample: ran.append((len(tokens), sample))
    )
    measure(replace(TINY, phase=("chunk",), input_len=(1, 3)), port_of(BACKENDS[0]), no_bar)
    assert ran == [(1, False), (3, False), (1, False), (3, False), (3, False), (1, False)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sample_of_decode_leaves_the_batch_as_it_was(backend):
    ours = engines(TINY, port_of(backend))["tiny-llm"]
    ours.fill(2, 9, steps=3)
    for _ in range(5):
        ours.decode()
    assert [layer.offsets for layer in ours._batch] == [[9, 9]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_week_3s_engine_computes_what_week_2s_does(backend, monkeypatch):
    """A prompt, and decode steps of two rows that both hold it: the same tokens on the same weights."""
    port = port_of(backend)
    cast = engines(replace(TINY, enforce_eager=True, batch_size=(2,), input_len=(130,)), port)
    week2, week3 = cast["tiny-llm"], cast["tiny-llm packed"]
    prompt, cache = [7 * n % 3000 for n in range(130)], week2.runner.create_kv_cache(140)
    token = week2.runner.prefill(prompt, 0, cache, sample=True)
    assert week3._run([prompt, prompt], 0) == [token, token]
    following = week2.runner.prefill([token], 130, cache, sample=True)
    assert week3._run([[token], [token]], 130) == [following, following]
    ran = []
    monkeypatch.setattr(week3, "_run", lambda rows, context: ran.append((rows, context)) or [5, 6])
    week3.fill(2, 130, steps=2)
    week3.decode()
    assert ran == [([[1], [1]], 130), ([[5], [6]], 131)]


@pytest.mark.parametrize(("is_eager", "name"), [(True, "tiny-llm packed"), (False, "tiny-llm compiled")])
def test_week_3s_engine_is_added_as_it_is_written_or_compiled(is_eager, name, monkeypatch):
    monkeypatch.setattr(latency, "Week3Calls", lambda *arguments: arguments[2:])
    cast = engines(
        replace(TINY, enforce_eager=is_eager, batch_size=(2, 3), input_len=(9,)), port_of(BACKENDS[0])
    )
    assert list(cast) == ["tiny-llm", name] and cast[name] == (is_eager, 3, 12)


@pytest.mark.port("torch")
def test_the_baseline_computes_with_the_same_weights():
    cast, prompt = engines(replace(TINY, compare=("transformers",)), port_of("torch")), [5, 900, 33, 17, 2100]
    ours = cast["tiny-llm"]
    expected = ours.runner.prefill(prompt, 0, ours.runner.create_kv_cache(9), sample=True)
    for name in ("transformers static", "transformers dynamic"):
        theirs = cast[name]
        assert theirs._next([prompt], theirs._new_cache(9)) == [expected]
        up, mine = theirs.model.model.layers[0].mlp.up_proj.weight, ours.model.layers[0].mlp.w_up.weight
        assert up.data_ptr() == mine.data_ptr(), "the baseline has a copy of the weights"


@pytest.mark.port("mlx")
def test_a_baseline_that_is_not_installed_is_one_line(monkeypatch, refused):
    monkeypatch.setattr(baselines, "find_spec", lambda name: None)
    options = ["--backend", "mlx", "--config", "tiny-qwen3", "--layers", "1", "--compare", "mlx-lm"]
    install = "run `python -m pip install --no-deps mlx-lm` in this project's environment"
    assert refused(latency.main, options) == f"--compare mlx-lm: not installed; {install}\n"


@pytest.mark.parametrize(
    ("tokens", "phase"), [("4097", "decode"), ("99999999", "prefill"), ("4097", "chunk")]
)
def test_a_call_that_is_longer_than_the_model_reads_is_refused(tokens, phase, refused):
    options = ["--config", "tiny-qwen3", "--layers", "1", "--phase", phase, "--input-len", "8", tokens]
    errors = refused(latency.main, options)
    assert errors.count("\n") == 1
    longest = int(tokens) + (4 if phase == "decode" else 0)
    assert errors == f"{longest:,} tokens with the answer: the model reads at most 4,096; choose fewer\n"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b"])
def test_a_name_that_is_no_file_is_refused_before_anything_is_measured(name, monkeypatch, refused):
    monkeypatch.setattr(latency, "measure", lambda *_: pytest.fail("it began to measure"))
    assert (
        f"argument --save: {name!r} is not a name"
        in refused(latency.main, ["--config", "tiny-qwen3", "--save", name]).splitlines()[-1]
    )


def test_a_result_that_cannot_be_written_is_refused_before_anything_is_measured(
    monkeypatch, refused, tmp_path
):
    monkeypatch.setattr(latency, "measure", lambda *_: pytest.fail("it began to measure"))
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    (tmp_path / "x.json").mkdir()
    assert (
        "x.json: cannot be written ("
        in refused(latency.main, ["--config", "tiny-qwen3", "--save", "x"]).splitlines()[-1]
    )


@pytest.mark.parametrize(("phase", "through"), [("decode", "2.6"), ("prefill", "2.5"), ("chunk", "2.5")])
def test_a_blank_task_is_one_line_with_its_address(phase, through, capsys):
    options = [
        "--solution",
        "tiny_llm",
        "--backend",
        BACKENDS[-1],
        "--config",
        "tiny-qwen3",
        "--phase",
        phase,
    ]
    with pytest.raises(SystemExit) as end:
        latency.main(options)
    assert str(end.value.code).startswith("blank: week 1 day 1 task 1: softmax.")
    assert f"`pdm run course skip --through {through}" in end.value.code


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_command_prints_its_tables_and_keeps_a_sealed_result(
    backend, monkeypatch, capsys, tmp_path, quick_roofs
):
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(screens, "RESULTS", tmp_path)
    options = ["--backend", backend, "--config", "tiny-qwen3", "--layers", "1", "--device", "cpu"]
    options += ["--threads", "1", "--rounds", "1", "--phase", "decode", "prefill", "chunk"]
    options += ["--batch-size", "1", "2", "--input-len", "4", "40", "--output-len", "1"]
    latency.main([*options, "--save", "x"])
    out = capsys.readouterr().out
    assert "kept: x.json" in out and out.count("tiny-llm ") >= 3
    titles = [out.index(latency_report.TITLES[phase]) for phase in latency.PHASES]
    assert titles == sorted(titles)
    kept = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert provenance.is_sealed(kept) and kept["options"] == " ".join(options)
    (name, page), (drawing, svg) = screens.benchmark_screens()
    assert name == "benchmark-x" and "tokens/s" in page and "load before" in page
    assert drawing == "x" and svg.count("<circle") == 2
    assert f"pdm run bench-latency --backend {backend}" in page
    (tmp_path / "x.json").write_text(json.dumps(kept | {"cases": []}), encoding="utf-8")
    with pytest.raises(RuntimeError, match="changed after it was sealed"):
        list(screens.benchmark_screens())


@pytest.mark.parametrize("kind", ["decode", "prefill", "roofline", "chunked-prefill"])
def test_a_result_of_an_earlier_command_says_which_it_was(kind):
    assert reports.command_of({"kind": kind, "options": "--rounds 3"}) == f"pdm run bench-{kind} --rounds 3"
    now = {"kind": kind, "options": "", "command": "bench-throughput"}
    assert reports.command_of(now) == "pdm run bench-throughput"


def test_a_shape_that_is_unknown_is_a_usage_error(refused):
    assert "qwen3-0.6b" in refused(latency.main, ["--config", "gpt-5"])


def test_bytes_of_a_step_are_those_of_the_shape():
    model = engines(TINY, port_of(BACKENDS[0]))["tiny-llm"].model
    layer = 192 * (256 + 128 + 128) + 256 * 192 + 3 * 192 * 512
    assert latency.weight_bytes(model) == 4 * (layer + 3520 * 192)
    assert kv_bytes_per_token(model.config, TINY.dtype) == 2 * 1 * 2 * 64 * 4


# ---- the roofline of chunks


def scripted_chunks() -> dict:
    """A result of the earlier command: two calls on one and two threads; one token is faster on one thread."""
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
        "plan": {"config": "tiny-qwen3", "layers": 2, "dtype": "float32", "threads": (1, 2), "rounds": 3},
        "provenance": {"device": "cpu", "machine": machine, "versions": {"torch": "2"}, "date": "2026-11-21"},
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
    weights = sum(
        weight.nbytes // 4
        for layer in model.layers
        for owner in (layer, layer.mlp)
        for weight in vars(owner).values()
        if isinstance(weight, DenseLinear)
    )
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
    result = scripted_chunks()
    assert roof(result) == Roof(20e9, 50e9)
    one, many = points(result)
    assert (one.seconds, many.seconds) == (0.01, 0.1), "medians: 0.5 was an accident"
    assert one.speed == pytest.approx(work(shape("tiny-qwen3", 2), 1, 4).operations / 0.01)


def test_the_table_has_the_share_of_the_lower_roof():
    console, result = Console(width=80, file=io.StringIO()), scripted_chunks()
    reports.show(console, result)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert "memory 20.0 GB/s, the fastest large product 50 Gop/s: ridge point 2.5 op/byte" in lines
    needed = work(shape("tiny-qwen3", 2), 1, 4)
    share = needed.operations / 0.01 / (20e9 * needed.intensity)
    assert any(line.startswith("1 10.0 10.00 0.5 0.2") and f"{share:.0%}" in line for line in lines), lines
    assert max(map(len, console.file.getvalue().splitlines())) <= 80


def test_the_drawing_has_every_call_below_its_roof():
    result = scripted_chunks()
    svg = roofline_screen.drawing(result)
    circles = [
        (float(x), float(y)) for x, y in re.findall(r'<circle class="box-\w" cx="(\S+)" cy="(\S+)"', svg)
    ]
    assert len(circles) == 2 and "ridge point: 2.5" in svg and svg.count("<title") == 1
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


def test_the_roof_is_that_of_the_fastest_type_and_a_hopeless_one_is_not_tried():
    speeds, asked = {"float32": 50.0, "bfloat16": 3.0, "float16": 80.0}, []
    kit = SimpleNamespace(product_speed=lambda device, kind, size: asked.append((kind, size)) or speeds[kind])
    for device, size in (("cpu", 2048), ("cuda", 8192)):
        assert fastest_product(SimpleNamespace(backend_module=kit, device=device), speeds) == 80.0
        small, large = [(kind, size // 8) for kind in speeds], [("float32", size), ("float16", size)]
        assert asked == small + large
        asked.clear()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_speed_of_a_product_is_its_operations_over_the_fastest_time(backend, monkeypatch):
    """Two for each of size · size · size; of three timed ones the fastest."""
    kit = Port("tiny_llm_ref", backend, "cpu", "float32").backend_module
    monkeypatch.setattr(kit, "seconds_of", lambda run, rounds: [run() or 7, 4, 8][:rounds])
    assert kit.product_speed("cpu", "float32", 64) == 2 * 64**3 / 4


def as_it_is_now(earlier: dict) -> dict:
    """The same result as `bench-latency --phase chunk` has it."""
    cases = [
        {"phase": "chunk", "rows": 1, "context": case["tokens"], "threads": case["threads"],
         "seconds": {"tiny-llm": case["seconds"]}}
        for case in earlier["cases"]
    ]  # fmt: skip
    return {**earlier, "kind": "latency", "plan": {**earlier["plan"], "phase": ["chunk"]}, "cases": cases}


def test_chunks_of_the_earlier_command_and_of_this_one_are_read_alike():
    earlier = scripted_chunks()
    now = as_it_is_now(earlier)
    now["cases"].append({"phase": "decode"})
    assert points(now) == points(earlier) and roofline_screen.drawing(now) == roofline_screen.drawing(earlier)


def test_the_command_keeps_a_sealed_result_for_the_table_and_the_drawing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(screens, "RESULTS", tmp_path)
    monkeypatch.setattr(latency, "measure", lambda plan, port, tell: as_it_is_now(scripted_chunks()))
    latency.main(["--config", "tiny-qwen3", "--layers", "2", "--save", "r"])
    assert "kept: r.json" in capsys.readouterr().out
    assert provenance.is_sealed(json.loads((tmp_path / "r.json").read_text(encoding="utf-8")))
    (table, page), (drawing, svg) = screens.benchmark_screens()
    assert (table, drawing) == ("benchmark-r", "r")
    assert "bench-latency --config tiny-qwen3 --layers 2" in page and svg.startswith("<svg")


def test_sixteen_bits_halve_the_bytes_and_double_what_is_done_with_each():
    result = scripted_chunks()
    half = {**result, "plan": {**result["plan"], "dtype": "bfloat16"}}
    assert points(half)[0].intensity == pytest.approx(2 * points(result)[0].intensity)
    assert points(half)[0].speed == points(result)[0].speed
    assert points(half)[0]._replace(intensity=0) == points(result)[0]._replace(intensity=0)

"""The timeline: what is recorded of a run, how it is drawn and written, and `pdm run timeline` on both ports."""

import io
import json
import re
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import chunked_prefill
from book.tools import timeline_screen
from book.tools.links import read_page
from tiny_llm_course.commands import timeline as command
from tiny_llm_course.trace.recorder import Recorder
from tiny_llm_course.trace.serve import EndlessTokenizer, NoEnd
from tiny_llm_course.trace.simulation.cost_fit import fit_line, fit_traces
from tiny_llm_course.trace.simulation.simulated_model import SimulatedModel
from tiny_llm_course.trace.simulation.step_cost import AdditiveCost, Line, pairs
from tiny_llm_course.trace.timeline import chrome, page, terminal
from tiny_llm_course.trace.timeline.comparison import every_size, simulate
from tiny_llm_course.trace.timeline.words import described, figures, row
from tiny_llm_course.trace.trace import WHOLE, Trace
from tiny_llm_course.trace.workload import among_decodes
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import BOOK, command_modules
from tiny_llm_engine.solutions import port as ports
from tiny_llm_engine.solutions.solution import resolve_serving

SERVING = resolve_serving("ref")
# A second for each token, and nothing else.
PLAIN = AdditiveCost(prefill=Line(0, 1, 0), decode=Line(0, 1, 0))
WORK = among_decodes(300, 2, 64)


def recorded(prompts, step, agreed=None, slots=4, listen=lambda event: None, **options) -> Trace:
    """(tokens of a prompt, tokens of its answer) served at once, on the simulated model."""
    model, recorder = SimulatedModel(PLAIN), Recorder(agreed or step)
    requests = requests_of(model, prompts)

    def hear(event) -> None:
        recorder(event)
        listen(event)

    serve = partial(SERVING.batch_generate_with_chunked_prefill, clock=model.clock, on_event=hear, **options)
    serve(model, EndlessTokenizer(), requests, slots, step, 4096)
    return recorder.trace("a run", step)


def requests_of(model, prompts) -> list:
    def request(tokens: int, answer: int):
        sampling = SERVING.SamplingParams(max_tokens=answer)
        return SERVING.Request(model, EndlessTokenizer(), [0] * tokens, sampling=sampling)

    return [request(*sizes) for sizes in prompts]


def lanes(trace: Trace) -> list[str]:
    """Each lane's spans in a few letters."""
    return [
        " ".join(f"{span.kind} {span.start:g}-{span.end:g}" for span in trace.of(lane))
        for lane in trace.lanes
    ]


# ---- what is recorded


def test_every_span_of_two_requests():
    """A runs when the prompt of B is computed, two tokens at a time."""
    trace = recorded([(1, 4), (5, 2)], step=2)
    assert lanes(trace) == [
        "chunk 0-1 decode 1-2 waiting 2-4 decode 4-5 waiting 5-7 decode 7-8",
        "queued 0-2 chunk 2-4 chunk 5-7 chunk 8-9 decode 9-10",
    ]
    first, second = trace.lanes
    assert first.token_times == [1, 2, 5, 8] and second.token_times == [9, 10]
    assert (first.ttft, second.ttft, first.finished_time, second.reason) == (1, 9, 8, "length")
    assert (trace.longest_gap, trace.tbt_p99, trace.end, trace.stall_steps) == (3, 3, 10, 0)
    assert [(span.tokens, span.context) for span in trace.of(second)[1:4]] == [(2, 0), (2, 2), (1, 4)]


def test_more_than_was_agreed_is_a_stall():
    trace = recorded([(1, 4), (5, 2)], step=WHOLE, agreed=2)
    assert lanes(trace)[0] == "chunk 0-1 decode 1-2 stall 2-7 decode 7-9 decode 9-10"
    assert trace.stall_steps == 2, (
        "5 tokens are a chunk of 2 that was agreed, another one, and one that was begun"
    )


def test_a_prompt_that_makes_room_is_paused():
    trace = recorded_with_arrival()
    assert lanes(trace) == ["chunk 0-2 paused 2-4 chunk 4-6 chunk 6-8", "chunk 2-4"]


def recorded_with_arrival() -> Trace:
    """A short prompt arrives behind the first chunk of a long one."""
    model, recorder = SimulatedModel(PLAIN), Recorder(2)
    scheduler = SERVING.ChunkedPrefillScheduler(
        model, 2, 2, 64, turns=SERVING.Turns(pause_prefill=True), clock=model.clock, on_event=recorder
    )
    for index, request in enumerate(requests_of(model, [(6, 1), (2, 1)])):
        request.prompt_idx = index
        scheduler.add(request)
        scheduler.step()
    while scheduler.has_work_remaining():
        scheduler.step()
    scheduler.close()
    return recorder.trace("pausing", 2)


sizes = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(prompts=sizes, step=st.integers(1, 50), agreed=st.integers(1, 20), slots=st.integers(1, 4))
def test_stalls_are_those_of_the_metrics_and_spans_of_a_lane_do_not_overlap(prompts, step, agreed, slots):
    metrics = SERVING.ChunkedPrefillMetrics(agreed)
    trace = recorded(prompts, step, agreed, slots, metrics.on_event)
    assert trace.stall_steps == metrics.stall_steps
    assert sorted(trace.gaps) == pytest.approx(sorted(metrics.tbt))
    assert {lane.request: lane.ttft for lane in trace.lanes} == pytest.approx(metrics.ttft)
    for lane in trace.lanes:
        spans = trace.of(lane)
        assert all(before.end <= after.start for before, after in pairwise(spans))
        assert sum(span.tokens for span in spans if span.kind == "chunk") == lane.prompt_tokens
        assert len(lane.token_times) == 1 + sum(span.kind == "decode" for span in spans)
    if step <= agreed:
        assert not any(span.kind == "stall" for span in trace.spans)


def test_the_summary_of_a_trace_is_json_in_milliseconds():
    plain = json.loads(json.dumps(recorded([(1, 4), (5, 2)], step=2).summary(), allow_nan=False))
    assert plain["longest_gap_ms"] == 3000 and plain["total_ms"] == 10_000 and plain["chunk"] == 2
    empty = Recorder(2).trace("empty", WHOLE).summary()
    assert empty["tbt_p99_ms"] is None and empty["chunk"] is None


# ---- virtual time


def test_a_whole_prompt_and_its_chunks_see_the_same_pairs_of_tokens():
    cost = AdditiveCost(prefill=Line(0, 0, 1), decode=Line(1, 0, 0))
    seconds = []
    for chunk in (5, 64, WHOLE):
        model = SimulatedModel(cost)
        request = SERVING.Request(model, EndlessTokenizer(), [0] * 100, chunk)
        while not request.is_prefill_done:
            request.try_prefill()
        seconds.append(model.clock.now)
    assert seconds == pytest.approx([100 * 101 / 2] * 3)


def test_smaller_chunks_shorten_the_gaps_and_cost_time():
    runs = every_size(among_decodes(), SERVING)
    assert [run.chunk for run in runs] == [32, 64, 128, 256, 512, 1024, WHOLE]
    assert [run.stall_steps for run in runs] == [0, 0, 0, 8, 12, 14, 15]
    for smaller, larger in pairwise(runs):
        assert smaller.longest_gap < larger.longest_gap and smaller.end > larger.end


def test_the_fit_finds_the_costs_again():
    costs = AdditiveCost(prefill=Line(0.01, 2e-4, 3e-7), decode=Line(0.02, 1e-3, 4e-6))
    runs = [simulate(among_decodes(), SERVING, chunk, costs) for chunk in (WHOLE, 128)]
    found = fit_traces(runs)
    for one, other in ((found.prefill, costs.prefill), (found.decode, costs.decode)):
        assert (one.a, one.b, one.c) == pytest.approx((other.a, other.b, other.c), rel=1e-6)


def test_noise_does_not_pull_the_line_down():
    """Steps that take 40 % more or less than the line, as often the one as the other."""
    rng, cost = np.random.default_rng(27), Line(0.01, 2e-4, 3e-7)
    sizes = [(int(n), pairs(int(n), int(context))) for n, context in rng.integers(1, 2048, (400, 2))]
    noise = rng.uniform(0.6, 1.4, len(sizes))
    found = fit_line([(*size, cost.seconds(*size) * share) for size, share in zip(sizes, noise, strict=True)])
    assert sum(found.seconds(*size) / cost.seconds(*size) for size in sizes) / 400 == pytest.approx(
        1, abs=0.03
    )


def test_no_cost_is_negative():
    """Here the nearest line of all falls with the tokens."""
    found = fit_line([(1, 0.0, 3.0), (2, 0.0, 2.0), (3, 0.0, 1.0)])
    assert min(found.a, found.b, found.c) == 0 and found.a > 0


# ---- the Chrome trace

REQUIRED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "M": {"name", "pid", "tid", "args"},
}


def test_a_chrome_trace_has_the_structure_that_viewers_read():
    before, after = (simulate(WORK, SERVING, chunk) for chunk in (WHOLE, 64))
    whole = json.loads(chrome.text([before, after]))
    assert whole == json.loads(json.dumps(chrome.chrome_trace([before, after])))
    events = whole["traceEvents"]
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys(), event
        assert event["pid"] in (1, 2) and event["tid"] in range(len(before.lanes) + 1)
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert named[1, 0] == "whole prompts" and named[2, 0] == "chunks of 64"
    assert named[2, 3] == "request long: 300 tokens of prompt, 8 of answer"
    chunks = [e for e in events if e["ph"] == "X" and e["cat"] == "chunk" and (e["pid"], e["tid"]) == (2, 3)]
    assert [(e["args"]["tokens"], e["args"]["context"]) for e in chunks] == [
        *((64, 64 * n) for n in range(4)),
        (44, 256),
    ]
    span = next(span for span in after.spans if span.kind == "chunk" and span.request == 2)
    assert chunks[0]["ts"] == round(1e6 * span.start) and chunks[0]["name"] == "chunk 1 of 5"
    assert whole["otherData"]["whole prompts"]["stall_steps"] == 4


def test_spans_of_a_thread_of_a_chrome_trace_do_not_overlap():
    """Viewers draw what overlaps as nested calls."""
    events = chrome.chrome_trace([simulate(WORK, SERVING, 64)])["traceEvents"]
    for tid in {event["tid"] for event in events}:
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == tid)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


# ---- the terminal


def shown(width: int = 88, **options) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, **options)
    before, after = (simulate(WORK, SERVING, chunk) for chunk in (WHOLE, 64))
    terminal.show(console, before, after, figures(before, after))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [88, 200, 60])
def test_charts_fit_the_terminal_and_stalls_are_there_before_only(width):
    text = shown(width)
    before, after = text.split("after: chunks of 64   0 stall steps")
    assert "before: whole prompts   4 stall steps" in before
    assert before.count("!") > 3 and "!" not in after.split("█▓")[0]
    assert max(map(len, text.splitlines())) <= min(88, width)
    assert len([row for row in text.splitlines() if re.match(r"(A|B|long|late) ", row)]) == 8
    assert "\x1b" not in text, "plain lines where there is no terminal"


def test_stalls_are_red_on_a_terminal():
    assert "\x1b[1;31m!" in shown(force_terminal=True, color_system="standard")


def test_the_table_says_what_is_lost_too():
    text = shown()
    assert re.search(r"stall steps +4 +0 *\n", text)
    assert re.search(r"longest gap +\d+\.\d ms +\d+\.\d ms +−\d+ %", text)
    assert re.search(r"total time +\d+\.\d ms +\d+\.\d ms +\+\d+ %", text)


@pytest.mark.parametrize(
    ("figure", "texts"),
    [
        (("total time", 2.0, 2.5), ("total time", "2.00 s", "2.50 s", "+25 %")),
        (("longest gap", 0.5, 0.0251), ("longest gap", "500.0 ms", "25.1 ms", "−95 %")),
        (("total time", 1.0, 1.001), ("total time", "1.00 s", "1.00 s", "the same")),
        (("TBT p99", None, 0.1), ("TBT p99", "–", "100.0 ms", "")),
    ],
)
def test_a_figure_in_words(figure, texts):
    assert row(*figure) == texts


# ---- the page


@pytest.fixture(scope="module")
def html() -> str:
    before, after = (simulate(WORK, SERVING, chunk) for chunk in (WHOLE, 64))
    rows = figures(before, after)
    return page.html("A <long> prompt", before, after, rows, every_size(WORK, SERVING), None)


def test_the_page_needs_no_network(html):
    found = read_page(html)
    assert found.resources == [] and found.problems == []
    assert not re.search(r"https?://|@import|import\(|fetch\(", html)
    assert "A &lt;long&gt; prompt" in html


def test_the_page_says_where_its_runs_come_from_in_words(html):
    assert "<footer>The two runs at the top: simulated model, virtual time.</footer>" in html
    machine = {"processor": "Abacus <9>", "cores": 2, "load_before": 0.05}
    found = {"model": "tiny-qwen3", "solution": "ref", "port": "torch", "device": "cpu", "machine": machine}
    found |= {"date": "2026-01-02 03:04 UTC", "commit": "abc", "changed_since_commit": True}
    before, after = (replace(simulate(WORK, SERVING, size), provenance=found) for size in (WHOLE, 64))
    measured = page.html("A prompt", before, after, [], [after], None)
    line = (
        "tiny-qwen3, ref, torch port, cpu; Abacus &lt;9&gt;, 2 cores, load 0.05 before; 2026-01-02 03:04 UTC, "
        "commit abc, changed since"
    )
    assert f"<footer>The two runs at the top: {line}.</footer>" in measured


def test_the_page_draws_every_chunk_size_and_shows_one(html):
    drawn = re.findall(r'<div class="size" data-chunk="(\d+)" data-title="[^"]+"( hidden)?>', html)
    assert [int(size) for size, _ in drawn] == [32, 64, 128, 256, WHOLE]
    assert [hidden for _, hidden in drawn].count("") == 1 and drawn[1] == ("64", "")
    slider = re.search(r'<input id="chunk" type="range" min="0" max="(\d+)" step="1" value="(\d+)"', html)
    assert slider.groups() == ("4", "1"), "one place a drawing; it stands where the drawing is shown"
    rows = re.findall(r"<tr( class=\"chosen\")?><th scope=\"row\">(\w+)</th>", html.split('id="sizes"')[1])
    assert [name for _, name in rows] == ["32", "64", "128", "256", "whole"] and rows[1][0]


def test_every_bar_says_what_it_is_and_every_lane_can_be_focused(html):
    drawings = [
        ElementTree.fromstring(text) for text in re.findall(r'<svg class="bars".*?</svg>', html, re.S)
    ]
    assert len(drawings) == 2 + 5
    trace = simulate(WORK, SERVING, WHOLE)
    words = {f"{trace.lanes[span.request].name}, {name}: {text}" for span, name, text in described(trace)}
    assert {title.text for title in drawings[0].iter("title")} == words
    assert any(re.fullmatch(r"A, stall: 300 tokens of prompts, 64 were agreed, \d+\.\d ms", w) for w in words)
    for drawing in drawings:
        assert all(lane.get("tabindex") == "0" and lane.get("aria-label") for lane in drawing.iter("g"))
        for bar in drawing.iter("rect"):
            assert float(bar.get("x")) >= 0 and float(bar.get("x")) + float(bar.get("width")) <= 1000.02


def test_a_stall_has_a_pattern_and_not_a_colour_alone(html):
    assert ".stall { fill: url(#stripes)" in html and '<pattern id="stripes"' in html


# ---- the book


def test_the_drawing_of_the_book_has_no_colours_of_its_own():
    drawing = timeline_screen.drawing()
    ElementTree.fromstring(drawing)
    assert not re.search(r"#[0-9a-f]{3,6}\b|rgb|style=", drawing)
    assert "\n\n" not in drawing, "Markdown ends HTML at a blank line"
    sheet = (BOOK / "theme" / "course.css").read_text(encoding="utf-8")
    classes = {name for group in re.findall(r'class="([^"]+)"', drawing) for name in group.split()}
    assert {name for name in classes if f".{name}" not in sheet} == set()
    assert drawing.count('class="stall"') == 4


# ---- schedulers that are wrong


def changed(**methods) -> SimpleNamespace:
    """The reference's policy with another scheduler."""
    scheduler = type("Changed", (SERVING.ChunkedPrefillScheduler,), methods)
    return SimpleNamespace(**{**vars(SERVING), "ChunkedPrefillScheduler": scheduler})


def test_a_scheduler_that_drains_prompts_first_stalls_in_its_chunks_too():
    def step(self):
        while self.handle_prefill_phase():
            self.move_prefill_to_decode()
        return self.handle_decode_phase()

    trace = simulate(among_decodes(), changed(step=step), 128)
    assert trace.stall_steps >= 15 and any(span.kind == "stall" for span in trace.spans)


def test_a_scheduler_that_does_not_serve_everybody_ends_in_a_line():
    with pytest.raises(NoEnd, match="the scheduler has work after"):
        simulate(WORK, changed(step=lambda self: False), 64)

    def add(self, request):
        if len(request.prompt_tokens) < 300:
            SERVING.ChunkedPrefillScheduler.add(self, request)

    with pytest.raises(NoEnd, match="request long has 0 of 8 tokens: it never ended"):
        simulate(WORK, changed(add=add), 64)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("timeline", ["--simulate"]),
        ("demo", ["--demo", "sync", "--device", "cpu"]),
        ("demo", ["--demo", "async", "--device", "cpu"]),
        (
            "bench-throughput",
            ["--preset", "chunked-prefill", "--config", "tiny-qwen3", "--layers", "1", "--device", "cpu"],
        ),
        ("see", ["2.7", "--device", "cpu", "--backend", installed_backends()[-1]]),
    ],
)
def test_every_command_says_so_in_one_line(name, arguments, monkeypatch, refused):
    """The requests wait for ever, which is no reason for the command to run for ever."""
    module = import_module(command_modules()[name])
    where = {"see": ports, "bench-throughput": chunked_prefill}.get(name, module)
    monkeypatch.setattr(where, "resolve_serving", lambda solution: changed(step=lambda self: False))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    line = refused(module.main, ["--solution", "ref", *arguments]).splitlines()[-1]
    assert "the scheduler has work after" in line
    assert line.endswith("`pdm run test --week 2 --day 7` says what is wrong with the scheduler")


# ---- the command

FILES = ("--html", "page.html", "--trace", "trace.json")
SMALL = ("--prompt-tokens", "300", "--decodes", "2", "--prefill-step", "64")


@pytest.mark.parametrize("port", installed_backends())
def test_both_runs_by_the_real_model(forks, port, tmp_path):
    options = f"--solution ref --backend {port} --device cpu --model tiny-qwen3-moe".split()
    done = forks.run("tiny_llm_course.commands.timeline", *options, *SMALL, *FILES, folder=tmp_path)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("warning: the load is")]
    assert (done.returncode, errors) == (0, [])
    assert re.search(r"stall steps +4 +0 *\n", done.stdout)
    assert f"Measured, one run each: tiny-qwen3-moe, {port} port, cpu." in done.stdout
    assert "written: page.html" in done.stdout and "written: trace.json" in done.stdout
    source = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["otherData"]["whole prompts"]
    assert source["provenance"]["port"] == port and source["provenance"]["versions"]["numpy"]
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (
        "This was fitted to the steps of both runs above. What it gives for them: whole prompts: " in text
        and str(tmp_path) not in text
    )
    assert f"{source['provenance']['port']} port, cpu; " in text and source["provenance"]["commit"] in text


def test_the_simulation_needs_no_model(capsys, monkeypatch):
    monkeypatch.setattr(command, "load", None)
    command.main(["--solution", "ref", "--simulate", "--prompt-tokens", "100000", "--prefill-step", "512"])
    out = capsys.readouterr().out
    assert "Simulated model, virtual time." in out and re.search(r"stall steps +195 +0 *\n", out)
    command.main(["--solution", "ref", "--simulate", "--decodes", "1", "--prompt-tokens", "1"])
    assert "1 request runs when a prompt of 1 token arrives" in capsys.readouterr().out


@pytest.mark.parametrize("simulate", [(), ("--simulate",)])
def test_a_blank_task_ends_it_in_one_line(simulate, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(["--backend", installed_backends()[-1], *SMALL, *simulate])
    assert re.match(
        r"blank: week \d day \d task \d+: .*`--solution ref` shows the reference instead$", end.value.code
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt-tokens", "4096"), "choose fewer, or --simulate"),
        (("--simulate", "--html", "nowhere/page.html"), "nowhere/page.html: cannot be written"),
        (("--html", "x", "--trace", "./x"), "--html and --trace name the same file, x"),
        (("--prefill-step", "0"), "'0' is not a whole number from 1"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, message, refused):
    options = ["--solution", "ref", "--backend", installed_backends()[-1], "--device", "cpu", *arguments]
    assert message in refused(command.main, options)

"""The live widget of Week 2 Day 7: its JavaScript makes the schedule of the Python policy, and it stays offline."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from book.tools import screen_files, screens, step_cost, widget
from tiny_llm_course.trace import provenance
from tiny_llm_course.trace.serve import EndlessTokenizer
from tiny_llm_course.trace.simulation import cost_fit
from tiny_llm_course.trace.simulation.cost_fit import sealed
from tiny_llm_course.trace.simulation.simulated_model import SimulatedModel
from tiny_llm_course.trace.simulation.step_cost import AdditiveCost, Line
from tiny_llm_engine.events import Event
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.sampling import SamplingParams
from tiny_llm_engine.solutions.port import Port
from tiny_llm_ref.serving.chunked_prefill.chunked_prefill_metrics import ChunkedPrefillMetrics, percentile
from tiny_llm_ref.serving.chunked_prefill.chunked_prefill_scheduler import ChunkedPrefillScheduler
from tiny_llm_ref.serving.chunked_prefill.request import Request
from tiny_llm_ref.serving.chunked_prefill.turns import Turns

SCHEDULE = (widget.FOLDER / "chunked-prefill-schedule.js").read_text(encoding="utf-8")
WHOLE = 999_999  # a step longer than every prompt
POLICIES = {
    "whole": False,
    "chunked": False,
    "pausing": True,
}  # whether a prompt makes room for a shorter one
LINE = {"a": 0.007, "b": 0.00015, "c": 1e-7}
COST = {"prefill": LINE, "decode": {"a": 0.008, "b": 0.001, "c": 2e-6}}
SCENE = {**widget.SCENE, "late": None, "cost": COST}


# ---- the Python side


class Served:
    """The widget's scene, served by the course's scheduler: answers are running, then the prompt arrives at time 0.

    Args:
        scene: what `schedule` of the widget takes.
        step: tokens of a chunk, at most.
        pausing: whether a prompt makes room for a shorter one.
    """

    def __init__(self, scene: dict, step: int, pausing: bool = False):
        self.scene, self.spans, self.requests, self.first = scene, [], [], {}
        costs = AdditiveCost(**{name: Line(**line) for name, line in scene["cost"].items()})
        self.model = SimulatedModel(costs)
        options = {"turns": Turns(pause_prefill=pausing), "clock": self.model.clock, "max_seq_len": 2**20}
        self.scheduler = ChunkedPrefillScheduler(self.model, scene["decodes"] + 2, step, **options)
        self.metrics = ChunkedPrefillMetrics(scene["promise"])
        self._let_answers_run()
        self.model.clock.now = 0.0
        self._tell_of_their_tokens()
        self.scheduler.metrics, self.scheduler.on_event = self.metrics, self._on_event
        self._add(scene["promptTokens"], scene["answerTokens"])
        late = [scene["late"]] if scene["late"] else []
        while late or self.scheduler.has_work_remaining():
            if not self.scheduler.has_work_remaining():
                self.model.clock.now = max(self.model.clock.now, late[0]["arrives"])
            if late and late[0]["arrives"] <= self.model.clock.now:
                self._add(late.pop()["tokens"], scene["answerTokens"])
            self.scheduler.step()

    def _add(self, prompt: int, answer: int) -> None:
        sampling, tokenizer = SamplingParams(max_tokens=answer), EndlessTokenizer()
        request = Request(
            self.model, tokenizer, [0] * prompt, prompt_idx=len(self.requests), sampling=sampling
        )
        self.requests.append(request)
        self.scheduler.add(request)

    def _let_answers_run(self) -> None:
        """One joins in a step, whole, and gets a token in that step and in all that follow."""
        count, step, self.scheduler.prefill_step = self.scene["decodes"], self.scheduler.prefill_step, WHOLE
        for steps in range(count, 0, -1):
            self._add(self.scene["context"] - steps, self.scene["answerTokens"] + steps + 1)
        for _ in range(count):
            self.scheduler.step()
        self.scheduler.prefill_step = step
        assert [request.offset for request in self.requests] == [self.scene["context"]] * count

    def _tell_of_their_tokens(self) -> None:
        """All that they have came at time 0: gaps of 0 seconds, which are left out of the figures."""
        for request in self.requests:
            for _ in request.tokens:
                self.metrics.record_token(request.prompt_idx, 0.0)
        self.before = len(self.metrics.tbt)

    def _on_event(self, event: Event) -> None:
        if event.kind == "token":
            self.first.setdefault(event.request.prompt_idx - self.scene["decodes"], event.time)
        for part in event.parts:
            names = ("kind", "tokens", "context", "running")
            number = part.requests[0].prompt_idx - self.scene["decodes"]
            span = {
                "start": event.start,
                "end": event.time,
                "prompt": number if part.kind == "chunk" else None,
            }
            self.spans.append(span | {name: getattr(part, name) for name in names})

    @property
    def figures(self) -> dict:
        gaps = self.metrics.tbt[self.before :]
        return {
            "chunks": self.metrics.prefill_chunks_processed,
            "stallSteps": self.metrics.stall_steps,
            "longestGap": self.metrics.longest_gap if gaps else None,
            "tbtP50": percentile(gaps, 50) if gaps else None,
            "tbtP99": percentile(gaps, 99) if gaps else None,
            "ttft": self.first[0],
            "lateTtft": self.first[1] - self.scene["late"]["arrives"] if self.scene["late"] else None,
            "total": self.model.clock.now,
        }


# ---- both sides


def differences(scene: dict, run: Callable) -> list[str]:
    """Where the widget's three timelines are not what the scheduler does: a step, a time, a figure."""
    runs = run(f"chunkedPrefillSchedule.compare({json.dumps(scene)})")
    found = []
    for name, pausing in POLICIES.items():
        widgets = runs[name]
        ours = Served(scene, WHOLE if name == "whole" else scene["chunk"], pausing)
        if len(widgets["spans"]) != len(ours.spans):
            found.append(f"{name}: {len(widgets['spans'])} steps, not {len(ours.spans)}")
        pairs = [*zip(widgets["spans"], ours.spans, strict=False), (widgets["metrics"], ours.figures)]
        found += [f"{name}: {one}, not {other}" for one, other in pairs if not same(one, other)]
    return found


def same(one: dict, other: dict) -> bool:
    """The same names, words and counts, and times that differ by less than a nanosecond."""

    def close(a, b) -> bool:
        return abs(a - b) < 1e-9 if isinstance(a, float) and isinstance(b, float) else a == b

    return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)


LINES = st.fixed_dictionaries({"a": st.floats(1e-6, 1), "b": st.floats(0, 1e-3), "c": st.floats(0, 1e-6)})
LATE = st.fixed_dictionaries({"tokens": st.integers(1, 3000), "arrives": st.floats(0, 3)})
SCENES = st.fixed_dictionaries(
    {
        "promptTokens": st.integers(1, 3000),
        "chunk": st.integers(8, 3100),
        "promise": st.integers(8, 600),
        "decodes": st.integers(0, 9),
        "answerTokens": st.integers(1, 40),
        "context": st.integers(10, 2000),
        "late": st.none() | LATE,
        "cost": st.fixed_dictionaries({"prefill": LINES, "decode": LINES}),
    }
)


@settings(max_examples=80, deadline=None)
@given(SCENES)
@example(SCENE)
@example({**SCENE, "promptTokens": 1, "chunk": 1, "decodes": 0, "answerTokens": 1})
@example({**SCENE, "promptTokens": 129, "chunk": 128, "answerTokens": 1})
@example({**SCENE, "promptTokens": 3072, "chunk": 16, "decodes": 8})
@example({**SCENE, "chunk": 512})
@example({**SCENE, "late": {"tokens": 8, "arrives": 0}})
@example({**SCENE, "late": {"tokens": 300, "arrives": 0.1}})
@example({**SCENE, "late": {"tokens": 8, "arrives": 60}})
@example({**SCENE, "promptTokens": 256, "late": {"tokens": 128, "arrives": 0.01}})
def test_the_widget_schedules_as_the_scheduler_does(run, scene):
    assert differences(scene, run) == []


@pytest.mark.parametrize("chunk", [16, 32, 64, 128, 256, 512, 1024])
def test_so_it_does_at_the_costs_that_the_page_shows(run, chunk):
    lines = {name: {factor: sealed()[name][factor] for factor in "abc"} for name in ("prefill", "decode")}
    assert differences({**SCENE, "chunk": chunk, "late": widget.LATE, "cost": lines}, run) == []


PREFILL, DECODE = "if (pending) prefill();", "if (running.length > 0) decode();"
BETWEEN = "\n            "
FLOOR = "Math.floor((p * sorted.length) / 100)"
A_STALL = 'span.kind === "chunk" && span.running > 0'
WRONG = {
    "drains the prompt first": (DECODE, "if (running.length > 0 && !pending) decode();"),
    "the last chunk is not clipped": ("Math.min(chunk, pending.tokens - before)", "chunk"),
    "every chunk costs as the first": ("size * before + ", ""),
    "a decode step costs the same at any context": ("sum + request.held + 1", "sum + 1"),
    "the prompt's own answer never decodes": ("if (pending.left > 0) running.push(pending);", ""),
    "decodes before it prefills": (PREFILL + BETWEEN + DECODE, DECODE + BETWEEN + PREFILL),
    "a stall without anyone who waits": (A_STALL, 'span.kind === "chunk"'),
    "the agreed chunk is a stall too": ("(span.tokens / promise) - 1", "(span.tokens / promise)"),
    "a longer prompt goes first too": ("tokens < left", "tokens <= promptTokens"),
    "a paused prompt begins again": ("paused.push(pending);", "pending.held = 0; paused.push(pending);"),
    "a late prompt is there from the start": ("coming[0].arrives <= now", "true"),
    "a late prompt's wait begins with the long one": ("times[0] - arrives", "times[0]"),
    "the promise is the chunk": ("metrics(served, input.promise)", "metrics(served, input.chunk)"),
    "a percentile one rank too high": ("Math.ceil((p * sorted.length) / 100) - 1", FLOOR),
}


LOOKED_AT = (
    {},
    {"promptTokens": 2000, "chunk": 300},
    {"decodes": 0},
    {"late": {"tokens": 200, "arrives": 0.05}},
    {"promptTokens": 256, "late": {"tokens": 200, "arrives": 0.04}},
)


@pytest.mark.parametrize("idea", WRONG)
def test_the_comparison_sees_a_wrong_schedule(idea):
    old, new = WRONG[idea]
    assert SCHEDULE.count(old) == 1
    scenes = [{**SCENE, **change} for change in LOOKED_AT]
    with widget.scripts({"chunked-prefill-schedule": SCHEDULE.replace(old, new)}) as wrong:
        assert any(differences(scene, wrong) for scene in scenes)


# ---- what its steps cost


def cases(line, noise: float = 0.0) -> list[dict]:
    """Three samples each of steps that cost by this line; the median is on it."""
    sizes = [(tokens, tokens * context) for tokens in (1, 32, 512) for context in (1, 300, 2000)]
    seconds = {pair: line[0] + line[1] * pair[0] + line[2] * pair[1] for pair in sizes}
    shares = (1 - noise, 1, 10)
    return [
        {"tokens": tokens, "pairs": pairs, "seconds": [seconds[tokens, pairs] * share for share in shares]}
        for tokens, pairs in sizes
    ]


def test_the_line_of_steps_that_cost_by_a_line_is_that_line():
    line = step_cost.line_of(cases((0.012, 0.0002, 3e-7), noise=0.3))
    assert [line[name] for name in "abc"] == pytest.approx([0.012, 0.0002, 3e-7])
    assert line["error"] < 1e-9


def test_a_line_that_falls_is_no_measurement():
    with pytest.raises(ValueError, match="too busy"):
        step_cost.line_of(cases((0.5, -0.0001, 0.0)))


def test_the_costs_on_the_page_are_the_lines_through_their_samples():
    """Nobody has typed them: the file is sealed, and says on which machine, of which commit."""
    measured = sealed()
    for name in ("prefill", "decode"):
        assert measured[name] == pytest.approx(step_cost.line_of(measured["samples"][name]), rel=1e-6)
        assert all(len(case["seconds"]) == measured["rounds"] for case in measured["samples"][name])
    assert measured["provenance"]["machine"]["processor"]
    assert measured["provenance"]["commit"]


def test_costs_that_somebody_edited_are_refused(tmp_path):
    measured = json.loads(cost_fit.MEASURED.read_text(encoding="utf-8"))
    measured["prefill"]["a"] /= 2
    (tmp_path / "cost.json").write_text(json.dumps(measured), encoding="utf-8")
    with pytest.raises(RuntimeError, match="pdm run book measure"):
        sealed(tmp_path / "cost.json")


def test_the_timeline_and_see_take_the_costs_of_the_page():
    lines, costs = sealed(), cost_fit.measured_cost()
    for kind in ("prefill", "decode"):
        assert asdict(getattr(costs, kind)) == {term: lines[kind][term] for term in "abc"}


@pytest.mark.parametrize("quiet", [0, 1, 2], ids=["busy before", "busy after", "quiet"])
def test_a_busy_machine_measures_nothing_that_stays(tmp_path, monkeypatch, quiet):
    """The load is taken before and after; both are in the file, or there is none."""
    monkeypatch.setattr(widget, "FOLDER", tmp_path)
    monkeypatch.setattr(step_cost, "measure", lambda *a, **o: {"provenance": {"machine": {}}})
    loads = iter([0.03, 0.07][:quiet])

    def settle() -> float:
        if (load := next(loads, None)) is None:
            raise ValueError("the load is 2.0")
        return load

    if quiet < 2:
        with pytest.raises(ValueError, match=r"the load is 2\.0"):
            widget.measure(installed_backends()[0], 5, settle=settle)
        assert not list(tmp_path.iterdir())
        return
    widget.measure(installed_backends()[0], 5, settle=settle)
    [file] = tmp_path.iterdir()
    assert sealed(file)["provenance"]["machine"] == {"load_before": 0.03, "load_after": 0.07}


def test_a_load_is_waited_for_and_refused_in_a_line(monkeypatch):
    loads, slept = iter([2.0, 0.5, 0.05]), []
    monkeypatch.setattr(widget, "load", lambda: next(loads, 3.0))
    monkeypatch.setattr(widget.time, "sleep", slept.append)
    assert widget.settled_load() == 0.05 and len(slept) == 2
    with pytest.raises(ValueError, match=r"the load is 3\.0: end what else runs here until it is below 0\.1"):
        widget.settled_load()


@pytest.mark.parametrize(("load", "warns"), [(9.0, True), (2.0, False), (None, False)])
def test_a_load_above_the_cores_is_one_line_on_standard_error(load, warns, monkeypatch, capsys):
    monkeypatch.setattr(provenance, "load", lambda: load)
    monkeypatch.setattr(provenance.os, "cpu_count", lambda: 2)
    provenance.warn_if_busy()
    expected = "warning: the load is 9.0 on 2 cores: measured times will be too long\n" if warns else ""
    assert capsys.readouterr() == ("", expected)


def test_measuring_gives_lines_and_every_sample():
    """On few and small steps, because only the shape of the result is looked at."""
    port = Port("tiny_llm_ref", installed_backends()[-1], "cpu")
    sizes = {"WHOLE": (96,), "CHUNKS": [(8, 0), (8, 64), (96, 0)], "DECODES": [(1, 8), (4, 8), (4, 64)]}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(step_cost, name, value)
        patch.setattr(step_cost, "line_of", lambda cases: {"a": 1.0, "cases": len(cases)})
        result = step_cost.measure(port, rounds=2)
    assert result["prefill"]["cases"] == result["decode"]["cases"] == 3
    assert [case["pairs"] for case in result["samples"]["prefill"]] == [36, 8 * 64 + 36, 96 * 97 // 2]
    assert [case["pairs"] for case in result["samples"]["decode"]] == [9, 36, 260]
    assert all(len(case["seconds"]) == 2 for case in result["samples"]["prefill"])


# ---- the page


def test_pictures_and_tables_in_the_pages_are_what_is_drawn_now():
    for name, fragment in screens.drawn_screens():
        assert (screen_files.FOLDER / f"{name}.html").read_text(encoding="utf-8") == fragment


def test_the_page_and_the_picture_show_the_same_scene():
    """The controls begin where the picture stands."""
    script = (widget.FOLDER / "chunked-prefill-widget.js").read_text(encoding="utf-8")
    for name, values in (("SCENE", widget.SCENE), ("LATE", widget.LATE)):
        (scene,) = re.findall(rf"const {name} = \{{ (.*) \}};", script)
        assert scene == ", ".join(f"{name}: {value}" for name, value in values.items())


@pytest.mark.parametrize("width", [300, 620, 760])
@pytest.mark.parametrize(
    "change", [{}, {"decodes": 0}, {"chunk": 1024, "promptTokens": 64}, {"chunk": 16, "decodes": 8}]
)
def test_every_scene_is_drawn_without_a_hole(run, width, change):
    """A picture is well-formed, has no colour of its own, and no number in it is missing or outside."""
    scene = json.dumps({**SCENE, **change})
    svg = run(f"chunkedPrefillDrawing.draw(chunkedPrefillSchedule.compare({scene}), {width}, 'x')")
    root = ElementTree.fromstring(svg)
    assert not re.search(r"NaN|undefined|Infinity|null|style=|stroke=|fill=\"#", svg)
    right = [float(box.get("x")) + float(box.get("width")) for box in root.iter("rect")]
    assert max(right) <= width
    stalls = [box for box in root.iter("rect") if box.get("class") == "stall"]
    assert len(stalls) == (0 if change in ({"decodes": 0}, {"chunk": 1024, "promptTokens": 64}) else 1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("width", [300, 760])
@pytest.mark.parametrize("arrives", [0, 0.1, 5])
def test_a_late_prompt_has_its_lane_its_wait_and_its_first_word(run, policy, width, arrives):
    scene = json.dumps({**SCENE, "late": {"tokens": 8, "arrives": arrives}})
    svg = run(
        f"chunkedPrefillDrawing.draw(chunkedPrefillSchedule.compare({scene}), {width}, 'x', ['{policy}'])"
    )
    root = ElementTree.fromstring(svg)
    assert not re.search(r"NaN|undefined|Infinity|null|style=|stroke=|fill=\"#", svg)
    texts = [text.text for text in root.iter("text")]
    assert texts.count("“hello”") == 1 and any(text.startswith("first word after") for text in texts)
    waits = [path for path in root.iter("path") if path.get("class") == "dash"]
    assert len(waits) == (arrives < 5), "one of the two waits for the other, or none"
    assert max(float(b.get("x")) + float(b.get("width")) for b in root.iter("rect")) <= width


def test_the_scripts_fetch_nothing():
    for file in widget.FOLDER.glob("*.js"):
        found = re.findall(
            r"https?:|//\w+\.\w+/|\bfetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon|\bimport\b|\beval\b|localStorage",
            file.read_text(encoding="utf-8"),
        )
        assert not found, f"{file.name}: {found}"

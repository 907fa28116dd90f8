"""The server's page: one file without a network, and its picture of a run against what a recorder has noted."""

import json
import re
from types import SimpleNamespace

import pytest

from tiny_llm_course.fakes.fake_packed_model import FakePackedModel
from tiny_llm_course.trace.recorder import Recorder
from tiny_llm_course.trace.serve import endless_sequence
from tiny_llm_course.trace.timeline import live
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_extensions.make_loop import make_loop

BLOCKS, BLOCK, PROMISE = 24, 4, live.PROMISE
REQUESTS = ((5, 9), (3, 12), (61, 3), (4, 4))  # tokens of the prompt and of the answer
SCRIPT, TALK = (
    live.Path(live.__file__).with_name(name).read_text(encoding="utf-8")
    for name in ("live_run.js", "live_talk.js")
)


class Watched:
    """A scheduler whose events become messages of the page, and are recorded, too."""

    def __init__(self, budget: int, stops_after: int | None = None, **options):
        s = resolve_serving("tiny_llm_ref")
        self.allocator = s.BlockAllocator(BLOCKS, BLOCK)
        model = FakePackedModel(self.allocator, s.Sampled)
        self.page, self.recorder, self.messages = live.LiveTimeline("tiny"), Recorder(PROMISE), []
        limits = {"max_num_batched_tokens": budget, "max_num_seqs": 4, **options}
        self.loop = make_loop(
            s, "hybrid", model, self.allocator, clock=model.clock, on_event=self.hear, **limits
        )
        self.options = s_options(self.loop.scheduler)
        self.max_num_batched_tokens, self.max_model_len = 64, 82  # three quarters are C's prompt
        self.network = SimpleNamespace(config=SimpleNamespace(vocab_size=256))
        self.runner = SimpleNamespace(most_blocks=BLOCKS)
        self.messages.append(self.page.hello(self))
        self.scheduler_steps = 0
        for number, (prompt, answer) in enumerate(REQUESTS):
            self.loop.add(endless_sequence(s, [97 + number] * prompt, answer, 80, number))
        while self.loop.has_work_remaining():
            if stops_after is not None and self.scheduler_steps == stops_after:
                for one in list(self.loop._sequences):
                    one.abort()
            self.loop.step()
            self.scheduler_steps += 1

    @property
    def num_waiting(self) -> int:
        return len(self.loop.waiting)

    def hear(self, event) -> None:
        self.recorder(event)
        message = self.page.message(event, self)
        if message is not None:
            self.messages.append(json.loads(json.dumps(message)))


def s_options(scheduler) -> SimpleNamespace:
    return SimpleNamespace(
        max_num_seqs=scheduler.max_num_seqs,
        enable_chunked_prefill=scheduler.limits.enable_chunked_prefill,
        policy="hybrid" if scheduler.limits.mixed_steps else "separate",
    )


@pytest.fixture(scope="module")
def browser():
    """Evaluates an expression with the page's own script, on these messages as `run`."""
    from py_mini_racer import MiniRacer

    with MiniRacer() as engine:
        engine.eval(f"const PROMISE = 8; {SCRIPT}")

        def evaluate(messages, expression):
            taken = f"{json.dumps(messages)}.reduce(take, newRun())"
            return json.loads(engine.eval(f"((run) => JSON.stringify({expression}))({taken})"))

        yield evaluate


POLICIES = [
    {"budget": 12},
    {"budget": 12, "mixed_steps": False},
    {"budget": 64, "enable_chunked_prefill": False},
]


def test_the_page_is_one_file_that_loads_nothing():
    html = live.LiveTimeline("<tiny> & co").html
    assert not re.search(r"https?://|\bsrc=|@import|url\((?!#)", html)
    assert html.count("&lt;tiny&gt; &amp; co") == 2 and "<tiny>" not in html
    assert f"PROMISE = {PROMISE}" in html


def test_hello_says_which_budgets_can_be_chosen():
    hello = Watched(12).messages[0]
    assert (hello["budget"], hello["budgets"]) == (12, [16, 32, 64])
    assert (hello["num_blocks"], hello["block_size"], hello["vocab_size"]) == (BLOCKS, BLOCK, 256)


@pytest.mark.parametrize("options", POLICIES)
def test_lanes_have_the_latencies_that_the_recorder_notes(browser, options):
    watched = Watched(**options)
    lanes = browser(watched.messages, "run.lanes")
    recorded = watched.recorder.trace().lanes
    assert [lane["tokens"] for lane in lanes] == [answer for _, answer in REQUESTS]
    assert [lane["prompt"] for lane in lanes] == [prompt for prompt, _ in REQUESTS]
    assert [lane["ttft"] for lane in lanes] == pytest.approx([lane.ttft for lane in recorded])
    assert [lane["longest"] for lane in lanes] == pytest.approx([max(lane.gaps) for lane in recorded])
    assert {lane["reason"] for lane in lanes} == {"length"}


def test_chunks_beyond_what_is_agreed_and_whole_prompts_stall_those_that_decode(browser):
    def stalls(**options):
        return browser(Watched(**options).messages, "run.lanes.map((lane) => lane.stalls)")

    assert stalls(budget=9) == [0] * 4  # 8 tokens of prompts beside one decode, as agreed
    assert stalls(budget=12)[0] > 1  # 11 and 10
    assert stalls(**POLICIES[2])[:2] == [1, 1]  # A and B wait for the 61 tokens of C, once


def test_the_clock_stands_still_without_work(browser):
    watched = Watched(12)
    steps = [message for message in watched.messages if message["kind"] == "step"]
    later = [{**step, "start": step["start"] + 1e6, "time": step["time"] + 1e6} for step in steps]
    once = browser(watched.messages, "run.clock")
    assert once == pytest.approx(sum(step["time"] - step["start"] for step in steps))
    assert browser([*watched.messages, *later], "run.clock") == pytest.approx(2 * once, rel=1e-6)


@pytest.mark.parametrize("options", POLICIES)
def test_a_strip_has_every_token_of_its_step_and_decodes_come_first(browser, options):
    strips = browser(
        Watched(**options).messages, "run.steps.map((step) => [step.tokens, step.budget, stripOf(step)])"
    )
    for tokens, budget, cells in strips:
        assert sum(cell["tokens"] for cell in cells) == tokens <= budget
        assert [cell["kind"] for cell in cells] == sorted((cell["kind"] for cell in cells), reverse=True)


def test_the_map_knows_who_owns_each_block_and_what_is_cached(browser):
    messages = Watched(12).messages
    steps = browser(
        messages, "run.steps.map((step) => [ownersOf(step.tables, run.hello.num_blocks), step.cached])"
    )
    free = browser(messages, "run.steps.map((step) => step.free)")
    for (owners, cached), left in zip(steps, free, strict=True):
        used = {block for block, requests in enumerate(owners) if requests}
        assert len(used) == BLOCKS - left
        assert not used & set(cached)
    assert steps[-2][1]  # some requests have ended, and their full blocks can still be found


def test_the_counts_are_right_after_stop_all(browser):
    """No step follows the last abort. A row that runs, one in its prefill and one that waits are stopped."""
    watched = Watched(9, stops_after=2)
    assert watched.messages[-1]["kind"] == "finish"
    found = browser(
        watched.messages, "[Object.keys(run.tables).length, run.waiting, run.free, run.cached.length]"
    )
    cached = len(watched.allocator.prefix_cache.idle)
    assert found == [0, 0, BLOCKS, cached]
    lanes = browser(watched.messages, "run.lanes.map((lane) => [lane.reason, lane.cached])")
    assert lanes == [["abort", 0]] * 4


def test_a_slow_reader_that_has_lost_messages_still_sees_a_picture(browser):
    messages = Watched(12).messages
    kept = [message for place, message in enumerate(messages) if place % 3]
    for some in (kept, [messages[0], *messages[-9:]]):
        lanes = browser(some, "run.lanes.map((lane) => [lane.name, lane.tokens, lane.longest])")
        assert lanes and all(name in "ABCD" and tokens >= 0 for name, tokens, _ in lanes)


def test_a_new_hello_begins_again(browser):
    messages = Watched(12).messages
    assert browser([*messages, *messages], "run.lanes.length") == len(REQUESTS)
    assert browser([*messages, messages[0]], "[run.lanes, run.steps, run.clock]") == [[], [], 0]


def test_a_step_in_words(browser):
    said = browser(Watched(12).messages, "run.steps.map(stepInWords)")
    assert said[0].endswith(
        "5 of A's prompt from 0 + 3 of B's prompt from 0 + 4 of C's prompt from 0 = 12 of 12 tokens"
    )
    assert any("2 decodes + 10 of C's prompt" in text for text in said)


def test_a_demonstration_is_kept_with_the_answer_that_waited_longest(browser):
    """One in large steps and one in small ones, on the clock that begins when the long prompt comes."""
    large, small = Watched(**POLICIES[2]), Watched(8)
    for watched, kind in ((large, "large"), (small, "small")):
        demos, c = browser(watched.messages, "[run.demos, run.lanes[2]]")
        demo, [a, b, *_] = demos.pop(kind), watched.recorder.trace().lanes
        assert [*demos.values()] == [None]
        assert demo["gap"] == pytest.approx(max(max(a.gaps), max(b.gaps))) and demo["ttft"] == c["ttft"]
        assert demo["lanes"][0]["name"] in "AB" and demo["lanes"][1]["name"] == "C"
        stalls = [span for span in demo["lanes"][0]["spans"] if span["kind"] == "stall"]
        assert len(stalls) == (kind == "large")
    both = browser([*large.messages, *small.messages], "Object.values(run.demos).map(demoInWords)")
    assert [text.partition(" tokens")[0] for text in both] == ["Steps of 64", "Steps of 8"]


def test_a_frozen_picture_stays_while_the_run_goes_on(browser):
    messages = Watched(12).messages
    kept = browser(
        messages[:20], f"((still) => ({json.dumps(messages[20:])}.reduce(take, run), still))(frozen(run))"
    )
    assert kept == browser(messages[:20], "run") != browser(messages, "run")


def test_what_a_tab_has_asked_follows_the_feed_and_is_sent_with_the_next_question():
    """Behind a system prompt if there is one; what had no answer is not sent again."""
    from py_mini_racer import MiniRacer

    asked = """(() => {
        const asked = ["a", "refused", "lost", "beside"].map((title) => newEntry(title, title !== "beside"));
        const plain = { error: "", anew: false, done: false };
        const of = (place, text, more) => hear(asked, { answer: asked[place].answer, text, ...plain, ...more });
        of(0, "no", { anew: true }); of(0, "b", { anew: true }); of(0, "c", { done: true });
        of(1, "", { error: "refused", done: true });
        of(2, "d"); of(3, "e", { done: true });
        hear(asked, { answer: "another tab's", text: "f", anew: true });
        lose(asked, [asked[0].answer]);
        return JSON.stringify([asked, ...["Be brief.", " "].map((system) => messagesOf(system, asked, "c"))]);
    })()"""
    with MiniRacer() as engine:
        engine.eval(TALK)
        entries, with_system, without = json.loads(engine.eval(asked))
    assert [entry["text"] for entry in entries] == ["bc", "", "d", "e"]
    assert all(entry["done"] for entry in entries) and "lost" in entries[2]["error"]
    assert [one["content"] for one in without] == ["a", "bc", "lost", "d", "c"]
    assert [one["role"] for one in without] == ["user", "assistant", "user", "assistant", "user"]
    assert with_system == [{"role": "system", "content": "Be brief."}, *without]

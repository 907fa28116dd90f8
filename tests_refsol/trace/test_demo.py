"""`pdm run demo`: real token counts, three policies, honest summaries, streams, Ctrl-C, and knobs that are there."""

import asyncio
import io
import os
import re
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from rich.console import Console

from tiny_llm_course.commands import demo as command
from tiny_llm_course.grading.virtual_time import run_virtually
from tiny_llm_course.trace.demo import prompts, report, session
from tiny_llm_course.trace.demo.device_watch import DeviceUse, DeviceWatch, resident_bytes, used_bytes_of
from tiny_llm_course.trace.demo.runs import POLICIES, Demo, Knobs
from tiny_llm_course.trace.demo.stream import serve_async
from tiny_llm_course.trace.demo.view import DemoLines, Pieces, RequestBoard
from tiny_llm_course.trace.serve import Serving
from tiny_llm_course.trace.simulation.simulated_model import SimulatedModel
from tiny_llm_course.trace.workload import LONG, SHORT, RequestSpec
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.models.tokenization import StreamDetokenizer
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.solution import resolve_serving

NAMES = resolve_serving("ref")
UNCHUNKED, CHUNKED, PAUSING = POLICIES
SMALL = {"large_1": 150, "large_2": 90}  # tokens, for the real model


class Words:
    """A tokenizer: a token a letter, no end, and a text of its own for every token."""

    eos_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return [1] * len(text)

    def detokenizer(self) -> StreamDetokenizer:
        return StreamDetokenizer(lambda token: b"ha ")


def specs(*sizes: int) -> list[RequestSpec]:
    return [
        RequestSpec(LONG, n, 0, None, f"large_{i}", priority="batch")
        if n > 9
        else RequestSpec(SHORT, n, 0, None, f"small_{i}")
        for i, n in enumerate(sizes)
    ]


def demo_of(model, *sizes: int, clock=None, **turned) -> Demo:
    turned = Knobs(**{"prefill_step": 8, "max_tokens": 6, **turned})
    return Demo(Serving(NAMES, model, Words(), clock or model.clock), specs(*sizes), turned)


def served(policy, *sizes: int, **turned):
    """On a clock of a second a token, all at the start."""
    return demo_of(SimulatedModel(), *sizes, **turned).serve(policy, lambda event: None, lambda: None)


# ---- the requests


def test_the_texts_have_the_tokens_that_they_say():
    tokenizer = load_tokenizer("tiny-qwen3")
    found = prompts.specs(tokenizer)
    assert [spec.name for spec in found] == ["large_1", "small_1", "small_2", "small_3", "large_2"]
    assert [spec.text_tokens for spec in found[1:4]] == [3, 4, 5]
    assert 2000 <= found[0].text_tokens < 2004 and 1500 <= found[4].text_tokens < 1504
    assert [spec.kind for spec in found] == [LONG, SHORT, SHORT, SHORT, LONG]
    assert [spec.priority for spec in found] == ["batch", *["interactive"] * 3, "batch"]
    assert all(spec.tokens == len(spec.prompt) > spec.text_tokens for spec in found)
    text = prompts.padded(tokenizer, 100)
    assert 100 <= len(tokenizer.encode(text)) < 104 and text.endswith(prompts.QUESTION)
    unknown = tokenizer.encode("\u2603\u2603")
    assert len(set(tokenizer.encode(text))) > 20 and not set(unknown) & set(tokenizer.encode(text))


def test_without_a_template_the_plain_text_is_sent():
    plain = SimpleNamespace(has_chat_template=False, encode=lambda text: text.split())
    assert prompts.specs(plain)[1].prompt == tuple(prompts.QUESTIONS["small_1"].split())


# ---- the policies, on a clock that is exact


def test_each_policy_is_what_it_says():
    """Two long texts around two short ones; a decode step takes a second, a chunk as many as it has tokens."""
    unchunked, chunked, pausing = (served(policy, 40, 3, 4, 24) for policy in POLICIES)
    assert [unchunked.ttft(i) for i in range(4)] == [40, 44, 49, 74]
    assert [chunked.ttft(i) for i in range(4)] == [40, 44, 49, 76], "two decode steps between the last chunks"
    assert [pausing.ttft(i) for i in range(3)][1:] == [3, 8]
    assert pausing.ttft(0) > pausing.ttft(3), "the shorter of the long ones goes first"
    assert (unchunked.trace.longest_gap, chunked.trace.longest_gap) == (25, 9)
    assert unchunked.median_ttft(SHORT) == 46.5 and pausing.median_ttft(SHORT) == 5.5
    assert unchunked.median_ttft(LONG) == (40 + 74) / 2
    for outcome in (unchunked, chunked, pausing):
        assert outcome.trace.end == max(lane.finished_time for lane in outcome.trace.lanes)
        assert all(outcome.latency(i) > outcome.ttft(i) for i in range(4))


def test_every_knob_is_wired():
    """Each changes what happens."""
    assert served(CHUNKED, 40, 3, 24, prefill_step=4).trace.longest_gap == 5
    assert served(CHUNKED, 40, 3, 24, batch_size=1).trace.end > served(CHUNKED, 40, 3, 24).trace.end
    refused = served(CHUNKED, 40, 3, max_seq_len=20)
    assert refused.requests[0].finish_reason == "error" and refused.latency(0) is None
    assert refused.ttft(0) is None and refused.ttft(1) is not None
    assert served(CHUNKED, 3, max_tokens=2).requests[0].text == "ha ha "
    patient, tired = (served(PAUSING, 40, 3, 4, 5, patience=n) for n in (8, 1))
    assert patient.ttft(3) < patient.ttft(0) and tired.ttft(3) > tired.ttft(0)
    adaptive = served(CHUNKED, 3, 600, max_tokens=20, chunker="adaptive")
    assert adaptive.trace.longest_gap > 32, "the smallest size of the ladder is larger than the step of 8"
    first = [served(CHUNKED, 40, 24, 3, priorities=on).ttft(2) for on in (False, True)]
    assert first[1] < first[0], "an interactive request goes before one of the class batch"
    waits = [
        served(CHUNKED, 3, 40, batch_size=2, peak_load=load, max_tokens=20).ttft(1) for load in (None, 0.5)
    ]
    assert waits[0] < waits[1], "a long prompt waits at peak load"
    free, kept = (served(CHUNKED, 40, 24, batch_size=2, reserved_decode_slots=n) for n in (0, 1))
    assert kept.ttft(1) > free.ttft(1), "a long text took the slot that is kept for questions"


# ---- the summary


def outcome_of(name: str, gap, ttft, total, texts=("a",), long_ttft=None):
    requests = [SimpleNamespace(text=text, prompt_tokens=[1] * 7) for text in texts]
    return SimpleNamespace(
        policy=SimpleNamespace(name=name),
        specs=[RequestSpec(SHORT, 7, 6, name="small_1", text_tokens=3)],
        requests=requests,
        trace=SimpleNamespace(longest_gap=gap, end=total, num_tokens=6),
        num_finished=1,
        median_ttft={SHORT: ttft, LONG: long_ttft}.get,
        mean_latency={SHORT: total, LONG: None}.get,
        per_second=lambda count: total and count / total,
        ttft=lambda index: ttft,
        latency=lambda index: total,
        use=DeviceUse(1.5, 250.0),
    )


def test_the_summary_says_what_was_measured():
    whole = outcome_of("whole", 2.0, 4.0, 10.0, long_ttft=2.0)
    assert report.summary(whole, outcome_of("cut", 0.5, 0.1, 11.0, long_ttft=6.0)) == [
        "cut against whole:",
        "  longest gap −75 %, short TTFT −98 %, long TTFT +200 %, total time +10 %",
        "  won: longest gap, short TTFT; lost: long TTFT, total time",
    ]


def test_the_summary_says_it_also_when_chunks_lose():
    _, line, verdict = report.summary(outcome_of("whole", 2.0, 4.0, 10.0), outcome_of("cut", 3.0, 5.0, 10.1))
    assert "longest gap +50 %, short TTFT +25 %, total time +1 %" in line
    assert verdict.strip() == "won: nothing; lost: longest gap, short TTFT"


def test_what_was_not_measured_is_left_out():
    [line] = report.summary(outcome_of("whole", None, None, None), outcome_of("cut", 3.0, 5.0, 1.0))
    assert line == "cut: nothing to compare"


def test_the_table_and_the_answers():
    console = Console(width=88, file=io.StringIO(), highlight=False)
    report.show(console, [outcome_of("whole", 2.0, 4.0, 10.0), outcome_of("cut", 0.5, 0.1, 11.0, ("b",))])
    out = console.file.getvalue()
    assert re.search(r"small_1 +3 +7 +4.00 +10.00 +0.10 +11.00", out), out
    assert re.search(r"total time +10.00 +11.00", out) and "the answers differ" in out
    assert re.search(
        r"short mean +10.00 +11.00 *\nlong mean +- +- *\nrequests/s +0.10 +0.09 *\ntokens/s +0.60 +0.55",
        out,
    )
    assert re.search(r"cores busy +1.50 +1.50 *\nmemory MB +250.00 +250.00", out)
    assert "fused" not in out and "public demo" not in out
    report.show(console, [outcome_of("whole", 2.0, 4.0, 10.0)], has_fused_attention=False)
    assert "without a fused kernel" in console.file.getvalue()
    assert max(map(len, out.splitlines())) <= 88


def test_the_verdict_compares_with_one_request_at_a_time():
    """A second a token: in two slots two answers share their decode steps, and chunks of one prompt stop the other."""
    runs = [served(policy, 40, 24, 40, 24, batch_size=2, max_tokens=40) for policy in (UNCHUNKED, CHUNKED)]
    alone = demo_of(SimulatedModel(), 40, 24, 40, 24, batch_size=2, max_tokens=40).one_by_one()
    alone = alone.serve(UNCHUNKED, lambda event: None, lambda: None)
    assert alone.trace.end == 2 * (40 + 24) + 4 * 39
    line, promise, _ = report.verdict(runs, alone)
    times = [alone.trace.end / run.trace.end for run in runs]
    assert line == "throughput (one request at a time: 1): " + ", ".join(
        f"{name} {each:.1f}" for name, each in zip(("unchunked", "chunked"), times, strict=True)
    )
    assert times[0] > 1.2 and "3 to 5" in promise


def test_a_watch_has_the_cores_and_the_most_memory():
    seconds, used = {"processor": 1.0, "wall": 10.0}, iter([5e6, 9e6, 7e6])
    watch = DeviceWatch(lambda: next(used), lambda: seconds["processor"], lambda: seconds["wall"])
    with watch:
        for _ in range(3):
            watch(None)
        seconds.update(processor=4.0, wall=12.0)
    assert watch.use == DeviceUse(1.5, 9.0)
    with DeviceWatch(lambda: None) as blind:
        blind(None)
    assert blind.use.memory is None


def test_the_memory_in_use_is_that_of_the_device():
    device = SimpleNamespace(device_memory=lambda device: None if device == "cpu" else (30, 100))
    assert used_bytes_of(device, "hpu")() == 70 and used_bytes_of(device, "cpu") is resident_bytes


# ---- streams


def test_requests_are_heard_between_steps_and_wait_from_the_moment_they_were_sent():
    """The first chunk takes 0.3 s, a request is sent every 0.1 s: two are sent in it, and go before the second."""

    class Slow(SimulatedModel):
        calls = ()

        def prefill(self, tokens, *arguments, **options):
            self.note(len(tokens))
            return super().prefill(tokens, *arguments, **options)

        def decode(self, *arguments, **options):
            self.note(1)
            return super().decode(*arguments, **options)

        def note(self, tokens: int) -> None:
            self.loop.now += 0.3 if tokens == 8 and 8 not in self.calls else 0.0
            self.calls += (tokens,)

    model, pieces = Slow(), {}

    def on_piece(index: int, piece: str) -> None:
        pieces.setdefault(index, []).append(piece)

    def run(loop):
        model.loop = loop
        demo = demo_of(model, 32, 3, 4, clock=loop.time)
        return serve_async(demo, PAUSING, lambda e: None, lambda: None, 0.1, on_piece)

    outcome = run_virtually(run)
    assert model.calls[2:6] == (8, 3, 1, 4), "the short ones were not heard after the first chunk"
    assert outcome.ttft(1) > 0.15, "its waiting began when it was heard, not when it was sent"
    assert all("".join(pieces[i]) == request.text == "ha " * 6 for i, request in enumerate(outcome.requests))
    assert len(pieces[1]) == 6, "the text came in one piece, not as a stream"
    assert outcome.trace.lanes[2].arrival_time - outcome.trace.lanes[0].arrival_time == pytest.approx(0.2)


@pytest.mark.parametrize("is_async", [False, True])
def test_ctrl_c_ends_every_task_and_releases_every_cache(is_async):
    closed, checks = [], iter([None] * 4 + [KeyboardInterrupt()])

    class Watched(SimulatedModel):
        def create_batch_cache(self, rows, length):
            layers = super().create_batch_cache(rows, length)
            for layer in layers:
                layer.release = lambda: closed.append("batch")
            return layers

    def check() -> None:
        if interrupt := next(checks):
            raise interrupt

    demo, started = demo_of(Watched(), 40, 3, 30), []

    def listen(event) -> None:
        started.extend([event.request] if event.request else [])

    with pytest.raises(KeyboardInterrupt):
        if is_async:
            asyncio.run(serve_async(demo, CHUNKED, listen, check, 0.0))
        else:
            demo.serve(CHUNKED, listen, check)
    assert closed == ["batch"]
    assert started and all(request.is_done for request in started)


# ---- what is seen


def test_lines_and_pieces():
    console = Console(width=100, file=io.StringIO(), highlight=False)
    demo = demo_of(SimulatedModel(), 40, 3)
    demo.serve(PAUSING, DemoLines(console, demo.specs), lambda: None)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert lines[:2] == ["0.00 s large_0 makes room at 0 of 40 tokens", "3.00 s small_1 first token"]
    assert "length, 6 tokens: ha ha" in lines[-1] and len(lines) == 5
    console = Console(width=100, file=io.StringIO(), highlight=False)
    pieces = Pieces(console, demo.specs)
    pieces(0, "x" * 39)
    assert console.file.getvalue() == ""
    pieces(0, "y"), pieces(1, "z"), pieces.flush(1), pieces.flush(1)
    assert [line.split() for line in console.file.getvalue().splitlines()] == [
        ["large_0", ">", "x" * 39 + "y"],
        ["small_1", ">", "z"],
    ]


def test_the_board_follows_the_events():
    demo, seen = demo_of(SimulatedModel(), 40, 3), []
    board = RequestBoard(demo.specs)

    def listen(event) -> None:
        board(event)
        console = Console(width=60, file=io.StringIO())
        console.print(board)
        seen.append([" ".join(line.split()) for line in console.file.getvalue().splitlines()[1:]])

    demo.serve(PAUSING, listen, lambda: None)
    assert seen[0] == ["large_0 waits 0/40 0", "small_1 waits 0/3 0"]
    assert any(large == "large_0 paused 0/40 0" for large, _ in seen)
    assert any(large.startswith("large_0 prompt 8/40 0") for large, _ in seen)
    assert seen[-1] == ["large_0 done 40/40 6 ha ha ha ha ha ha", "small_1 done 3/3 6 ha ha ha ha ha ha"]


# ---- the command


def test_every_remedy_is_a_command_or_an_option_that_is_there():
    scripts = re.findall(r"(?m)^([a-z-]+) = ", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    parser = command.parser()
    for command_line in re.findall(r"`([^`]+)`", command.REMEDIES):
        if command_line.startswith("pdm run "):
            assert command_line.split()[2] in scripts, command_line
        elif command_line.startswith("--"):
            option, *value = command_line.split()
            assert option in parser._option_string_actions
            assert not value or parser.parse_args([option, *value])
        else:
            assert command_line in {policy.name for policy in POLICIES}, command_line


def test_the_help_says_what_changes_what_and_what_to_do_about_trouble(capsys):
    with pytest.raises(SystemExit) as end:
        command.main(["--help"])
    out = capsys.readouterr().out
    says = "smaller shortens gaps", "maximum number of times", "tokens of an answer", "Out of memory"
    assert end.value.code == 0 and all(words in out for words in says)


def test_prompts_of_a_file_are_long_if_they_need_more_than_a_chunk():
    plain = SimpleNamespace(has_chat_template=False, encode=lambda text: [1] * len(text))
    found = prompts.specs_of(plain, ["short", "x" * 30, "short"], 8)
    assert [(spec.name, spec.kind, spec.priority, spec.tokens) for spec in found] == [
        ("prompt_1", SHORT, "interactive", 5),
        ("prompt_2", LONG, "batch", 30),
        ("prompt_3", SHORT, "interactive", 5),
    ]


def test_the_mean_latency_and_the_rates_are_those_of_all_requests():
    run = served(CHUNKED, 40, 3, 4)
    assert run.mean_latency(SHORT) == (run.latency(1) + run.latency(2)) / 2
    assert run.mean_latency(LONG) == run.latency(0)
    assert run.per_second(run.num_finished) == 3 / run.trace.end and run.trace.num_tokens == 18


def test_the_menu(capsys, refused):
    answers = iter(["", "4", " 2 "])
    assert command.choose_demo(None, True, lambda text: next(answers)) == "async"
    assert command.choose_demo(None, False, None) == "sync"
    assert "no choice on standard input" in capsys.readouterr().err
    for line, chosen in (("2\n", "async"), ("async", "async"), (" 1 \n", "sync"), ("3", "simple")):
        assert command.choose_demo(None, False, None, lambda line=line: line) == chosen
    assert capsys.readouterr().err == ""
    assert "give 1, 2 or 3 (sync, async, simple)" in refused(
        command.choose_demo, None, False, None, lambda: "4\n"
    )
    assert command.choose_demo("async", True, None) == "async"


def test_a_choice_on_standard_input_is_read_if_it_is_there(monkeypatch):
    """A pipe that nobody writes into, and nobody closes, holds the demo up no more than a closed one."""
    reader, writer = os.pipe()
    with open(reader, encoding="utf-8") as stdin, open(writer, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert command.first_line() == ""
        print("2", file=pipe, flush=True)
        assert command.first_line() == "2\n"
        pipe.close()
        assert command.first_line() == ""


@pytest.mark.parametrize(
    ("kind", "backend"), [*zip(["sync", "async"], installed_backends() * 2, strict=False)]
)
def test_the_command_runs_three_policies(kind, backend, monkeypatch, capsys):
    monkeypatch.setattr(prompts, "LONG_TEXTS", SMALL)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    options = ["--backend", backend, "--device", "cpu", "--max-tokens", "4", "--prefill-step", "32"]
    command.main([*options, *(["--demo", "async", "--gap", "0.01"] if kind == "async" else [])])
    out = capsys.readouterr().out
    for number, policy in enumerate(POLICIES, 1):
        assert f"{number} of 3, {policy.name}: " in out
    assert "the same answers under every policy" in out
    assert re.search(
        r"pausing against unchunked:\n  longest gap \S+ %, short TTFT \S+ %, long TTFT \S+ %, total time \S+ %",
        out,
    )
    assert out.count("first token\n") == 15 and "\x1b" not in out
    assert re.search(r"\ntokens/s +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d *\n", out)
    assert "out of memory" not in out, "the tables are for --help"
    assert re.search(r"cores busy +\d+\.\d\d +\d", out)
    assert ("throughput (one request at a time: 1): unchunked" in out) == (kind == "sync")
    assert ("small_1   > You are welcome!" in out) == (kind == "async")


def test_the_simple_demo_has_four_prompts_their_tokens_answers_and_the_total(monkeypatch, capsys):
    monkeypatch.setattr(prompts, "padded", lambda tokenizer, tokens: "a long text " * 30)
    command.main(["--demo", "simple", "--device", "cpu", "--prefill-step", "32"])
    out = capsys.readouterr().out
    found = re.findall(r"Prompt (\d) \(([\d,]+) tokens\): (.+)\nAnswer: (.+)\n", out)
    assert [number for number, *_ in found] == [*"1234"] and found[0][1:] == (
        "3",
        "Thank you!",
        "You are welcome! Ask me more about LLM serving whenever you like.",
    )
    assert int(found[3][1]) > 32 and found[3][2].endswith("…"), "the fourth needs several chunks"
    assert re.search(r"\nTotal: \d+\.\d\d s for 4 prompts\n$", out)


@pytest.mark.parametrize("kind", ["sync", "simple"])
def test_ctrl_c_is_an_exit_code_and_no_traceback(kind, monkeypatch, capsys):
    @contextmanager
    def pressed_after_a_while():
        left = iter(range(6))

        def check() -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        yield check

    monkeypatch.setattr(prompts, "LONG_TEXTS", SMALL)
    monkeypatch.setattr(session, "interrupts_kept", pressed_after_a_while)
    with pytest.raises(SystemExit) as end:
        command.main(["--demo", kind, "--device", "cpu", "--max-tokens", "9"])
    assert end.value.code == 130 and capsys.readouterr().out.endswith("\ninterrupted\n")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--model", "no-such-model"], "no-such-model"),
        (["--batch-size", "2", "--reserved-decode-slots", "2"], "give 0 to 1, fewer than slots"),
        (["--gap", "-1"], "give seconds from 0 to 60"),
        (["--peak-load", "2"], "give a share above 0 and at most 1"),
        (["--prompts-file", "no-such-file"], "no-such-file: cannot be read"),
    ],
)
def test_what_cannot_be_run_is_one_line(wrong, says, refused):
    assert says in refused(command.main, ["--demo", "async", "--device", "cpu", *wrong]).splitlines()[-1]

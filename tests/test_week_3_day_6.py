"""Week 3 Day 6: the engine loop. A fake engine gives one letter per step; asyncio runs in virtual time.

Oracles: the answers that the engine was told to give; exact traces of its calls.
"""

import asyncio
import threading
from concurrent.futures import Executor, Future

import pytest

from tiny_llm_course.fakes.fake_engine import FakeAnswer, FakeEngine, FakeRequest
from tiny_llm_course.grading.virtual_time import SlowExecutor, run_virtually

PATIENCE = 50.0  # real seconds that a step waits for an event loop on another thread, if that never comes


class InlineExecutor(Executor):
    """Runs each call at once, in the caller's thread."""

    def submit(self, fn, /, *arguments, **options):
        future = Future()
        try:
            future.set_result(fn(*arguments, **options))
        except BaseException as error:
            future.set_exception(error)
        return future


def blank_comes_out(error):
    """A blank task that a step has called is no failure of the step."""
    if isinstance(error, NotImplementedError):
        raise error


def opened(s, engine, max_open=8, on_failure=blank_comes_out, **options):
    """A loop that is ready, whose worker runs where it is called."""
    loop = s.EngineLoop(max_open, on_failure=on_failure, **options)
    loop._worker.shutdown()
    loop._worker, loop.engine, loop.state = InlineExecutor(), engine, "ready"
    return loop


async def served(loop, main):
    """The result of `main`, which runs while the loop serves."""
    serving, asking = asyncio.create_task(loop.serve()), asyncio.ensure_future(main)
    await asyncio.wait({serving, asking}, return_when=asyncio.FIRST_COMPLETED)
    is_blank = serving.done() and isinstance(serving.exception(), NotImplementedError)
    if is_blank or not asking.done():
        await serving  # raises what has ended it
        pytest.fail("`serve` has returned, and readers wait")
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    loop._worker.shutdown()
    return await asking


async def everything(stream):
    """What a stream yields, as far as it ends."""
    count = 0
    async for pieces in stream:
        count += 1
        assert count < 200, "a stream yields for ever: what was read comes again"
        yield pieces


async def read(stream) -> list[str]:
    """The answers, read to their end."""
    texts = [""] * len(stream.sequences)
    async for pieces in everything(stream):
        for piece in pieces:
            texts[piece.index] += piece.text
    return texts


def piece(s, text, index=0, reason=None):
    return s.Piece(index, text, [*text], reason)


def stream_of(s, count=1):
    return s.RequestStream([FakeAnswer() for _ in range(count)], lambda stream: None)


# One reader, at its own pace.


@pytest.mark.task("3.6.1")
def test_stream_wakes_a_reader_that_waits(s):
    """Each piece reaches the reader as it comes, once, and in order."""

    async def main(loop):
        stream, seen = stream_of(s), []

        async def reader():
            async for pieces in everything(stream):
                seen.append([one.text for one in pieces])

        reading = asyncio.create_task(reader())
        for text, reason in (("a", None), ("b", None), ("c", "stop")):
            await asyncio.sleep(1)
            stream.put([piece(s, text, reason=reason)])
        await reading
        return seen

    seen = run_virtually(main)
    assert seen == [["a"], ["b"], ["c"]], f"three pieces, a second apart: {seen}"


@pytest.mark.task("3.6.1")
def test_stream_merges_what_was_not_read(s):
    """A reader that comes late finds one piece: the texts and the tokens joined, with the newest reason."""

    async def main(loop):
        stream = stream_of(s)
        for text in "abcd":
            stream.put([piece(s, text)])
        stream.put([piece(s, "e", reason="stop")])
        assert len(stream._unread) == 1, f"five pieces of one answer wait as {len(stream._unread)}"
        return [pieces async for pieces in everything(stream)]

    got = run_virtually(main)
    assert [len(pieces) for pieces in got] == [1], f"one answer, read once, is one piece: {got}"
    [[one]] = got
    found = (one.text, "".join(one.sampled), one.finish_reason)
    assert found == ("abcde", "abcde", "stop"), f"text, tokens and reason of the merged piece: {found}"


@pytest.mark.task("3.6.1")
def test_stream_delivers_tokens_without_a_text(s):
    """Half a character is a token and no text yet: its log-probability is delivered all the same."""

    async def main(loop):
        stream = stream_of(s)
        stream.put([s.Piece(0, "", [1])])
        first = await anext(stream)
        stream.put([s.Piece(0, "", [2])])
        stream.put([s.Piece(0, "é", [3], "stop")])
        return [first, await anext(stream)]

    found = [[(one.text, one.sampled) for one in pieces] for pieces in run_virtually(main)]
    assert found == [[("", [1])], [("é", [2, 3])]], f"three tokens and one character: {found}"


@pytest.mark.task("3.6.1")
def test_stream_keeps_answers_apart(s):
    """Pieces of two answers are merged each for itself, and come in the order of the answers."""

    async def main(loop):
        stream = stream_of(s, 2)
        stream.put([piece(s, "x", 1), piece(s, "a", 0)])
        stream.put([piece(s, "y", 1)])
        return [(one.index, one.text) for one in await anext(stream)]

    found = run_virtually(main)
    assert found == [(0, "a"), (1, "xy")], f"answer 0 has a, answer 1 has x and y: {found}"


@pytest.mark.task("3.6.1")
def test_stream_waits_for_no_other_answer(s):
    """What one answer has gained is read at once; another answer may still wait for its row."""

    async def main(loop):
        stream = stream_of(s, 2)
        stream.put([piece(s, "x", 1)])
        return [(one.index, one.text) for one in await anext(stream)]

    assert run_virtually(main) == [(1, "x")], "answer 1 has a piece, answer 0 has none"


@pytest.mark.task("3.6.1")
def test_stream_ends_after_the_last_piece_of_every_answer(s):
    """Not after the first answer's end, and not before its last piece was read."""

    async def main(loop):
        stream = stream_of(s, 2)
        stream.put([piece(s, "a", 0, "stop")])
        assert not stream.is_done, "one answer of two has ended"
        found = [[one.text for one in await anext(stream)]]
        stream.put([piece(s, "b", 1, "length")])
        assert stream.is_done, "both have ended"
        found.append([one.text for one in await anext(stream)])
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        return found

    found = run_virtually(main)
    assert found == [["a"], ["b"]], f"pieces are read before the stream ends: {found}"


@pytest.mark.task("3.6.1")
def test_stream_waits_again_after_it_was_read(s):
    """What was read does not come again, and nobody is woken without news."""

    async def main(loop):
        stream = stream_of(s)
        stream.put([piece(s, "a")])
        await anext(stream)
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(1)
        assert not waiting.done(), f"nothing new was put, and the reader got {waiting.result()}"
        stream.put([piece(s, "b")])
        return [one.text for one in await waiting]

    assert run_virtually(main) == ["b"], "the second piece alone"


# Who is let in.


@pytest.mark.task("3.6.2")
def test_submit_hands_over_and_touches_no_engine(s):
    """The stream waits for the next turn, in the order of arrival; the engine belongs to another thread."""
    engine = FakeEngine()
    loop = opened(s, engine)
    streams = [loop.submit([FakeAnswer("a")]), loop.submit([FakeRequest("b", "c")])]
    assert loop._arrived == streams, "both wait for the next turn, in their order"
    assert loop.num_open == 3, f"three answers are open: {loop.num_open}"
    assert engine.calls == [], f"the engine was called on the event loop's thread: {engine.calls}"
    assert loop._wake.is_set(), "nobody has woken the loop"


@pytest.mark.task("3.6.2")
def test_submit_refuses_when_the_queue_is_full(s):
    """`max_open` answers are open; the next is refused at once, and leaves nothing behind."""
    loop = opened(s, FakeEngine(), max_open=3)
    loop._ends.extend((100.0, 107.0))
    for letter in "abc":
        loop.submit([FakeAnswer(letter)])
    with pytest.raises(s.QueueFull) as refused:
        loop.submit([FakeAnswer("d")])
    seconds = refused.value.retry_after
    assert seconds == 7, f"requests end 7 s apart, as `self.retry_after()` says: QueueFull({seconds!r})"
    assert (loop.num_open, len(loop._arrived)) == (3, 3), "a refused request is neither open nor handed over"


@pytest.mark.task("3.6.2")
@pytest.mark.parametrize(
    ("opens", "count", "fits"), [(1, 2, True), (2, 2, False), (0, 3, True), (1, 3, False)]
)
def test_submit_counts_answers_and_takes_all_or_none(s, opens, count, fits):
    """A request for several answers needs a place for each of them."""
    loop = opened(s, FakeEngine(), max_open=3)
    for _ in range(opens):
        loop.submit([FakeAnswer()])
    loop._arrived.clear()  # they run
    request = FakeRequest(*["abc"] * count)
    if fits:
        loop.submit([request])
    else:
        with pytest.raises(s.QueueFull):
            loop.submit([request])
    expected = opens + count * fits
    assert loop.num_open == expected, f"{opens} open, {count} more, 3 places: {loop.num_open} are open now"


@pytest.mark.task("3.6.2")
@pytest.mark.parametrize("state", ["starting", "stopping", "stopped", "dead"])
def test_submit_refuses_when_nobody_serves(s, state):
    """Only a loop that is ready takes requests; the others say what they are, whether they are full or not."""
    loop = opened(s, FakeEngine(), max_open=1)
    loop.state = state
    with pytest.raises(s.NotServing) as refused:
        loop.submit([FakeAnswer()])
    assert refused.value.state == state, f"the refusal says {refused.value.state!r}"
    assert loop.num_open == 0, "a refused request is open"
    loop.state = "ready"
    loop.submit([FakeAnswer()])
    loop.state = state
    with pytest.raises((s.NotServing, s.QueueFull)) as refused:
        loop.submit([FakeAnswer()])
    assert refused.type is s.NotServing, f"{state} and full: {refused.type.__name__} sends it back here"


# One turn of the engine.


def turn(loop, arrived=(), abandoned=()):
    """The news of one turn, as {text of the whole answer: (new text, reason)}."""
    try:
        news = loop.turn(list(arrived), list(abandoned))
    except OSError as error:
        pytest.fail(f"a step failed, and the turn with it: {error}")
    return {
        stream.sequences[one.index].whole: (one.text, one.finish_reason)
        for stream, pieces in news
        for one in pieces
    }


@pytest.mark.task("3.6.3", after="3.6.4")
def test_turn_adds_steps_and_tells_what_is_new(s):
    """One step per turn; each stream gets what its answers have gained in it."""
    engine = FakeEngine()
    loop = opened(s, engine)
    arrived = [loop.submit([FakeAnswer("ab")]), loop.submit([FakeRequest("uvw", "x")])]
    found = [turn(loop, arrived), turn(loop), turn(loop)]
    assert found == [
        {"ab": ("a", None), "uvw": ("u", None), "x": ("x", "length")},
        {"ab": ("b", "length"), "uvw": ("v", None)},
        {"uvw": ("w", "length")},
    ], f"a letter per answer and turn, each reported once: {found}"
    assert [call for call in engine.calls if call != "collect"] == [
        "add ab",
        "add uvw",
        "add x",
        "step",
        "step",
        "step",
    ], f"every answer is added once, and a turn is one step: {engine.calls}"


@pytest.mark.task("3.6.3", after="3.6.4")
def test_turn_adds_every_request_of_a_stream(s):
    """A reader with two prompts has two requests in one stream, and both are served."""
    engine = FakeEngine()
    loop = opened(s, engine)
    found = turn(loop, [loop.submit([FakeAnswer("ab"), FakeAnswer("xy")])])
    assert found == {"ab": ("a", None), "xy": ("x", None)}, f"all requests of a stream are added: {found}"


@pytest.mark.task("3.6.3", after="3.6.4")
def test_turn_collects_when_one_answer_of_several_has_ended(s):
    """The engine keeps the result of each answer, and need not wait for the others of its stream."""
    engine = FakeEngine()
    loop = opened(s, engine)
    turn(loop, [loop.submit([FakeRequest("a", "xyz")])])
    assert engine.calls.count("collect") == 1, f"one of two answers has ended: {engine.calls}"
    turn(loop)
    assert engine.calls.count("collect") == 1, f"none has ended in this turn: {engine.calls}"


@pytest.mark.task("3.6.3", after="3.6.4")
def test_turn_says_nothing_of_those_without_news(s):
    """A prompt in its prefill has produced nothing."""
    loop = opened(s, FakeEngine())
    slow, quick = loop.submit([FakeAnswer("a", prefill=1)]), loop.submit([FakeAnswer("bc")])
    assert [stream for stream, _ in loop.turn([slow, quick], [])] == [quick], "the slow one is in its prefill"
    assert [stream for stream, _ in loop.turn([], [])] == [slow, quick], "now both have a letter"


@pytest.mark.task("3.6.3", after="3.6.4")
def test_turn_aborts_before_the_step(s):
    """The block of an abandoned request is free when the step is planned: who waits for it runs in this step."""
    engine = FakeEngine(blocks=1)
    loop = opened(s, engine)
    first, second = loop.submit([FakeAnswer("abc")]), loop.submit([FakeAnswer("xyz")])
    turn(loop, [first, second])
    found = turn(loop, abandoned=[first])
    assert found == {"abc": ("", "abort"), "xyz": ("x", None)}, (
        f"the first is aborted, and the second has its block in the same turn: {found}"
    )


@pytest.mark.task("3.6.3", after="3.6.4")
def test_turn_aborts_every_answer_of_a_request(s):
    """Nobody reads the second answer either, nor that to the second prompt."""
    loop = opened(s, FakeEngine())
    stream = loop.submit([FakeRequest("abc", "xyz"), FakeAnswer("klm")])
    turn(loop, [stream])
    found = turn(loop, abandoned=[stream])
    expected = dict.fromkeys(("abc", "xyz", "klm"), ("", "abort"))
    assert found == expected, f"the reader of all has left: {found}"


@pytest.mark.task("3.6.3", after="3.6.4")
def test_turn_takes_an_abort_and_an_arrival_of_the_same_request(s):
    """A reader may leave before its request has seen the engine: it ends, and never runs."""
    engine = FakeEngine()
    loop = opened(s, engine)
    stream = loop.submit([FakeAnswer("abc")])
    assert turn(loop, [stream], [stream]) == {"abc": ("", "abort")}, "it ends with its first turn"
    assert engine.running == [], "nobody reads it, and it runs"


@pytest.mark.task("3.6.3", after="3.6.4")
def test_turn_forgets_those_that_have_ended(s):
    """Neither the loop nor the engine keeps an ended request; nothing is collected when none has ended."""
    engine = FakeEngine()
    loop = opened(s, engine)
    turn(loop, [loop.submit([FakeAnswer("ab")]), loop.submit([FakeAnswer("xyz")])])
    assert "collect" not in engine.calls, "nobody has ended: to look for the ended costs time in every step"
    turn(loop)
    assert engine.calls.count("collect") == 1, "one request has ended: the engine still keeps its result"
    assert len(loop._served) == 1, f"{len(loop._served)} streams are asked for news, one has not ended"


@pytest.mark.task("3.6.3", after="3.6.4")
def test_turn_forgets_those_whose_readers_have_left(s):
    """An abandoned stream ends with "abort", and is asked for news no longer: else it stays for ever."""
    engine = FakeEngine()
    loop = opened(s, engine)
    left, stays = loop.submit([FakeAnswer("abcd")]), loop.submit([FakeAnswer("xyz")])
    turn(loop, [left, stays])
    turn(loop, [], [left])
    assert loop._served == [stays], f"{len(loop._served)} streams are kept, and one has a reader"
    assert "collect" in engine.calls, "the engine still keeps the aborted request"


# A step that fails.


@pytest.mark.task("3.6.4")
def test_try_step_ends_the_failed_and_serves_the_others(s):
    """The engine has ended the requests of the failed call with an error; those that waited go on."""
    failures, error = [], OSError("the device is gone")
    engine = FakeEngine(blocks=1, fails={1: error})
    loop = opened(s, engine, on_failure=failures.append)
    found = [turn(loop, [loop.submit([FakeAnswer("abc")]), loop.submit([FakeAnswer("x")])])]
    found += [turn(loop), turn(loop)]
    assert found == [{"abc": ("a", None)}, {"abc": ("", "error")}, {"x": ("x", "length")}], (
        f"one request fails, the next is served: {found}"
    )
    assert failures == [error], f"the failure was reported as {failures}"


@pytest.mark.task("3.6.4")
@pytest.mark.parametrize("most", [1, 3])
def test_try_step_gives_up_when_nothing_works(s, most):
    """So many failures in a row, and what the last has raised comes out: the device is gone."""
    errors, failures = [OSError(f"failure {number}") for number in range(most)], []
    engine = FakeEngine(fails=dict(enumerate(errors)))
    loop = opened(s, engine, max_failures=most, on_failure=failures.append)
    raised = []
    for _ in errors:
        try:
            loop.try_step()
        except OSError as error:
            raised.append(error)
    assert raised == errors[-1:], f"the last of {most} failures alone comes out: {raised}"
    assert failures == errors, f"each failure is reported, also the last: {failures}"


@pytest.mark.task("3.6.4")
def test_try_step_forgives_after_a_good_step(s):
    """Failures count in a row. A server that runs for months has more than three of them."""
    failures = []
    fails = {number: OSError("again") for number in (0, 1, 3, 4, 6, 7)}
    loop = opened(s, FakeEngine(fails=fails), max_failures=3, on_failure=failures.append)
    for number in range(9):
        try:
            loop.try_step()
        except OSError:
            pytest.fail(f"step {number} is the second failure in a row, and three are allowed")
    assert len(failures) == 6, "each failure is reported"


@pytest.mark.task("3.6.4")
def test_try_step_keeps_no_exit_back(s):
    """KeyboardInterrupt and SystemExit are no failures of a step."""
    loop = opened(s, FakeEngine(fails={0: KeyboardInterrupt()}))
    with pytest.raises(KeyboardInterrupt):
        loop.try_step()


# The loop.


@pytest.mark.task("3.6.5")
def test_serve_answers_everybody(s):
    """More requests than the engine runs at a time, some for several answers: each reader has its own."""
    texts = [["abc"], ["d", "ef"], ["ghijklm"], ["n"], ["opq", "r", "st"]]

    async def main(_):
        loop = opened(s, FakeEngine(blocks=2), max_open=20)
        streams = [loop.submit([FakeRequest(*each)]) for each in texts]
        found = await served(loop, asyncio.gather(*map(read, streams)))
        assert loop.num_open == 0, f"{loop.num_open} answers are open after their end"
        return found

    found = run_virtually(main)
    assert found == texts, f"each reader gets the answers of its request: {found}"


@pytest.mark.task("3.6.5")
def test_serve_delivers_after_every_step(s):
    """Two readers get letters in turns: nobody waits for the end of an answer, its own or another's."""
    seen = []

    async def reader(stream):
        async for pieces in everything(stream):
            seen.extend(one.text for one in pieces)

    async def main(_):
        loop = opened(s, FakeEngine())
        readers = [reader(loop.submit([FakeAnswer(text)])) for text in ("abc", "xyz")]
        await served(loop, asyncio.gather(*readers))

    run_virtually(main)
    assert seen == [*"axbycz"], f"a letter each per step: {''.join(seen)}"


@pytest.mark.task("3.6.5")
def test_serve_takes_arrivals_between_two_steps(s):
    """A request that comes while a step runs is in the next one: it does not wait for the others' ends."""

    async def main(_):
        late = []

        def during(number):
            if number == 1:
                late.append(loop.submit([FakeAnswer("x")]))

        engine = FakeEngine(during=during)
        loop = opened(s, engine)
        await served(loop, read(loop.submit([FakeAnswer("abcdef")])))
        return engine.calls, await read(late[0])

    calls, texts = run_virtually(main)
    assert calls[:5] == ["add abcdef", "step", "step", "add x", "step"], (
        f"it came in the second step: {calls}"
    )
    assert texts == ["x"], "and has its answer"


@pytest.mark.task("3.6.5")
def test_serve_waits_without_asking(s):
    """Nothing is open: no steps, and no timer that looks again and again. A request wakes it at once."""

    async def main(clock):
        engine = FakeEngine()
        loop = opened(s, engine)

        async def idle_then_ask():
            await asyncio.sleep(0)
            timers = len(clock._scheduled)
            await asyncio.sleep(10)
            assert engine.steps == 0, f"{engine.steps} steps for nobody"
            before = clock.now
            assert await read(loop.submit([FakeAnswer("ab")])) == ["ab"]
            assert clock.now == before, f"the request waited for {clock.now - before} s"
            assert timers <= 1, "a timer runs while nothing is open: the loop polls"

        await served(loop, idle_then_ask())

    run_virtually(main)


@pytest.mark.task("3.6.5")
def test_serve_leaves_no_reader_of_a_dead_engine_waiting(s):
    """Every open stream ends with an error, new requests are refused, and `serve` raises what has happened."""

    async def main(_):
        loop = opened(s, FakeEngine(blocks=1, fails={1: OSError("the device is gone")}), max_failures=1)
        streams = [loop.submit([FakeAnswer(text)]) for text in ("abc", "xyz")]
        serving = asyncio.create_task(loop.serve())
        ends = [await last_reason(stream) for stream in streams]
        with pytest.raises(OSError, match="the device is gone"):
            await serving
        assert loop.state == "dead", f"the state is {loop.state!r}"
        with pytest.raises(s.NotServing):
            loop.submit([FakeAnswer()])
        return ends

    assert run_virtually(main) == ["error", "error"], "both readers have an end, also one that only waited"


@pytest.mark.task("3.6.5")
def test_serve_leaves_no_reader_waiting_when_it_is_cancelled(s):
    """It is cancelled during a step that completes an answer. Nobody delivers that, so each reader gets an error."""

    async def main(_):
        loop = opened(s, FakeEngine())
        loop._worker = SlowExecutor()
        streams = [loop.submit([FakeAnswer(text)]) for text in ("ab", "xyz")]
        serving = asyncio.create_task(loop.serve())
        await asyncio.sleep(1.5)
        serving.cancel()
        return [await last_reason(stream) for stream in streams]

    assert run_virtually(main) == ["error", "error"], "the second step was running, nobody serves any more"


@pytest.mark.task("3.6.5")
def test_serve_hands_the_next_turn_over_before_readers_run(s):
    """A step takes a second. Its letter is read when it has ended, and the next step runs by then."""
    seen = []

    async def main(clock):
        loop = opened(s, FakeEngine(during=lambda number: seen.append((clock.now, "step"))))
        loop._worker = SlowExecutor()

        async def reader(stream):
            async for pieces in everything(stream):
                seen.extend((clock.now, one.text) for one in pieces)

        await served(loop, reader(loop.submit([FakeAnswer("abc")])))

    run_virtually(main)
    assert seen == [(0, "step"), (1, "step"), (1, "a"), (2, "step"), (2, "b"), (3, "c")], (
        f"deliver, start the next step, and then the readers: {seen}"
    )


async def last_reason(stream) -> str | None:
    return [one.finish_reason async for pieces in everything(stream) for one in pieces][-1]


async def until(event: threading.Event) -> bool:
    """Waits for a thread without holding the event loop up."""
    return await asyncio.get_running_loop().run_in_executor(None, event.wait, PATIENCE)


@pytest.mark.task("3.6.5")
def test_serve_keeps_the_event_loop_free(s):
    """While a step runs, the event loop runs too; all calls of the engine come from one other thread."""
    inside, gate, waited = threading.Event(), threading.Event(), []
    loops_thread = threading.get_ident()

    def during(number):
        inside.set()
        is_beside = threading.get_ident() != loops_thread
        waited.append(is_beside and gate.wait(PATIENCE if all(waited) else 0))

    async def main():
        engine = FakeEngine(during=during)
        loop = s.EngineLoop(4)
        await loop.open(lambda: engine)

        async def ask():
            stream = loop.submit([FakeAnswer("ab")])
            assert await until(inside), "no step has begun"
            gate.set()  # only a free event loop comes to this line while the step waits
            return await read(stream)

        found = await asyncio.wait_for(served(loop, ask()), 20 * PATIENCE)
        return found, engine.threads

    found, threads = asyncio.run(main())
    assert all(waited), "the step held the event loop up: run `turn` on the worker"
    assert found == ["ab"], f"the answer: {found}"
    assert len(threads) == 1 and loops_thread not in threads, (
        f"the engine was called on {len(threads)} threads, one of them the event loop's: "
        f"{loops_thread in threads}"
    )


# Readers that leave.


@pytest.mark.task("3.6.6")
def test_close_ends_the_request_before_the_next_step(s):
    """The reader leaves while a step runs. That step ends in peace; the next one has the block."""

    async def main(_):
        streams = []

        def during(number):
            if number == 1:
                streams[0].close()

        engine = FakeEngine(blocks=1, during=during)
        loop = opened(s, engine)
        streams += [loop.submit([FakeAnswer(text)]) for text in ("abcdef", "x")]
        found = await served(loop, read(streams[1]))
        return found, engine.calls, streams[0].sequences[0]

    found, calls, left = run_virtually(main)
    assert found == ["x"], f"the other reader: {found}"
    assert calls[2:6] == ["step", "step", "abort abcdef", "step"], f"aborted between two steps: {calls}"
    assert (left.text, left.finish_reason) == ("ab", "abort"), "the step that ran was its last"


@pytest.mark.task("3.6.5", after="3.6.6")
def test_serve_hands_a_reader_that_left_over_once(s):
    """The next turn aborts its request. After that the loop forgets it: `_abandoned` begins empty again."""

    async def main(_):
        engine = FakeEngine(during=lambda number: number == 1 and streams[0].close())
        loop = opened(s, engine)
        streams = [loop.submit([FakeAnswer(text)]) for text in ("abcdef", "uvwxyz")]
        await served(loop, read(streams[1]))
        return engine.calls, loop._abandoned

    calls, abandoned = run_virtually(main)
    times = calls.count("abort abcdef")
    assert (times, abandoned) == (1, []), (
        f"one reader left, and was aborted in {times} turns: hand `_abandoned` over, and begin a new list"
    )


@pytest.mark.task("3.6.6")
def test_close_twice_or_after_the_end_does_nothing(s):
    """A reader leaves once; one that has read everything has nothing to leave."""
    handed = []
    stream = s.RequestStream([FakeAnswer()], handed.append)
    stream.put([piece(s, "a", reason="stop")])
    stream.close()
    assert handed == [], "the request has ended: there is nothing to abort"
    two = s.RequestStream([FakeAnswer(), FakeAnswer()], handed.append)
    two.put([piece(s, "a", 0, "stop")])
    two.close()
    assert handed == [two], "one of its two answers has ended; the other still runs"
    loop = opened(s, FakeEngine())
    left = loop.submit([FakeAnswer()])
    left.close()
    left.close()
    assert loop._abandoned == [left], f"handed over {len(loop._abandoned)} times"


@pytest.mark.task("3.6.6")
def test_abandon_touches_no_engine(s):
    """The engine's thread aborts; the event loop only hands over, in the order in which the readers left."""
    engine = FakeEngine()
    loop = opened(s, engine)
    streams = [loop.submit([FakeAnswer(text)]) for text in ("ab", "xy")]
    turn(loop, streams)
    for stream in streams:
        stream.close()
    assert engine.calls == ["add ab", "add xy", "step"], f"abort on the event loop's thread: {engine.calls}"
    assert loop._abandoned == streams, f"two readers have left, {len(loop._abandoned)} are handed over"
    assert loop.num_open == 2, "until the abort they are open: their blocks are not free"


@pytest.mark.task("3.6.6")
def test_abandon_ignores_a_stream_that_is_not_open(s):
    """Another loop's stream, or one whose end came a moment ago."""
    loop = opened(s, FakeEngine())
    loop.abandon(stream_of(s))
    assert loop._abandoned == [], "it is not open here, and would be aborted in every turn"


# The end.


@pytest.mark.task("3.6.7")
def test_stop_lets_the_open_requests_end(s):
    """They get their whole answers, new ones are refused meanwhile, and the engine is closed at last."""

    async def main(clock):
        engine = FakeEngine()
        loop = opened(s, engine)
        loop._worker = SlowExecutor()
        serving = asyncio.create_task(loop.serve())
        stream = loop.submit([FakeAnswer("abcde")])
        await anext(stream)
        reading = asyncio.create_task(read(stream))
        stopping = asyncio.create_task(loop.stop(60))
        await asyncio.sleep(0)
        if stopping.done():
            await stopping  # raises what has ended it
        with pytest.raises(s.NotServing) as refused:
            loop.submit([FakeAnswer()])
        assert refused.value.state == "stopping", f"a loop that ends says {refused.value.state!r}"
        await stopping
        seconds = clock.now
        await serving
        await reading
        return stream.sequences[0], engine, loop.state, seconds

    answer, engine, state, seconds = run_virtually(main)
    assert seconds == engine.steps + 1, f"{engine.steps} steps and closing take a second each: {seconds} s"
    assert (answer.text, answer.finish_reason) == ("abcde", "length"), "it had 60 seconds, and needed 5"
    assert engine.is_closed and engine.calls[-1] == "close", f"closed, and nothing after it: {engine.calls}"
    assert state == "stopped", f"the state is {state!r}"


@pytest.mark.task("3.6.7")
def test_stop_gives_up_after_its_seconds(s):
    """A request that takes longer ends with "abort", and its reader hears of it."""

    async def main(clock):
        engine = FakeEngine(during=lambda number: setattr(clock, "now", clock.now + 1))
        loop = opened(s, engine)
        serving = asyncio.create_task(loop.serve())
        streams = [loop.submit([FakeAnswer(letter * 100)]) for letter in "xy"]
        reading = asyncio.gather(*map(last_reason, streams))
        await asyncio.sleep(0)
        begin = clock.now
        await loop.stop(5)
        seconds = clock.now - begin
        await serving
        return await reading, engine.calls, seconds

    ends, calls, seconds = run_virtually(main)
    assert ends == ["abort", "abort"], f"each needs 100 s, and has 5: {ends}"
    assert 5 <= seconds <= 10, f"they were aborted after {seconds} s"
    assert calls[-1] == "close", f"the engine is closed when both have ended, not before: {calls[-4:]}"


@pytest.mark.task("3.6.7")
def test_stop_waits_for_a_step_that_takes_longer_than_its_seconds(s):
    """Nothing can end a running step: the engine is closed after it, however long it takes."""

    async def main(clock):
        engine = FakeEngine()
        loop = opened(s, engine)
        loop._worker = SlowExecutor(30)
        serving = asyncio.create_task(loop.serve())
        reading = asyncio.create_task(last_reason(loop.submit([FakeAnswer("x" * 100)])))
        await asyncio.sleep(1)
        await loop.stop(5)
        await serving
        return await reading, engine.calls

    reason, calls = run_virtually(main)
    assert reason == "abort", f"its reader hears of the end: {reason}"
    assert calls[-1] == "close", f"the engine was closed while it was still used: {calls[-4:]}"


@pytest.mark.task("3.6.7")
@pytest.mark.parametrize("state", ["ready", "starting"])
def test_stop_ends_a_loop_that_waits(s, state):
    """Nothing is open: it wakes the loop, and waits for nobody."""

    async def main(clock):
        loop = opened(s, FakeEngine())
        loop.state = state
        serving = asyncio.create_task(loop.serve())
        await asyncio.sleep(1)
        begin = clock.now
        await loop.stop(60)
        await serving
        return clock.now - begin

    assert run_virtually(main) == 0, "it waited for its 60 seconds though nothing was open"


@pytest.mark.task("3.6.7")
def test_stop_of_a_dead_engine_returns(s):
    """It stays dead: health checks shall go on failing."""

    async def main(clock):
        loop = opened(s, FakeEngine(fails={0: OSError("gone")}), max_failures=1)
        loop.submit([FakeAnswer()])
        with pytest.raises(OSError, match="gone"):
            await loop.serve()
        await loop.stop(60)
        return loop.state, clock.now

    state, now = run_virtually(main)
    assert (state, now) == ("dead", 0), f"{state!r} after {now} s"

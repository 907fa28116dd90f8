"""Week 2 Day 7: chunked prefill. The policy runs a scripted model; each step takes a second for each of its tokens.

Oracles: exact traces of the script; each prompt's own answer, as it is when it runs alone.
"""

import threading
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_model import ByteTokenizer, FakeModel
from support.steps import steps_of

# Where a prompt is cut.


def chunks_of(s, prompt_len: int, step: int) -> list:
    """All chunks of a prompt, each from where the one before it ended."""
    made, offset = [], 0
    while offset < prompt_len:
        made.append(s.next_chunk(offset, prompt_len, step))
        assert made[-1].size > 0, f"after {offset} of {prompt_len} tokens comes an empty chunk: {made[-1]}"
        offset += made[-1].size
    return made


@pytest.mark.task("2.7.1")
@pytest.mark.parametrize("step", [1, 4, 7])
def test_chunked_prefill_covers_a_prompt_once_and_in_order(s, step):
    """Of n = 1, step - 1, step, step + 1 and 3 steps: chunks of a step each, and what is left in the last."""
    for n in {1, step - 1, step, step + 1, 3 * step} - {0}:
        found = [(chunk.start, chunk.size) for chunk in chunks_of(s, n, step)]
        expected = [(start, min(step, n - start)) for start in range(0, n, step)]
        assert found == expected, (
            f"{n} tokens in steps of {step}: (start, size) {found}; every token once, in order, none past the end"
        )


@pytest.mark.task("2.7.1")
def test_chunked_prefill_knows_its_last_chunk(s):
    """Only the chunk that ends the prompt is the last one, also when it is a whole step, or the only one."""
    for n, count in ((1, 1), (7, 2), (8, 2), (9, 3)):
        last = [chunk.is_last for chunk in chunks_of(s, n, 4)]
        assert last == [False] * (count - 1) + [True], f"{n} tokens in steps of 4: is_last is {last}"
    chunk = s.next_chunk(4, 7, 4)
    assert (chunk.start, chunk.size, chunk.prompt_len, chunk.stop) == (4, 3, 7, 7), f"{chunk}"


@pytest.mark.task("2.7.1")
def test_chunked_prefill_goes_on_from_any_offset(s):
    """The step may change between two chunks, so an offset need not be a multiple of it."""
    assert s.next_chunk(5, 20, 4) == s.Chunk(5, 4, 20), (
        "the next chunk begins at the offset, wherever that is"
    )
    assert s.next_chunk(19, 20, 4) == s.Chunk(19, 1, 20), "one token is left"


@pytest.mark.task("2.7.1")
@pytest.mark.parametrize(
    ("offset", "prompt_len", "step", "named"),
    [
        (0, 0, 4, "0"),
        (0, -3, 4, "-3"),
        (0, 5, 0, "0"),
        (0, 5, -2, "-2"),
        (5, 5, 4, "5"),
        (9, 5, 4, "9"),
        (-1, 5, 4, "-1"),
    ],
)
def test_chunked_prefill_refuses_what_has_no_next_chunk(s, offset, prompt_len, step, named):
    """An empty prompt, a step that goes nowhere, an offset outside of the prompt: ValueError with the number."""
    with pytest.raises(ValueError) as caught:
        chunk = s.next_chunk(offset, prompt_len, step)
        pytest.fail(f"next_chunk({offset}, {prompt_len}, {step}) is {chunk}; it must raise ValueError")
    assert named in str(caught.value), f"the message must have the number {named} in it: {caught.value}"


@pytest.mark.task("2.7.1")
@settings(max_examples=50)
@given(n=st.integers(1, 60), steps=st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_chunked_prefill_covers_any_prompt_with_any_steps(s, n, steps):
    """The steps change from chunk to chunk; every token of the prompt is in one chunk, and in order."""
    covered, count = [], 0
    while len(covered) < n:
        chunk = s.next_chunk(len(covered), n, steps[count % len(steps)])
        assert 0 < chunk.size <= steps[count % len(steps)], f"a step of {steps[count % len(steps)]}: {chunk}"
        covered += range(chunk.start, chunk.stop)
        count += 1
    assert covered == list(range(n)), f"{n} tokens in steps of {steps} were cut into {covered}"


# One request, chunk by chunk.


def chunked_request(s, prompt="abcdefgh", answer="xy", step=3, **options):
    """(a request that takes `step` tokens of its prompt at a time, its model)."""
    of_model = {name: options.pop(name) for name in ("fails", "during") if name in options}
    model = FakeModel({prompt: answer}, **of_model)
    return s.Request(model, ByteTokenizer(), prompt, prefill_max_step=step, **options), model


def try_all(request, limit: int = 50) -> list[int]:
    """What `try_prefill` returned, chunk after chunk, until the prompt is done."""
    found = []
    for _ in range(limit):
        if request.is_prefill_done or request.is_done:
            return found
        found.append(request.try_prefill())
    pytest.fail(f"after {limit} chunks the prompt is not done: offset {request.offset}")


@pytest.mark.task("2.7.2")
def test_chunked_prefill_feeds_each_piece_once(s):
    """8 tokens in steps of 3: abc, def, gh, each from the offset where the one before it ended."""
    made, model = chunked_request(s)
    counts = try_all(made)
    assert model.trace == ["prompt abc", "prompt def", "prompt gh"], (
        f"each call takes the next tokens of the prompt: {model.trace}"
    )
    offsets = [call.offset for call in model.calls]
    assert offsets == [0, 3, 6], f"a chunk starts after the tokens before it: {offsets}"
    assert counts == [3, 3, 2], f"try_prefill returns the number of tokens of its chunk: {counts}"


@pytest.mark.task("2.7.2")
def test_chunked_prefill_samples_only_the_last_chunk(s):
    """What follows the middle of a prompt is the prompt, and no new token: `sample` is False."""
    params = s.SamplingParams(temperature=0.5)
    made, model = chunked_request(s, sampling=params)
    for number in range(2):
        made.try_prefill()
        assert not model.calls[number].sample, f"chunk {number} does not end the prompt: sample nothing"
        assert (made.is_prefill_done, made.next_token, made.tokens) == (False, None, []), (
            f"after {made.offset} of 8 tokens: {made.is_prefill_done}, {made.next_token}, {made.tokens}"
        )
    made.try_prefill()
    assert model.calls[2].sample, "the last chunk is followed by the first new token"
    assert model.calls[2].sampling == params, "drawn as the request wants it"
    assert (made.is_prefill_done, made.next_token, made.text) == (True, ord("x"), "x"), (
        f"after the last chunk: {made.is_prefill_done}, {made.next_token}, {made.text!r}"
    )


@pytest.mark.task("2.7.2")
def test_chunked_prefill_counts_its_tokens_once(s):
    """offset and prompt_left follow the chunks; the new token is in no cache yet and not counted."""
    made, _ = chunked_request(s)
    found = []
    for _ in range(3):
        made.try_prefill()
        found.append((made.offset, made.prompt_left))
    assert found == [(3, 5), (6, 2), (8, 0)], f"(offset, prompt_left) after each of 3 chunks: {found}"


@pytest.mark.task("2.7.2")
def test_chunked_prefill_keeps_one_cache_for_all_chunks(s):
    """One cache a layer, made once; after the last chunk it holds the whole prompt, in order."""
    made, model = chunked_request(s)
    try_all(made)
    assert len(model.caches) == model.num_hidden_layers, (
        f"{len(model.caches)} caches for {model.num_hidden_layers} layers: later chunks go into the same ones"
    )
    held = [bytes(cache.tokens) for cache in made.kv_cache]
    assert held == [b"abcdefgh"] * 2, f"each layer holds the prompt: {held}"


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize("step", [1, 2, 7, 8, 9, 999_999])
def test_chunked_prefill_gives_what_prefill_gives(s, step):
    """For steps of one token, of almost the prompt, of just it and of more: the same state as a whole prefill."""
    made, model = chunked_request(s, step=step)
    counts = try_all(made)
    assert sum(counts) == 8 and len(counts) == -(-8 // step), f"chunks of {step} for 8 tokens: {counts}"
    assert (made.text, made.next_token, made.offset, made.finish_reason) == ("x", ord("x"), 8, None), (
        f"steps of {step}: text {made.text!r}, next {made.next_token}, offset {made.offset}, {made.finish_reason}"
    )
    assert not any(cache.is_released for cache in model.caches), "it goes on: its cache is needed"


@pytest.mark.task("2.7.2")
def test_chunked_prefill_takes_another_step_each_time(s):
    """`prefill_max_step` is read at each call: a scheduler may change it between two chunks."""
    made, model = chunked_request(s)
    for step in (2, 5, 4):
        made.prefill_max_step = step
        made.try_prefill()
    assert model.trace == ["prompt ab", "prompt cdefg", "prompt h"], f"steps of 2, 5 and 4: {model.trace}"


@pytest.mark.task("2.7.2")
def test_chunked_prefill_refuses_to_run_when_done(s):
    """After the last chunk, after an abort and for a refused prompt: ValueError, and no step."""
    done, aborted, refused = (chunked_request(s, prompt) for prompt in ("abcdefgh", "abcdefgh", ""))
    try_all(done[0])
    aborted[0].try_prefill()
    aborted[0].finish("abort")
    for name, (made, model) in {"done": done, "aborted": aborted, "refused": refused}.items():
        before, text = len(model.calls), made.text
        with pytest.raises(ValueError):
            made.try_prefill()
            pytest.fail(f"{name}: try_prefill must raise ValueError")
        assert (len(model.calls), made.text) == (before, text), f"{name}: nothing may run: {model.trace}"


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize(
    ("answer", "limit", "text", "reason"), [("", 5, "", "stop"), ("xy", 1, "x", "length")]
)
def test_chunked_prefill_may_end_with_its_first_token(s, answer, limit, text, reason):
    """The first token is treated as every other: it may be an end token, or the limit. The cache is given back."""
    made, model = chunked_request(s, answer=answer, sampling=s.SamplingParams(max_tokens=limit))
    try_all(made)
    assert (made.text, made.finish_reason) == (text, reason), f"{made.text!r}, {made.finish_reason!r}"
    assert not model.unreleased(), f"it has ended: {model.unreleased()} not released"


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize("stop", ["x", ["y", "x"]])
def test_chunked_prefill_may_end_with_a_stop_string(s, stop):
    """The first token completes a stop string: the text is empty, and no slot is needed."""
    made, model = chunked_request(s, stop=stop)
    try_all(made)
    assert (made.text, made.finish_reason) == ("", "stop"), (
        f"the first token is the stop string: {made.text!r}, {made.finish_reason!r}"
    )
    assert not model.unreleased(), f"it has ended: {model.unreleased()} not released"


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize(
    "limits", [{"max_tokens": n} for n in (1, 2, 3)] + [{"max_seq_len": n} for n in (9, 10, 11)], ids=str
)
def test_chunked_prefill_gives_no_token_too_many(s, limits):
    """The first token counts like every other: as many as after a whole prefill, by either limit."""
    found = {}
    for way in ("prefill", "chunks"):
        sampling = s.SamplingParams(max_tokens=limits.get("max_tokens"))
        made, _ = chunked_request(
            s, answer="uvwxyz", max_seq_len=limits.get("max_seq_len"), sampling=sampling
        )
        made.prefill() if way == "prefill" else try_all(made)
        for token in b"vwxyz":
            if not made.is_done:
                made.decode_done(token)
        found[way] = (made.text, made.tokens, made.finish_reason)
    expected = "uvw"[: limits.get("max_tokens") or limits["max_seq_len"] - 8]
    assert found["chunks"] == found["prefill"] == (expected, [*expected.encode()], "length"), (
        f"{limits}: {found}"
    )


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize("chunk", [0, 1, 2])
@pytest.mark.parametrize("thread", [False, True], ids=["from the call", "from another thread"])
def test_chunked_prefill_takes_an_abort_during_its_call(s, chunk, thread):
    """Aborted while a chunk runs, the first, a middle or the last one: it ends with the call, and no cache stays."""
    seen = []

    def during(number: int) -> None:
        if number == chunk:
            abort = threading.Thread(target=made.abort)
            abort.start() if thread else made.abort()
            abort.join() if thread else None
            seen.append((made.is_done, model.unreleased()))

    made, model = chunked_request(s, during=during)
    try_all(made)
    assert seen == [(False, "2 requests' caches")], (
        f"while the model writes to its cache the request is not done, and the cache is there: {seen}"
    )
    assert (made.finish_reason, made.text) == ("abort", ""), (
        f"aborted during chunk {chunk}, it ended as {made.finish_reason!r} with the text {made.text!r}: take the token "
        "after the call's context, `with model_call`, which applies the abort when it ends"
    )
    assert len(model.calls) == chunk + 1, f"nothing runs after the abort: {model.trace}"
    assert not model.unreleased(), f"aborted in chunk {chunk}: {model.unreleased()} not released"


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize(("error", "reason"), [(OSError, "error"), (KeyboardInterrupt, "abort")])
def test_chunked_prefill_ends_with_a_call_that_fails(s, error, reason):
    """A chunk that failed may be in some layers' caches and not in others: the request ends, and does not count it."""
    made, model = chunked_request(s, fails={1: error("no memory")})
    made.try_prefill()
    with pytest.raises(error):
        made.try_prefill()
    assert (made.offset, made.is_prefill_done) == (3, False), (
        f"a call that failed has computed nothing: offset {made.offset}"
    )
    assert (made.finish_reason, made.text) == (reason, ""), f"{made.finish_reason!r}, {made.text!r}"
    assert not model.unreleased(), f"the call failed: {model.unreleased()} not released"


# All together: the scheduler.


class ChunkedRun:
    """A scheduler on the scripted model: what it computes, what it tells, and what becomes of the requests.

    Args:
        answers: by prompt, what follows it.
        heard: is given the run and each event, after it was noted.
        turns: options of `Turns`.
    """

    def __init__(self, s, answers: dict, slots=2, step=3, max_seq_len=64, fails=None, heard=None, **turns):
        self.s, self.heard, self.events = s, heard, []
        self.model = FakeModel(answers, fails=fails)
        self.requests: list = []
        self.scheduler = s.ChunkedPrefillScheduler(
            self.model,
            slots,
            step,
            max_seq_len,
            turns=s.Turns(**turns) if turns else None,
            clock=self.model.clock,
            on_event=self._note,
        )

    def _note(self, event) -> None:
        self.events.append(event)
        if self.heard:
            self.heard(self, event)

    def add(self, *prompts: str, **options) -> "ChunkedRun":
        for prompt in prompts:
            index = len(self.requests)
            made = self.s.Request(self.model, ByteTokenizer(), prompt, prompt_idx=index, **options)
            self.requests.append(made)
            self.scheduler.add(made)
        return self

    def steps(self, count: int) -> "ChunkedRun":
        for _ in range(count):
            self.scheduler.step()
        return self

    def finish(self, limit: int = 300) -> "ChunkedRun":
        """Steps until there is no work. The scheduler stays open."""
        for _ in range(limit):
            if not self.scheduler.has_work_remaining():
                waiting = [r.prompt_idx for r in self.requests if not r.is_done]
                assert not waiting, f"no work is left, but requests {waiting} have not ended: they were lost"
                return self
            self.scheduler.step()
        raise AssertionError(f"{limit} steps, and there is work left: {self.model.trace[-6:]}")

    def finish_in_spite_of(self, error: type, limit: int = 300) -> int:
        """The same; whoever serves goes on after an error. How often it was raised."""
        raised = 0
        for _ in range(limit):
            try:
                self.finish()
                return raised
            except error:
                raised += 1
        raise AssertionError("it raises for ever")

    @property
    def trace(self) -> list[str]:
        return self.model.trace

    @property
    def texts(self) -> list[str]:
        return [request.text for request in self.requests]

    def parts(self) -> list:
        """What the steps of the model have computed, in order."""
        return [part for event in self.events for part in event.parts]

    def times(self, kind: str, index: int) -> list[float]:
        """When something was told of a request."""
        return [e.time for e in self.events if e.kind == kind and e.request is self.requests[index]]

    def check_end(self, *, told: bool = True) -> None:
        """After everything: each prompt token was computed once, each end was told once, and all memory is back."""
        if told:
            ends = sorted(event.request.prompt_idx for event in self.events if event.kind == "finish")
            assert ends == list(range(len(self.requests))), f"each request finishes once: {ends}"
        own = [cache for cache in self.model.caches if not cache.is_released]
        assert not own, f"{len(own)} caches of requests were not released"
        rows = [row for layer in self.model.batch_caches for row in layer.rows if row is not None]
        assert not rows, f"{len(rows)} rows of the batch's caches were not released"
        self.scheduler.close()
        assert not self.model.unreleased(), f"close() has not released {self.model.unreleased()}"

    def check_promises(self) -> None:
        """No stall: after a chunk for which somebody waited comes a decode step. So gaps are bounded."""
        waits = False
        for part in self.parts():
            assert not (part.kind == "chunk" and waits), (
                "stall: a second chunk was computed while a request was ready to decode"
            )
            waits = part.kind == "chunk" and part.running > 0
        bound = self.scheduler.prefill_step + len(self.scheduler.batch.slots)
        for request in self.requests:
            times = [
                e.time
                for e in self.events
                if e.kind == "token" and e.request is request and e.slot is not None
            ]
            gap = max((b - a for a, b in pairwise(times)), default=0)
            assert gap <= bound, (
                f"{gap:.0f} s between two tokens; a chunk and a decode take {bound} s at most"
            )


@pytest.mark.task("2.7.3")
def test_chunked_prefill_interleaves_chunks_and_decodes(s):
    """A prompt of 8 tokens comes beside a running request: a chunk, a token, a chunk, a token."""
    run = ChunkedRun(s, {"1": "abcdefg", "ABCDEFGH": "xy"}).add("1", "ABCDEFGH").finish()
    expected = [
        *("prompt 1", "decode a-"),
        *("prompt ABC", "decode b-"),
        *("prompt DEF", "decode c-"),
        *("prompt GH", "decode dx"),
        *("decode ey", "decode f-", "decode g-"),
    ]
    assert run.trace == expected, f"one chunk, then a token for everyone who runs: {run.trace}"
    assert run.texts == ["abcdefg", "xy"], f"each prompt gets its own answer: {run.texts}"
    run.check_promises()
    run.check_end()


def noted(event) -> tuple:
    """(kind, seconds, prompt, slot) of an event; (kind, seconds, what, prompts, tokens) of a step."""
    if event.kind != "step":
        return event.kind, event.time, event.request.prompt_idx, event.slot
    [part] = event.parts
    return event.kind, event.time, part.kind, [r.prompt_idx for r in part.requests], part.tokens


@pytest.mark.task("2.7.3")
def test_chunked_prefill_tells_exact_times(s):
    """Every event, in order; a call of the model takes a second for each of its tokens."""
    run = ChunkedRun(s, {"1": "abc", "ABCD": "x"}).add("1", "ABCD").finish()
    assert [noted(event) for event in run.events] == [
        ("arrive", 0, 0, None),
        ("arrive", 0, 1, None),
        ("prefill", 0, 0, None),
        ("step", 1, "chunk", [0], 1),
        ("token", 1, 0, None),
        ("step", 2, "decode", [0], 1),
        ("token", 2, 0, 0),
        ("prefill", 2, 1, None),
        ("step", 5, "chunk", [1], 3),
        ("step", 6, "decode", [0], 1),
        ("token", 6, 0, 0),
        ("step", 7, "chunk", [1], 1),
        ("token", 7, 1, None),
        ("step", 9, "decode", [0, 1], 2),
        ("token", 9, 0, 0),
        ("token", 9, 1, 1),
        ("finish", 9, 0, 0),
        ("finish", 9, 1, 1),
    ], f"{[noted(event) for event in run.events]}"
    found = [(p.kind, e.start, e.seconds, p.context, p.running) for e in run.events for p in e.parts]
    assert found == [
        ("chunk", 0, 1, 0, 0),
        ("decode", 1, 1, 0, 0),
        ("chunk", 2, 3, 0, 1),
        ("decode", 5, 1, 0, 0),
        ("chunk", 6, 1, 3, 1),
        ("decode", 7, 2, 0, 0),
    ], f"(kind, start, seconds, context, running) of every step: {found}"


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("step", [1, 4, 16])
def test_chunked_prefill_bounds_every_gap(s, step):
    """A prompt of 40 arrives among two that run: no gap is longer than a chunk and a decode step.

    The decode step has two tokens, and three when the last chunk gave the prompt its first one.
    """
    answers = {"1": "a" * 50, "2": "b" * 50, "x" * 40: "c"}
    run = ChunkedRun(s, answers, slots=3, step=step).add("1", "2").steps(4)
    run.add("x" * 40).finish()
    times = run.times("token", 0)
    gaps = [b - a for a, b in pairwise(times[4:])]
    longest = max(step + 2, (40 % step or step) + 3)
    assert max(gaps) == longest, (
        f"steps of {step}: the longest gap is {max(gaps):.0f} s, not {longest} s of a chunk and a decode step"
    )
    run.check_promises()


@pytest.mark.task("2.7.3")
def test_chunked_prefill_computes_one_chunk_a_step(s):
    """Three prompts wait, and one runs: a step has one chunk of one prompt, not one of each; in order."""
    run = ChunkedRun(s, {"1": "a" * 20, "ABCD": "x", "EFGH": "y", "IJ": "z"}, slots=4)
    run.add("1", "ABCD", "EFGH", "IJ").finish()
    prompts = [step for step in run.trace if step.startswith("prompt")]
    assert prompts == [f"prompt {piece}" for piece in ("1", "ABC", "D", "EFG", "H", "IJ")], (
        f"a prompt is computed to its end before the next one begins: {prompts}"
    )
    for number, step in enumerate(run.trace[:-1]):
        follower = run.trace[number + 1]
        assert not (step.startswith("prompt") and follower.startswith("prompt")), (
            f"two chunks in one step: {step!r}, {follower!r}"
        )


@pytest.mark.task("2.7.3")
def test_chunked_prefill_finishes_a_lone_prompt(s):
    """Nobody waits and nobody runs, but the one prompt needs four steps: there is work until it has its answer."""
    run = ChunkedRun(s, {"A" * 11: "xy"}).add("A" * 11)
    for number in range(4):
        assert run.scheduler.has_work_remaining(), (
            f"after {number} of 4 chunks the prompt is in no queue and in no slot, but it is work"
        )
        assert run.scheduler.step() is True, "a chunk was computed: step() returns True"
    run.finish()
    assert run.texts == ["xy"], f"{run.texts}"
    assert run.scheduler.step() is False, "nothing is left to do: step() returns False"
    run.check_end()


@pytest.mark.task("2.7.3")
def test_chunked_prefill_phases_say_what_they_did(s):
    """(a chunk was computed, `pending` has left, somebody ran) in every step, each True or False."""
    run = ChunkedRun(s, {"1": "abcd", "AB": "xy", "CD": "z"}, slots=1)
    scheduler, found = run.scheduler, []
    for number in range(9):
        if number == 1:
            run.add("1", "AB", "CD")
        phases = (
            scheduler.handle_prefill_phase,
            scheduler.move_prefill_to_decode,
            scheduler.handle_decode_phase,
        )
        found.append(tuple(phase() for phase in phases))
    expected = [
        (False, False, False),  # nobody is there
        (True, True, True),  # the prompt 1, its slot, a decode
        (True, False, True),  # AB is computed; the slot is taken
        (False, False, True),  # AB waits for it
        (False, False, True),  # 1 ends
        (False, True, True),  # AB moves and decodes
        (True, False, True),  # CD is computed while AB ends
        (False, True, True),  # CD moves, decodes and ends
        (False, False, False),  # all have ended
    ]
    for number, (step, wanted) in enumerate(zip(found, expected, strict=True)):
        assert step == wanted, f"step {number} of {run.trace}: (chunk, move, decode) is {step}, not {wanted}"
        assert all(type(phase) is bool for phase in step), f"step {number}: True or False, not {step}"


@pytest.mark.task("2.7.3")
def test_chunked_prefill_methods_return_what_they_say(s):
    """`add` and `close` nothing, `has_work_remaining` and `step` True or False, `collect_results` each end once."""
    run = ChunkedRun(s, {"1": "ab", "2": "", "ABCDE": "x"})
    scheduler = run.scheduler
    late, early = (
        s.Request(run.model, ByteTokenizer(), name, prompt_idx=n) for n, name in ((1, "2"), (0, "1"))
    )
    assert scheduler.add(late) is None and scheduler.add(early) is None
    assert scheduler.collect_results() == [], "nobody has ended yet"
    for number in steps_of(scheduler):
        work, done = scheduler.has_work_remaining(), scheduler.step()
        assert done is work is True, f"step {number}: work remains: {work}, and step() returned {done}"
    assert scheduler.has_work_remaining() is False
    done = scheduler.step()
    assert done is False, f"no work remains, and step() returned {done}"
    ended = [(result.prompt_idx, result.text) for result in scheduler.collect_results()]
    assert ended == [(0, "ab"), (1, "")], f"in the order of `prompt_idx`, not of the ends: {ended}"
    assert scheduler.collect_results() == [], "each result is given once"
    run.add("ABCDE").steps(1)
    assert scheduler.collect_results() == [], "a request that goes on has no result"
    assert scheduler.close() is None
    reasons = [result.finish_reason for result in scheduler.collect_results()]
    assert reasons == ["abort"], f"close() has ended the pending prompt: {reasons}"


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize(
    "answers",
    [
        {"A" * 11: "xy"},
        {"ABCD": "", "EF": ""},
        {"": "", "x" * 70: "", "AB": "x"},
        {"1": "abcde", "AB": "", "CD": "xy"},
        {"1": "abcdef", "ABCDEFG": "xyz", "HIJK": "uvw", "2": "k"},
    ],
    ids=lambda answers: " ".join(name[:8] or "empty" for name in answers),
)
def test_chunked_prefill_step_is_true_as_long_as_there_is_work(s, answers, slots):
    """`while scheduler.step():` serves everybody, and so does `while scheduler.has_work_remaining():`, step by step."""
    run = ChunkedRun(s, answers, slots).add(*answers)
    for _ in range(100):
        if not run.scheduler.step():
            break
    else:
        pytest.fail("100 steps, and step() still returns True")
    assert all(r.is_done for r in run.requests), f"step() returned False, and not all have ended: {run.texts}"
    assert not run.scheduler.has_work_remaining(), "step() returned False: then no work remains"
    run.check_end()
    again = ChunkedRun(s, answers, slots).add(*answers)
    for _ in steps_of(again.scheduler):
        before = len(again.trace)
        said = again.scheduler.step()
        assert said is (len(again.trace) > before), f"step() returned {said} after {again.trace[before:]}"
    assert again.texts == run.texts, f"both loops give the same answers: {again.texts}, {run.texts}"


@pytest.mark.task("2.7.3")
def test_chunked_prefill_decodes_in_the_step_that_finishes_the_prompt(s):
    """The last chunk, the slot and the first decode step are one step of the scheduler."""
    run = ChunkedRun(s, {"ABCDE": "xyz"}).add("ABCDE").steps(1)
    assert run.trace == ["prompt ABC"] and run.texts == [""], f"the first step: {run.trace}"
    run.steps(1)
    assert run.trace == ["prompt ABC", "prompt DE", "decode x-"], f"the second step decodes, too: {run.trace}"
    assert run.scheduler.batch.slots[0] is run.requests[0], "its slot is its own from this step on"


@pytest.mark.task("2.7.3")
def test_chunked_prefill_keeps_a_finished_prompt_that_waits_for_a_slot(s):
    """One slot is taken; the finished prompt waits for it, and no other prompt is computed meanwhile."""
    run = ChunkedRun(s, {"1": "abcde", "AB": "xy", "CD": "z"}, slots=1).add("1", "AB", "CD").finish()
    expected = [
        *("prompt 1", "decode a"),
        *("prompt AB", "decode b"),
        *("decode c", "decode d", "decode e"),
        *("decode x", "prompt CD", "decode y"),
        "decode z",
    ]
    assert run.trace == expected, f"AB waits for the slot of 1, and CD for its turn: {run.trace}"
    assert run.texts == ["abcde", "xy", "z"], f"none is lost: {run.texts}"
    run.check_end()


@pytest.mark.task("2.7.3")
def test_chunked_prefill_moves_only_whole_prompts(s):
    """A slot is free from the start, but a prompt takes it with its first token and not before."""
    run = ChunkedRun(s, {"ABCDEFG": "x"}).add("ABCDEFG")
    for done in (3, 6):
        run.steps(1)
        held = [row for layer in run.model.batch_caches for row in layer.rows if row]
        assert run.scheduler.batch.running == [] and not held, f"after {done} of 7 tokens it has a slot"
        assert run.scheduler.pending is run.requests[0], f"after {done} of 7 tokens it is still pending"
    run.finish().check_end()


@pytest.mark.task("2.7.3")
def test_chunked_prefill_fills_the_lowest_free_slot(s):
    """Three slots; the middle one becomes free first and goes to the next prompt; then the first one."""
    answers = {"1": "abcdefg", "2": "u", "3": "lmnopqr", "4": "ghijkl", "5": "wx"}
    run = ChunkedRun(s, answers, slots=3).add(*"12345").finish()
    owners = {}
    for event in run.events:
        if event.kind == "token" and event.slot is not None:
            owners.setdefault(event.request.prompt_idx, event.slot)
    assert owners == {0: 0, 1: 1, 2: 1, 3: 2, 4: 0}, f"prompt: slot is {owners}"
    assert run.texts == list(answers.values()), f"{run.texts}"
    run.check_end()


@pytest.mark.task("2.7.3")
def test_chunked_prefill_serves_what_arrives_later(s):
    """A request that is added while others run starts with the next step; the scheduler may also have been idle."""
    run = ChunkedRun(s, {"1": "abcde", "ABCD": "x", "2": "u"}).add("1").steps(2).add("ABCD").finish()
    assert run.trace[2:6] == ["decode b-", "prompt ABC", "decode c-", "prompt D"], f"{run.trace}"
    run.add("2").finish()
    assert run.texts == ["abcde", "x", "u"], f"{run.texts}"
    run.check_end()


@pytest.mark.task("2.7.3")
def test_chunked_prefill_gives_no_slot_to_what_ended_with_its_first_token(s):
    """Prompts that end at once leave at once: the next one is computed in the next step, and no slot is taken."""
    run = ChunkedRun(s, {"ABCD": "", "EF": "", "1": "a"}, slots=1).add("ABCD", "EF", "1").finish()
    assert run.trace == ["prompt ABC", "prompt D", "prompt EF", "prompt 1", "decode a"], f"{run.trace}"
    assert [request.finish_reason for request in run.requests] == ["stop"] * 3
    run.check_end()


@pytest.mark.task("2.7.3")
def test_chunked_prefill_lets_nobody_wait_for_a_slot_that_is_not_needed(s):
    """The only slot is taken. A prompt that ends with its first token leaves all the same, and the next one begins."""
    run = ChunkedRun(s, {"1": "abcde", "AB": "", "CD": "x"}, slots=1).add("1", "AB", "CD").finish()
    assert run.trace[2:6] == ["prompt AB", "decode b", "prompt CD", "decode c"], (
        f"AB has ended and needs no slot, so CD is computed in the next step: {run.trace}"
    )
    assert run.times("finish", 1) == [4], f"it has ended before the decode step: {run.times('finish', 1)}"
    run.check_end()


@pytest.mark.task("2.7.3")
def test_chunked_prefill_frees_a_slot_with_the_last_token(s):
    """A request leaves the batch in the step of its last token: nothing is left to do, and its end was told."""
    run = ChunkedRun(s, {"1": "ab"}).add("1").steps(2)
    assert run.trace == ["prompt 1", "decode a-", "decode b-"], f"{run.trace}"
    assert not run.scheduler.has_work_remaining(), "it got its end token: its slot is free, no work is left"
    assert run.times("finish", 0) == [3], f"its end is emitted with its last step: {run.times('finish', 0)}"


@pytest.mark.task("2.7.3")
def test_chunked_prefill_decodes_nobody_who_was_aborted_in_the_same_step(s):
    """Whoever hears of a chunk aborts a running request: the decode step behind it goes without that one."""

    def heard(run, event):
        if any(part.kind == "chunk" and part.requests == (run.requests[2],) for part in event.parts):
            run.requests[0].finish("abort")

    run = ChunkedRun(s, {"1": "abcdef", "2": "uvwxyz", "ABCD": ""}, slots=3, heard=heard).add(
        "1", "2", "ABCD"
    )
    run.finish()
    assert run.trace[4:6] == ["prompt ABC", "decode -v-"], f"slot 0 was aborted during the chunk: {run.trace}"
    run.check_end()


@pytest.mark.task("2.7.3")
def test_chunked_prefill_goes_past_prompts_that_were_refused(s):
    """An empty and an overlong prompt end with an error of their own, and cost no step."""
    answers = {"1": "ab", "": "", "x" * 12: "", "3": "cd", "y" * 11: "e"}
    run = ChunkedRun(s, answers, max_seq_len=12).add(*answers).finish()
    assert run.texts == ["ab", "", "", "cd", "e"], f"{run.texts}"
    reasons = [request.finish_reason for request in run.requests]
    assert reasons == ["stop", "error", "error", "stop", "length"], f"{reasons}"
    assert not any("x" in step for step in run.trace), f"a refused prompt is not computed: {run.trace}"
    run.check_end()


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("slots", [1, 2, 3, 7])
def test_chunked_prefill_answers_as_if_alone(s, slots):
    """Any number of slots and any step, from one token to more than every prompt: the same texts."""
    answers = {"A": "abcdefghi", "BCDEFGH": "", "I" * 10: "jklmnopqr", "JKL": "stu", "M" * 21: "vw"}
    for step in (1, 2, 3, 10, 999_999):
        run = ChunkedRun(s, answers, slots, step).add(*answers).finish()
        assert run.texts == list(answers.values()), f"steps of {step}: {run.texts}"
        computed = sum(call.computed for call in run.model.calls if not call.is_batch)
        assert computed == sum(map(len, answers)), f"steps of {step}: {computed} prompt tokens were computed"
        run.check_promises()
        run.check_end()


# Of each request: tokens of its prompt and of its answer, its class, and after how many steps it arrives.
MIXES = st.lists(
    st.tuples(
        st.integers(1, 14), st.integers(0, 8), st.sampled_from(["interactive", "batch"]), st.integers(0, 9)
    ),
    max_size=6,
)


def check_mix(s, mix: list, slots: int, step: int, **options) -> None:
    """Whatever comes, and whenever: each request gets its own answer, and every promise is kept."""
    answers = {chr(65 + n) * prompt: "abcdefgh"[:answer] for n, (prompt, answer, *_) in enumerate(mix)}
    run = ChunkedRun(s, answers, slots, step, **options)
    for number in range(10):
        for prompt, (*_, priority, arrival) in zip(answers, mix, strict=True):
            if arrival == number:
                run.add(prompt, priority=priority)
        run.steps(1)
    run.finish(500)
    found = {request.prompt: request.text for request in run.requests}
    assert found == answers, f"each request gets the answer that it gets alone: {found}"
    computed = sum(call.computed for call in run.model.calls if not call.is_batch)
    assert computed == sum(map(len, answers)), f"{computed} prompt tokens, not {sum(map(len, answers))}"
    run.check_promises()
    run.check_end()


@pytest.mark.task("2.7.3")
@settings(max_examples=40)
@given(mix=MIXES, slots=st.integers(1, 4), step=st.integers(1, 8))
def test_chunked_prefill_serves_any_mix(s, mix, slots, step):
    """Any prompts and answers, slots, steps and arrivals: answers as if alone, no stall, bounded gaps, an end."""
    if not mix:
        mix = [(5, 1, "interactive", 0)]
    check_mix(s, mix, slots, step)


SCENE = {"1": "abcdef", "ABCDEFG": "xyz", "HIJK": "uvw", "2": "k"}  # every phase of a request is in it


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize("slots", [1, 2])
def test_chunked_prefill_hears_of_an_abort_at_every_event(s, victim, slots):
    """Aborted while it waits, in mid-prefill, waiting for a slot, running, or ended: the others do not notice."""
    count = len(ChunkedRun(s, SCENE, slots).add(*SCENE).finish().events)
    for at in range(len(SCENE), count + 1):

        def heard(run, event, at=at):
            if len(run.events) == at:
                run.requests[victim].finish("abort")

        run = ChunkedRun(s, SCENE, slots, heard=heard).add(*SCENE).finish()
        _check_others(run, {victim}, f"aborted at event {at}, {run.events[at - 1].kind!r}")
        if run.requests[victim].finish_reason == "abort":
            late = {event.kind for event in run.events[at:] if event.request is run.requests[victim]}
            assert late <= {"finish"}, f"aborted at event {at}, and it has events later: {late}"
        run.check_end()


def _check_others(run: ChunkedRun, victims: set, when: str) -> None:
    """Every other request has its own answer, and ended as it does alone; victims have the beginning of theirs."""
    for index, (request, answer) in enumerate(zip(run.requests, SCENE.values(), strict=True)):
        if index in victims:
            assert request.is_done and answer.startswith(request.text), f"{when}: {request.text!r}"
        else:
            assert (request.text, request.finish_reason) == (answer, "stop"), (
                f"{when}: request {index} is not what it is alone: {request.text!r}, {request.finish_reason!r}"
            )


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("slots", [1, 2])
def test_chunked_prefill_hears_of_an_abort_between_two_steps(s, slots):
    """The same between two steps: whoever serves aborts a request, and steps on."""
    for steps in range(12):
        for victim in range(4):
            run = ChunkedRun(s, SCENE, slots).add(*SCENE).steps(steps)
            run.requests[victim].finish("abort")
            running = [request for request in run.scheduler.batch.slots if request and request.is_done]
            run.steps(1)
            assert not set(running) & set(run.scheduler.batch.slots), "an aborted request leaves its slot"
            run.finish()
            _check_others(run, {victim}, f"request {victim} aborted after {steps} steps")
            run.check_end()


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_chunked_prefill_survives_a_step_that_fails(s, error):
    """The model raises at any call: who was in that step ends, the error is raised, the next step serves the others."""
    calls = ChunkedRun(s, SCENE).add(*SCENE).finish().model.calls
    for at, call in enumerate(calls):
        run = ChunkedRun(s, SCENE, fails={at: error("no memory")})
        run.add(*SCENE)
        assert run.finish_in_spite_of(error) == 1, f"the error of call {at} ({call}) must be raised, once"
        ended = {
            request.prompt_idx for request in run.requests if request.finish_reason in ("error", "abort")
        }
        assert len(ended) <= (call.computed if call.is_batch else 1), f"call {at} ({call}) has ended {ended}"
        assert ended, f"call {at} ({call}) failed, and ended nobody"
        _check_others(run, ended, f"call {at} ({call}) failed")
        run.check_end()


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("slots", [1, 2])
def test_chunked_prefill_tells_the_end_of_a_request_that_gets_no_slot(s, slots):
    """No memory for its cache in the batch's: the error is raised, the request finishes once, the others are served."""
    for failing in range(2):
        run = ChunkedRun(s, SCENE, slots).add(*SCENE)
        copies = iter(range(100))

        def add_request(own, slot, run=run, copies=copies, failing=failing):
            if next(copies) == failing:
                raise MemoryError("no room")
            return type(run.scheduler.batch.kv_cache[-1]).add_request(
                run.scheduler.batch.kv_cache[-1], own, slot
            )

        run.scheduler.batch.kv_cache[-1].add_request = add_request
        assert run.finish_in_spite_of(MemoryError) == 1, "what `take_slot` raises is raised, once"
        failed = {request.prompt_idx for request in run.requests if request.finish_reason == "error"}
        assert len(failed) == 1, f"one request got no slot: {failed}"
        _check_others(run, failed, f"copy number {failing} failed")
        run.check_end()


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("slots", [1, 2])
def test_chunked_prefill_survives_a_listener_that_fails(s, slots):
    """on_event raises at any event: no request is lost, and none ends."""
    count = len(ChunkedRun(s, SCENE, slots).add(*SCENE).finish().events)
    for at in range(len(SCENE) + 1, count + 1):

        def heard(run, event, at=at):
            if len(run.events) == at:
                raise OSError("nobody listens")

        run = ChunkedRun(s, SCENE, slots, heard=heard).add(*SCENE)
        assert run.finish_in_spite_of(OSError) == 1, f"event {at}: what a listener raises is raised, once"
        _check_others(run, set(), f"a listener failed at event {at}, {run.events[at - 1].kind!r}")
        run.check_end()


@pytest.mark.task("2.7.3")
def test_chunked_prefill_releases_everything_when_it_is_closed(s):
    """After any number of steps close() ends all requests and releases all caches; a second time it does nothing."""
    for steps in range(14):
        run = ChunkedRun(s, SCENE).add(*SCENE).steps(steps)
        ended = [request.finish_reason for request in run.requests]
        run.scheduler.close()
        run.scheduler.close()
        assert not run.model.unreleased(), (
            f"closed after {steps} steps: {run.model.unreleased()} not released"
        )
        reasons = [request.finish_reason for request in run.requests]
        assert reasons == [reason or "abort" for reason in ended], f"closed after {steps} steps: {reasons}"
        results = run.scheduler.collect_results()
        assert [result.prompt_idx for result in results] == [0, 1, 2, 3], "each request has a result"


def chunked_generate(s, answers: dict, prompts=None, slots=2, step=3, through=None, **options):
    """(results, model) of `batch_generate_with_chunked_prefill`, or of `batch_generate` when `through` is that."""
    model = FakeModel(answers, fails=options.pop("fails", None))
    prompts = list(answers) if prompts is None else prompts(model)
    generate = getattr(s, through or "batch_generate_with_chunked_prefill")
    options = {"clock": model.clock, "max_seq_len": 64, **options}
    try:
        results = generate(model, ByteTokenizer(), prompts, batch_size=slots, prefill_step=step, **options)
    finally:
        left = model.unreleased()
    assert not left, f"not released: {left}"
    return results, model


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("through", ["batch_generate_with_chunked_prefill", "batch_generate"])
def test_chunked_prefill_results_come_in_the_order_of_the_prompts(s, through):
    """Texts, reasons and numbers; `batch_generate(prefill_step=3)` is the same thing."""
    answers = {"1": "abcdefg", "ABCDEFGH": "xy", "2": "", "": "", "3": "u"}
    results, model = chunked_generate(s, answers, through=through)
    assert [result.prompt_idx for result in results] == [0, 1, 2, 3, 4], f"{results}"
    assert [result.text for result in results] == list(answers.values()), f"{results}"
    assert [r.finish_reason for r in results] == ["stop", "stop", "stop", "error", "stop"], f"{results}"
    assert model.trace[:6] == [
        "prompt 1",
        "decode a-",
        "prompt ABC",
        "decode b-",
        "prompt DEF",
        "decode c-",
    ], f"a chunk, then a token: {model.trace}"


@pytest.mark.task("2.7.3")
def test_chunked_prefill_with_a_huge_step_computes_whole_prompts(s):
    """prefill_step=999999 is the baseline without chunks: the very steps of `batch_generate` without a step."""
    answers = {"1": "abcdefg", "ABCDEFGH": "xy", "2": "", "HIJKLM": "u"}
    _, chunked = chunked_generate(s, answers, step=999_999, through="batch_generate")
    prompts = [step for step in chunked.trace if step.startswith("prompt")]
    assert prompts == [f"prompt {prompt}" for prompt in answers], f"each prompt is one step: {prompts}"


@pytest.mark.task("2.7.3")
def test_chunked_prefill_takes_requests_with_limits_of_their_own(s):
    """Requests and texts may be mixed. No prompts give no results and no steps."""

    def prompts(model):
        params = s.SamplingParams(temperature=0.7, max_tokens=2)
        limited = s.Request(model, ByteTokenizer(), "ABCDE", sampling=params)
        return [limited, "2", s.Request(model, ByteTokenizer(), "3", stop=["nd"], max_seq_len=9)]

    answers = {"ABCDE": [*b"ab"], "2": "uvw", "3": [*b"the end"]}
    results, model = chunked_generate(s, answers, prompts, slots=3)
    assert [result.text for result in results] == ["ab", "uvw", "the e"], f"{results}"
    assert [result.finish_reason for result in results] == ["length", "stop", "stop"], f"{results}"
    drawn = [call.sampling.temperature for call in model.calls if not call.is_batch and call.sampling]
    assert 0.7 in drawn, "the request's parameters go with its last chunk"
    assert chunked_generate(s, {})[0] == [], "no prompts, no results"


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("source", ["model", "listener"])
def test_chunked_prefill_releases_every_cache_on_every_way_out(s, error, source):
    """Whatever the model or on_event raises, at any moment, reaches the caller; all requests have ended then."""
    for at in range(60):
        requests, told = [], []

        def prompts(model, requests=requests):
            requests[:] = [s.Request(model, ByteTokenizer(), prompt) for prompt in SCENE]
            return requests

        def heard(event, told=told, at=at):
            told.append(event)
            if source == "listener" and len(told) == at + 1:
                raise error("the end")

        fails = {at: error("the end")} if source == "model" else {}
        try:
            _, model = chunked_generate(s, SCENE, prompts, fails=fails, on_event=heard)
        except error:
            open_ones = [index for index, one in enumerate(requests) if not one.finish_reason]
            assert not open_ones, (
                f"the {source} raised in call {at}: requests {open_ones} have not ended. close() aborts those that "
                "were added; abort all of `requests`, also those that were not added yet"
            )
            continue
        assert at >= (len(model.calls) if source == "model" else len(told)), (
            f"the {source}'s error {at} was lost"
        )
        return
    pytest.fail("60 errors, and the prompts have not ended")


# What serving systems add: pausing, reserved slots, peak load.


@pytest.mark.task("2.7.9")
def test_chunked_prefill_pauses_for_a_shorter_prompt(s):
    """A short prompt arrives in the long one's second chunk: it goes next, and the long one goes on where it was."""
    answers = {"ABCDEFGHIJKL": "x", "1234": "u"}
    runs = {}
    for pause in (False, True):
        run = ChunkedRun(s, answers, pause_prefill=pause).add("ABCDEFGHIJKL").steps(2).add("1234").finish()
        runs[pause] = [step for step in run.trace if step.startswith("prompt")]
        assert run.texts == ["x", "u"], f"pausing changes no answer: {run.texts}"
        run.check_end()
    first, rest = ["prompt ABC", "prompt DEF"], ["prompt GHI", "prompt JKL"]
    short = ["prompt 123", "prompt 4"]
    assert runs[False] == [*first, *rest, *short], f"without pausing the short one waits: {runs[False]}"
    assert runs[True] == [*first, *short, *rest], (
        f"the short one goes next; the long one resumes with its next chunk and its own cache: {runs[True]}"
    )


@pytest.mark.task("2.7.9")
def test_chunked_prefill_bounds_the_wait_of_a_short_prompt(s):
    """A prompt of 5 arrives during a chunk of one of 40, beside two that run.

    Its first token comes after the current chunk, its own chunks, and the decode step behind each but the last.
    """
    arrived = []

    def heard(run, event):
        if any(part.kind == "chunk" and part.context == 6 for part in event.parts):
            arrived.append(event.start)
            run.add("12345")

    answers = {"A": "a" * 40, "B": "b" * 40, "L" * 40: "x", "12345": "u"}
    run = ChunkedRun(s, answers, slots=4, pause_prefill=True, heard=heard)
    run.add("A", "B", "L" * 40).finish()
    waited = run.times("token", 3)[0] - arrived[0]
    assert waited == 3 + 2 + 3 + 2 + 2, (
        f"the first token came after {waited:.0f} s; the chunk under way takes 3 s, its own 3 and 2, two decodes 2 each"
    )
    run.check_promises()
    run.check_end()


@pytest.mark.task("2.7.9")
def test_chunked_prefill_tells_of_pauses(s):
    """ "pause" names the prompt that makes room, "resume" the one that goes on; the order is exact."""
    run = ChunkedRun(s, {"ABCDEFGH": "x", "1": "u"}, pause_prefill=True).add("ABCDEFGH").steps(1).add("1")
    run.finish()
    found = [
        f"chunk {event.parts[0].requests[0].prompt_idx}"
        if event.parts
        else f"{event.kind} {event.request.prompt_idx}"
        for event in run.events
        if event.kind in ("prefill", "pause", "resume") or any(part.kind == "chunk" for part in event.parts)
    ]
    expected = ["prefill 0", "chunk 0", "pause 0", "prefill 1", "chunk 1", "resume 0", "chunk 0", "chunk 0"]
    assert found == expected, f"{found}"


@pytest.mark.task("2.7.9")
def test_chunked_prefill_makes_no_room_without_need(s):
    """A prompt of the same length as what is left, and a longer one, wait; so does all when the prompt is finished."""
    run = ChunkedRun(s, {"ABCDEFGH": "x", "12345": "u", "123456": "v"}, pause_prefill=True)
    run.add("ABCDEFGH").steps(1).add("12345", "123456").finish()
    prompts = [step.removeprefix("prompt ") for step in run.trace if step.startswith("prompt")]
    assert prompts == ["ABC", "DEF", "GH", "123", "45", "123", "456"], (
        f"5 tokens were left, and the waiting prompts have 5 and 6: neither is shorter: {prompts}"
    )
    run = (
        ChunkedRun(s, {"1": "abcde", "AB": "x", "C": "u"}, slots=1, pause_prefill=True)
        .add("1", "AB")
        .steps(2)
    )
    run.add("C").finish()
    assert run.texts == ["abcde", "x", "u"], f"{run.texts}"
    assert not run.times("pause", 1), "a finished prompt that waits for its slot has nothing to pause"


@pytest.mark.task("2.7.9")
def test_chunked_prefill_pauses_may_nest(s):
    """A prompt that goes first makes room for a shorter one itself; the shortest of them goes on first."""
    answers = {"A" * 12: "x", "B" * 8: "y", "C" * 3: "z"}
    run = ChunkedRun(s, answers, slots=3, pause_prefill=True).add("A" * 12).steps(1).add("B" * 8).steps(1)
    run.add("C" * 3).finish()
    prompts = [step.removeprefix("prompt ") for step in run.trace if step.startswith("prompt")]
    assert prompts == ["AAA", "BBB", "CCC", "BBB", "BB", "AAA", "AAA", "AAA"], f"{prompts}"
    run.check_end()


@pytest.mark.task("2.7.9")
@pytest.mark.parametrize("patience", [1, 3])
def test_chunked_prefill_pauses_have_an_end(s, patience):
    """Short prompts keep coming, one a step. The long one makes room `patience` times, and then goes on to its end."""
    shorts = [f"{n:02d}" for n in range(20)]
    run = ChunkedRun(s, {"L" * 9: "x", **dict.fromkeys(shorts, "")}, pause_prefill=True, patience=patience)
    run.add("L" * 9).steps(1)
    for short in shorts:
        run.add(short).steps(1)
    run.finish()
    prompts = [step.removeprefix("prompt ") for step in run.trace if step.startswith("prompt")]
    expected = ["LLL", *shorts[:patience], "LLL", "LLL", *shorts[patience:]]
    assert prompts == expected, f"patience {patience}: then it makes room no more: {prompts}"
    run.check_end()


@pytest.mark.task("2.7.9")
def test_chunked_prefill_patience_holds_for_nested_pauses(s):
    """With patience 2 a long prompt waits for two shorter ones, also when the second goes before the first of them."""
    answers = {"A" * 20: "x", "B" * 12: "y", "C" * 8: "z", "D" * 4: "w"}
    run = ChunkedRun(s, answers, slots=4, pause_prefill=True, patience=2).add("A" * 20).steps(1)
    for prompt in ("B" * 12, "C" * 8, "D" * 4):
        run.add(prompt).steps(1)
    run.finish()
    prompts = [step.split()[1][0] for step in run.trace if step.startswith("prompt")]
    assert "".join(prompts) == "ABCCC" + "AAAAAA" + "DD" + "BBB", (
        f"A made room for B and for C, so D waits for A; B made room once, so D goes before B: {''.join(prompts)}"
    )
    run.check_end()


@pytest.mark.task("2.7.9")
def test_chunked_prefill_makes_no_room_for_a_batch_request(s):
    """A long interactive prompt goes on while a short batch prompt waits; a batch one makes room for both kinds."""
    for long, short, paused in (
        ("interactive", "batch", False),
        ("interactive", "interactive", True),
        ("batch", "batch", True),
        ("batch", "interactive", True),
    ):
        run = (
            ChunkedRun(s, {"ABCDEF": "x", "1": "u"}, pause_prefill=True).add("ABCDEF", priority=long).steps(1)
        )
        run.add("1", priority=short).finish()
        assert bool(run.times("pause", 0)) == paused, f"a long {long} prompt, a short {short} one"
        run.check_end()


@pytest.mark.task("2.7.9")
def test_chunked_prefill_pauses_for_nobody_who_has_ended(s):
    """A refused prompt is never paused, and nobody makes room for one that was aborted while it waited."""
    run = ChunkedRun(s, {"L" * 70: "", "ABCDEF": "x", "1": "u", "2": "v"}, pause_prefill=True, patience=1)
    run.add("L" * 70, "ABCDEF").steps(1)
    assert run.trace == ["prompt ABC"], f"{run.trace}"
    run.add("1", "").requests[2].finish("abort")
    run.steps(1).add("2").finish()
    assert run.trace[:2] == ["prompt ABC", "prompt DEF"], f"nobody to make room for: {run.trace}"
    assert not [e for e in run.events if e.kind == "pause"], "no patience is spent on those that have ended"
    run.check_end()


@pytest.mark.task("2.7.9")
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_chunked_prefill_hears_of_an_abort_of_a_paused_prompt(s, victim):
    """Aborted while it is paused, or while others are: the cache comes back, the others go on."""
    answers = {"A" * 12: "x", "B" * 8: "y", "C" * 6: "z"}
    for steps in range(8):
        run = ChunkedRun(s, answers, slots=3, pause_prefill=True).add("A" * 12).steps(1).add("B" * 8).steps(1)
        run.add("C" * 6).steps(steps)
        ended = run.requests[victim].is_done
        run.requests[victim].finish("abort")
        run.finish()
        texts = [text if ended or n != victim else run.texts[n] for n, text in enumerate("xyz")]
        assert run.texts == texts, f"request {victim} aborted after {steps} more steps: {run.texts}"
        run.check_end()


@pytest.mark.task("2.7.9")
def test_chunked_prefill_may_stop_early_with_a_request_in_every_place(s):
    """One runs, one is pending, one is paused, one waits, and whoever serves stops: close() ends and releases all."""
    run = ChunkedRun(s, {"1": "a" * 30, "A" * 12: "x", "B" * 8: "y", "C" * 20: "z"}, pause_prefill=True)
    run.add("1", "A" * 12).steps(2).add("B" * 8, "C" * 20).steps(1)
    one, paused, pending, _ = run.requests
    scheduler, turns = run.scheduler, run.scheduler.turns
    places = (scheduler.batch.requests, turns.paused.requests, [scheduler.pending], len(turns.queue))
    assert places == ([one], [paused], [pending], 1), f"(running, paused, pending, waiting) is {places}"
    calls = len(run.trace)
    scheduler.close()
    reasons = [request.finish_reason for request in run.requests]
    assert reasons == ["abort"] * 4, f"running, paused, pending and waiting requests have ended: {reasons}"
    assert not run.model.unreleased(), f"close() has not released {run.model.unreleased()}"
    for _ in range(9):
        if scheduler.has_work_remaining():
            scheduler.step()
    assert not scheduler.has_work_remaining() and len(run.trace) == calls, "a loop that goes on is idle"
    assert len(scheduler.collect_results()) == 4, "each of them has a result"


@pytest.mark.task("2.7.9")
def test_chunked_prefill_survives_a_listener_that_fails_at_a_pause(s):
    """on_event raises at "pause" or at "resume": neither of the two prompts is lost."""
    for kind in ("pause", "resume"):

        def heard(run, event, kind=kind):
            if event.kind == kind and [e.kind for e in run.events].count(kind) == 1:
                raise OSError("nobody listens")

        run = ChunkedRun(s, {"ABCDEFGH": "x", "1": "u"}, pause_prefill=True, heard=heard)
        run.add("ABCDEFGH").steps(1).add("1")
        assert run.finish_in_spite_of(OSError) == 1, f"what is raised at {kind!r} is raised, once"
        assert run.texts == ["x", "u"], f"raised at {kind!r}: {run.texts}"
        run.check_end()


@pytest.mark.task("2.7.9")
def test_chunked_prefill_reserves_slots(s):
    """Three slots, one reserved: two batch requests run, the third waits, and an interactive one goes past it."""
    answers = {"1": "aaaaaa", "2": "bbbbbbbb", "3": "c", "4": "d"}
    order = {}
    for reserved in (0, 1, 2):
        run = ChunkedRun(s, answers, slots=3, reserved_decode_slots=reserved).add(*"123", priority="batch")
        run.add("4").finish()
        order[reserved] = "".join(step[-1] for step in run.trace if step.startswith("prompt"))
        batch = max(sum(bool(r and r.priority == "batch") for r in at) for at in _slots_over_time(run))
        assert batch == 3 - reserved, f"{reserved} of 3 slots reserved, {batch} batch requests ran at once"
        assert run.texts == list(answers.values()), f"nobody waits for ever: {run.texts}"
        run.check_end()
    assert order == {0: "1234", 1: "1243", 2: "1423"}, f"reserved slots: the order of the prompts is {order}"
    run = ChunkedRun(s, answers, slots=3, reserved_decode_slots=1).add("1", "2").steps(2)
    run.add("3", priority="batch").steps(1)
    assert run.trace[-2] == "prompt 3", (
        "interactive requests run in all slots but one; that one a batch request may take"
    )


def _slots_over_time(run: ChunkedRun) -> list[list]:
    """Who had which slot, after each token that was told."""
    slots, found = [None] * len(run.scheduler.batch.slots), []
    for event in run.events:
        if event.slot is not None:
            slots[event.slot] = event.request if event.kind == "token" else None
            found.append(list(slots))
    return found


@pytest.mark.task("2.7.9")
def test_chunked_prefill_reserves_slots_also_for_paused_prompts(s):
    """A batch prompt that is paused, or pending, will need a slot: it counts as if it had one."""
    run = ChunkedRun(
        s, {"A" * 9: "xxxx", "B" * 3: "yyyy", "C": "z"}, reserved_decode_slots=1, pause_prefill=True
    )
    run.add("A" * 9, priority="batch").steps(1).add("B" * 3, priority="batch").steps(1).add("C").finish()
    batch = max(sum(bool(r and r.priority == "batch") for r in at) for at in _slots_over_time(run))
    assert batch == 1, f"one of two slots is reserved, and {batch} batch requests ran at once"
    prompts = "".join(step.split()[1][0] for step in run.trace if step.startswith("prompt"))
    assert prompts == "AACAB", f"B waits for the one slot of batch requests, C makes A wait: {prompts}"
    run.check_end()


@pytest.mark.task("2.7.9")
def test_chunked_prefill_reserves_slots_for_prompts_that_are_paused_by_others(s):
    """Three slots, one reserved: of two batch prompts one is paused and one is pending. A third may not begin."""
    answers = {"A" * 14: "a" * 30, "B" * 9: "b" * 30, "C" * 4: "c" * 30}
    run = ChunkedRun(s, answers, slots=3, step=2, reserved_decode_slots=1, pause_prefill=True)
    for prompt in answers:
        run.add(prompt, priority="batch").steps(1)
    run.finish()
    batch = max(sum(bool(r and r.priority == "batch") for r in at) for at in _slots_over_time(run))
    assert batch == 2, f"one of three slots is reserved, and {batch} batch requests ran at once"
    run.check_end()


@pytest.mark.task("2.7.9")
def test_chunked_prefill_waits_at_peak_load(s):
    """From half of the slots on, a long prompt waits `patience` steps for each chunk; a short one does not wait."""
    answers = {"1": "a" * 12, "ABCDEFGH": "x", "23": "b"}
    kinds = {}
    for peak in (None, 1.0, 0.5):
        run = ChunkedRun(s, answers, slots=2, peak_load=peak, patience=2).add("1", "ABCDEFGH", "23").finish()
        kinds[peak] = "".join("p" if step.startswith("prompt") else "d" for step in run.trace[:16])
        assert run.texts == list(answers.values()), f"{run.texts}"
        run.check_end()
    assert kinds[None] == "pdpdpdpdpdd" + "ddddd"[: len(kinds[None]) - 11], f"no peak load: {kinds[None]}"
    assert kinds[1.0] == kinds[None], f"one of two slots is not the whole load: {kinds[1.0]}"
    assert kinds[0.5].startswith("pd" + "ddpd" + "ddpd" + "pd"), (
        f"two steps of waiting, one chunk, twice; the last two tokens are one chunk and do not wait: {kinds[0.5]}"
    )


@pytest.mark.task("2.7.9")
def test_chunked_prefill_waits_for_nobody_at_peak_load_when_nobody_runs(s):
    """The load falls, and the prompt goes on at once; alone it never waits."""
    run = ChunkedRun(s, {"1": "abc", "ABCDEFGH": "x"}, slots=1, peak_load=1.0, patience=9).add(
        "1", "ABCDEFGH"
    )
    run.finish()
    kinds = "".join("p" if step.startswith("prompt") else "d" for step in run.trace)
    assert kinds == "pddd" + "pppd", f"it waits while the slot is taken, and no longer: {kinds}"
    run.check_end()


@pytest.mark.task("2.7.9")
@settings(max_examples=40)
@given(
    mix=MIXES.map(lambda mix: [*mix, (9, 2, "batch", 0), (2, 3, "interactive", 1)]),
    slots=st.integers(2, 4),
    step=st.integers(1, 8),
    patience=st.integers(1, 3),
    peak_load=st.sampled_from([None, 0.5, 1.0]),
)
def test_chunked_prefill_serves_any_mix_with_every_knob(s, mix, slots, step, patience, peak_load):
    """The same with pausing, a reserved slot and peak load: the order changes, the answers and promises do not."""
    knobs = {"pause_prefill": True, "reserved_decode_slots": 1, "patience": patience, "peak_load": peak_load}
    check_mix(s, mix, slots, step, **knobs)

"""The step player of Days 3.1 and 3.3 in Python: what the course's scheduler does step by step, and a static picture.

The scheduler runs here once, with a model that checks every batch and computes nothing. The page only draws.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tiny_llm_course.fakes.fake_packed_model import FakePackedModel
from tiny_llm_course.see.week_3_day_3 import BLOCK, BLOCKS, BUDGET, DRAWN, SEQS, letter
from tiny_llm_course.trace.serve import endless_sequence
from tiny_llm_course.trace.text import counted
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_engine.solutions.solution_types import Event
from tiny_llm_extensions.make_loop import make_loop

from .widget import scripts

WIDTH = 620
SYSTEM, POOL = [7] * 8, 10  # of Day 3.1: a system prompt of two blocks, and blocks of the pool
# (the step before which it arrives, its prompt from all requests so far, tokens of its answer)
Arrival = tuple[int, Callable[[list[Any]], list[int]], int]
# The same requests as on the screen of Day 3.3.
HYBRID: list[Arrival] = [
    (arrives, lambda made, n=n, prompt=prompt: [97 + n] * prompt, answer)
    for n, (prompt, answer, arrives) in enumerate(DRAWN)
]
# A and B have one system prompt, C goes on with A's chat, D has nothing in common with them, and E repeats D's prompt.
SHARED: list[Arrival] = [
    (0, lambda made: [*SYSTEM, *range(20, 25)], 4),
    (1, lambda made: [*SYSTEM, *range(30, 33)], 3),
    (5, lambda made: [*made[0].known_tokens, 41], 3),
    (9, lambda made: list(range(50, 75)), 3),
    (11, lambda made: list(range(50, 75)), 2),
]
STORIES = {
    "week3-01": (SHARED, {"blocks": POOL, "caching": True}, 3),
    "week3-03": (HYBRID, {"blocks": BLOCKS, "caching": False}, 6),
}


@cache
def story(name: str) -> str:
    """A story as JSON: its steps, the budget, the size of a block, and the step that the page begins with."""
    arrivals, options, start = STORIES[name]
    steps = film(arrivals, **options)
    head = {"budget": BUDGET, "block": BLOCK, "blocks": options["blocks"], "start": start}
    return json.dumps({**head, "steps": steps}, separators=(",", ":"))


def film(arrivals: Sequence[Arrival], blocks: int, caching: bool) -> list[dict[str, Any]]:
    """Serves the requests, and returns what each step has planned: see `_frame`."""
    names, events, frames, made = resolve_serving("ref"), [], [], []

    allocator = names.BlockAllocator(blocks, BLOCK, enable_prefix_caching=caching)
    model = FakePackedModel(allocator, names.Sampled)
    limits: dict[str, Any] = {"max_num_batched_tokens": BUDGET, "max_num_seqs": SEQS}
    loop = make_loop(names, "hybrid", model, allocator, clock=model.clock, on_event=events.append, **limits)
    plan_step = loop.plan

    def filmed(now: float) -> list[Any]:
        if plan := plan_step(now):
            frames.append(_frame(loop.scheduler, plan, made, events))
            events.clear()
        return plan

    loop.plan = filmed
    coming, steps = list(arrivals), 0
    while coming or loop.has_work_remaining():
        while coming and coming[0][0] <= steps:
            _, prompt, answer = coming.pop(0)
            made.append(endless_sequence(names, prompt(made), answer, 64, len(made)))
            loop.add(made[-1])
        loop.step()
        steps += 1
    return frames


def _frame(
    scheduler: Any, plan: Sequence[Any], made: Sequence[Any], events: Sequence[Event]
) -> dict[str, Any]:
    """A planned step: who waits, who runs, its row of tokens, and the blocks that nobody uses and that can be found."""
    first = list(scheduler.waiting.returned)
    others = [one for one in made if not one.is_done and one not in scheduler.running and one not in first]
    return {
        "waiting": "".join(map(letter, [*first, *others])),
        "running": [
            [
                letter(one),
                len(one.known_tokens),
                one.num_computed,
                one.num_prompt_tokens,
                [*one.block_table.blocks],
            ]
            for one in scheduler.running
        ],
        "row": [[letter(e.sequence), e.start, e.size, int(e.is_decode), int(e.needs_token)] for e in plan],
        "cached": [*scheduler.allocator.prefix_cache.idle],
        "said": " ".join(_sentences(plan, events, scheduler)),
    }


def _sentences(plan: Sequence[Any], events: Sequence[Event], scheduler: Any) -> list[str]:
    """What has happened since the last plan, and what this one computes."""
    kinds = "finish", "arrive", "preempt", "prefill", "resume"
    who = {kind: [e.request for e in events if e.kind == kind] for kind in kinds}
    said = [f"{letter(one)} has its last token and leaves." for one in who["finish"]]
    said += [f"{letter(one)} arrives." for one in who["arrive"]]
    said += [f"No block is free: {letter(one)}, the youngest, is preempted." for one in who["preempt"]]
    for one in who["prefill"]:
        found = f" with {one.num_cached} tokens that are in the cache" if one.num_cached else ""
        said.append(f"{letter(one)} is admitted{found}.")
    said += [f"{letter(one)} is admitted again, and computed again." for one in who["resume"]]
    decodes = [letter(entry.sequence) for entry in plan if entry.is_decode]
    chunks = [f"{counted(e.size, 'token')} of {letter(e.sequence)}" for e in plan if not e.is_decode]
    parts = [f"decodes {listed(decodes)}"] * bool(decodes) + [f"computes {listed(chunks)}"] * bool(chunks)
    total = counted(sum(entry.size for entry in plan), "token")
    said.append(f"The step {' and '.join(parts)}: {total} of a budget of {scheduler.max_num_batched_tokens}.")
    return said


def listed(parts: Sequence[str]) -> str:
    """ "A, B and C"."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def data(name: str) -> str:
    """The element of the page that holds a story."""
    return f'<script type="application/json">{story(name)}</script>'


def picture(name: str) -> str:
    """The SVG of the first step shown, for readers without JavaScript."""
    with scripts() as run:
        return run(f"stepPlayer.draw({story(name)}, {STORIES[name][2]}, {WIDTH})")

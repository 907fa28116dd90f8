"""Skips a stretch of decode steps in which nothing else can happen: the simulator's jump.

While no request waits and every running one decodes, no policy has a choice: each step computes one token of each
request. So all steps up to the next arrival, or to the step in which a request ends, are taken at once. Their costs are
summed in the order of the steps, and the result equals that of stepping to the last bit.

A policy may remember what its last step was, so the first step of a stretch is never skipped. A policy that counts its
steps must not be skipped at all.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from .step_cost import StepWork

if TYPE_CHECKING:
    import numpy as np

LEAST = 3  # steps: fewer are not worth it


def skip_decodes(loop: Any, recorder: Any, until: float) -> int:
    """Advance the loop, its simulated model's clock and the recorder; return how many steps were skipped.

    Args:
        loop: between two steps.
        recorder: its `stretch(sequences, times)` takes the time of each token.
        until: seconds; a step that begins then or later is not skipped.
    """
    if not _has_no_choice(loop):
        return 0
    most = _steps_without_an_end(loop)
    if most < LEAST:
        return 0
    times = _ends(loop, most)
    steps = 1 + int((times[:-1] < until).sum())  # the first begins now, each other as the one before it ends
    end = loop.clock.now = float(times[steps - 1])
    _advance(loop, steps, end)
    recorder.stretch(loop.running, times[:steps])
    return steps


def _has_no_choice(loop: Any) -> bool:
    """Whether no request waits or has ended, and every running one decodes."""
    if not loop.running or len(loop.waiting):
        return False
    return all(each.is_decoding and not each.is_done for each in loop.running)


def _steps_without_an_end(loop: Any) -> int:
    """Steps until one in which a request ends, or is preempted for its blocks."""
    running, allocator = loop.running, loop.allocator
    steps = min(each.max_new_tokens - len(each.tokens) for each in running) - 1

    def fits(count: int) -> bool:
        missing = sum(each.block_table.missing(len(each.known_tokens) + count - 1) for each in running)
        return allocator.can_allocate(missing, keep_watermark=False)

    if steps < LEAST or fits(steps):
        return steps
    return bisect_left(range(1, steps), True, key=lambda count: not fits(count))


def _ends(loop: Any, steps: int) -> "np.ndarray":
    """End times of this many steps."""
    import numpy as np

    running = loop.running
    work = StepWork.of([], [each.num_computed + 1 for each in running])
    seconds = np.broadcast_to(loop.model.cost.seconds(work.stretch(steps)), steps)
    return np.cumsum(np.concatenate([[loop.clock.now], seconds]))[1:]


def _advance(loop: Any, steps: int, end: float) -> None:
    """Give every request its tokens and their blocks, as `commit` would step by step, the last of them at `end`."""
    loop.model.calls += steps
    for each in loop.running:
        each.block_table.reserve(len(each.known_tokens) + steps - 1)
        each.num_computed += steps
        each.token_time = end
        for tokens in (each.known_tokens, each.tokens):
            tokens.extend([0] * steps)
        each.sampled.extend([each.sampled[-1]] * steps)

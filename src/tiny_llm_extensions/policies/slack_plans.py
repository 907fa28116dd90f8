"""What a `SlackScheduler` does besides its tasks: who makes way, and whose chunks go first.

The functions get the scheduler, and use its `victims`, `prompt_budget` and `slack`.
"""

import math
from typing import TypeAlias

from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.solution_types import AnswerSequence, ServingPackage

SlackScheduler: TypeAlias = "ServingPackage.SlackScheduler"


def make_way(scheduler: SlackScheduler) -> None:
    """Preempts batch requests for interactive ones that wait without a place, if that gives them one."""
    if not any(map(scheduler.may_preempt, scheduler.running)):
        return
    victims = scheduler.victims()
    slots = scheduler.max_num_seqs - len(scheduler.running)
    free = scheduler.allocator.num_free + scheduler.num_returning - scheduler.allocator.watermark_blocks
    for head in scheduler.waiting.smallest(len(victims)):
        slots, free = slots - 1, free - head.block_table.missing(len(head.known_tokens))
        if not may_take_places(scheduler, head, victims, slots, free):
            return
        while slots < 0 or free < 0:
            victim = victims.pop(0)
            slots, free = slots + 1, free + len(victim.block_table.blocks)
            victim.waiting_since = scheduler.state.now  # it goes after those that it makes way for
            scheduler.preempt(victim)


def may_take_places(
    scheduler: SlackScheduler, head: AnswerSequence, victims: list[AnswerSequence], slots: int, free: int
) -> bool:
    """Whether a request may have others preempted, and would run then.

    Args:
        head: the request, which waits.
        victims: those that may be preempted.
        slots, free: what is left if it runs: slots and blocks; below 0 they have to come from the victims.
    """
    others = [one for one in scheduler.running if one not in victims]
    gained = sum(len(one.block_table.blocks) for one in victims)
    has_enough = slots + len(victims) >= 0 and free + gained >= 0
    fits = scheduler.may_begin(head) and scheduler.waiting.fits_beside(head, others)
    return head.priority == "interactive" and has_enough and fits


def plan_short_first(scheduler: SlackScheduler, plan: list[Scheduled]) -> None:
    """Adds chunks: up to half of the budget for prompts that end in this step, the rest by the keys."""
    left = scheduler.prompt_budget(plan)
    left -= plan_short(scheduler, plan, left // 2)
    planned = {id(entry.sequence) for entry in plan}
    begun = [one for one in scheduler.running if not one.is_decoding and id(one) not in planned]
    begun.sort(key=scheduler.waiting.aged.key)
    while left > 0:
        before = scheduler.waiting.aged.key(begun[0]) if begun else math.inf
        chosen = scheduler.waiting.admit(not scheduler.running, left, before) if has_slot(scheduler) else None
        if chosen is not None:
            scheduler.running.append(chosen)
        else:
            if not begun:
                return
            chosen = begun.pop(0)
        left -= scheduler.plan_chunk(plan, chosen, left)


def plan_short(scheduler: SlackScheduler, plan: list[Scheduled], left: int) -> int:
    """Adds whole rests of interactive prompts, the shortest first. Returns how many tokens they are.

    So a short prompt need not wait for a long one that goes before it by its age, and delays it by half at most.
    """
    budget = left
    begun = [one for one in scheduler.running if not one.is_decoding and one.priority == "interactive"]
    for one in sorted(begun, key=lambda one: one.num_uncomputed):
        if one.num_uncomputed <= left:
            left -= scheduler.plan_chunk(plan, one, left)
    while left > 0 and has_slot(scheduler):
        chosen = scheduler.waiting.admit_short(not scheduler.running, left)
        if chosen is None:
            break
        scheduler.running.append(chosen)
        left -= scheduler.plan_chunk(plan, chosen, left)
    return budget - left


def has_slot(scheduler: SlackScheduler) -> bool:
    """Whether one more request may run."""
    return len(scheduler.running) < scheduler.max_num_seqs


def is_turn_of_prompts(scheduler: SlackScheduler) -> bool:
    """In steps of one kind: whether the decodes can wait for one more step of chunks.

    After decodes a chunk may be cut to what fits; after a chunk only a whole one goes, since a small one costs a
    step of its own.
    """
    left = sum(one.num_uncomputed for one in scheduler.running if not one.is_decoding)
    left += sum(one.num_uncomputed for one in scheduler.waiting.smallest(scheduler.max_num_seqs))
    whole = min(left, scheduler.max_num_batched_tokens // scheduler.tile * scheduler.tile)
    ready = sum(one.is_decoding for one in scheduler.running)
    rest = scheduler.slack() - scheduler.profile.seconds(ready, ready)  # the decodes come after the chunk
    return bool(left) and (scheduler._decoded_last or scheduler.profile.seconds(whole) <= rest)


def check_slack_options(scheduler: SlackScheduler) -> None:
    """Raises a ValueError that names the fix when an option of a `SlackScheduler` is out of range.

    Also when a tile of a prompt beside all decodes takes longer than the target.
    """
    if not scheduler.limits.enable_chunked_prefill:
        raise ValueError("the slack scheduler cuts prompts into chunks: leave enable_chunked_prefill on")
    if scheduler.latency_target <= 0:
        raise ValueError(
            f"latency_target is {scheduler.latency_target}: give seconds above 0, or None for no target"
        )
    if not 1 <= scheduler.tile <= scheduler.max_num_batched_tokens:
        raise ValueError(
            f"tile is {scheduler.tile}: give 1 to {scheduler.max_num_batched_tokens} tokens, the budget of a step"
        )
    if (
        scheduler.long_prefill_threshold < 1
        or scheduler.max_partial_prefills < 1
        or scheduler.max_preemptions < 0
    ):
        raise ValueError(
            "long_prefill_threshold and max_partial_prefills are at least 1, and max_preemptions at least 0"
        )
    decodes = scheduler.max_num_seqs
    if (seconds := scheduler.profile.seconds(decodes + scheduler.tile, decodes)) > scheduler.latency_target:
        raise ValueError(
            f"latency_target is {scheduler.latency_target}, but {decodes} decodes and {scheduler.tile} tokens of a"
            f" prompt take {seconds:.4f} seconds: give a higher target or a smaller max_num_seqs"
        )

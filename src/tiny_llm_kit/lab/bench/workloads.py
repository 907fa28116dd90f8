"""What is asked of a scheduler in the benchmark of Day 2.7: which prompts, how long, and when they arrive.

Nothing arrives by a clock: a request arrives while a call of the model runs, counted from 0, so that every chunk size
meets the same state of the batch on every machine.
"""

from dataclasses import dataclass

LONG, SHORT, RUNNING = "long", "short", "running"


@dataclass(frozen=True)
class Asked:
    """One request.

    Args:
        kind: `LONG`, `SHORT`, or `RUNNING`, which only keeps the batch busy.
        tokens: of its prompt.
        answer: tokens that it wants; none ends earlier.
        arrives: during which call of the model; None is before the first one.
    """

    kind: str
    tokens: int
    answer: int
    arrives: int | None = None


@dataclass(frozen=True)
class Workload:
    """Requests in the order of their arrival, and the slots that serve them.

    Args:
        name, says: for the table.
        asked: the requests.
        batch_size: slots.
    """

    name: str
    says: str
    asked: tuple[Asked, ...]
    batch_size: int

    @property
    def max_seq_len(self) -> int:
        """Room for the longest prompt and its answer."""
        return max(asked.tokens + asked.answer for asked in self.asked) + 1


def mixed(tokens: int = 1024, answer: int = 32) -> Workload:
    """Three long prompts and ten short ones, five at a time, all there at the start."""
    long, short = Asked(LONG, tokens, answer), Asked(SHORT, 8, answer)
    says = f"3 prompts of {tokens:,} tokens, then 10 of 8, all there at the start; 5 slots"
    return Workload("mixed", says, (long,) * 3 + (short,) * 10, 5)


def decode_heavy(tokens: int = 2048, answer: int = 96) -> Workload:
    """Four requests that decode; then a long prompt arrives.

    Their prompts are of one chunk whatever its size. Each starts in a step of its own, so calls 0 to 7 are a prompt
    and a decode in turns; the long one arrives during the 16th decode that follows. Of the gaps between 4 · 96 tokens
    the longest four are more than one per cent: p99 is one of them.
    """
    says = f"4 requests decode {answer} tokens; a prompt of {tokens:,} arrives"
    running = (Asked(RUNNING, 16, answer),) * 4
    return Workload("decode-heavy", says, (*running, Asked(LONG, tokens, 8, arrives=23)), 5)


def behind_a_long_one(tokens: int, chunk: int | None, queued: bool) -> Workload:
    """Three short prompts behind a long one.

    Args:
        tokens: of the long one.
        chunk: tokens of a chunk; None computes it whole, in call 0.
        queued: whether all are there at the start; else they arrive as the long one's second chunk begins.
    """
    second = 1 if chunk is not None and chunk < tokens else 0
    arrives = None if queued else second
    short = tuple(Asked(SHORT, size, 16, arrives) for size in (3, 4, 5))
    when = "all at the start" if queued else "from its second chunk on"
    says = f"prompts of 3, 4 and 5 tokens behind one of {tokens:,}, {when}"
    return Workload("queued" if queued else "arriving", says, (Asked(LONG, tokens, 16), *short), 5)

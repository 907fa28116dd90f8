"""Workloads for a scheduler: prompts, their lengths and their arrivals.

On a real model nothing arrives by a clock: a request arrives while a call of the model runs, counted from 0, so that
every chunk size meets the same state of the batch on every machine. In the simulator time is the same everywhere, and
requests arrive in seconds.
"""

import string
from dataclasses import dataclass, replace

from .text import counted

LONG, SHORT, RUNNING = "long", "short", "running"


def prompt_of(length: int, vocabulary: int, number: int = 0) -> list[int]:
    """Token ids that repeat only after the whole vocabulary; speed does not depend on what they mean."""
    return [(7919 * position + 31 * number) % vocabulary for position in range(length)]


@dataclass(frozen=True)
class RequestSpec:
    """One request."""

    kind: str  # `LONG`, `SHORT`, or `RUNNING`, which only keeps the batch busy
    tokens: int  # of its prompt
    answer: int  # tokens that it may have
    arrives: int | None = None  # during which call of the model; None is before the first one
    name: str = ""  # what charts and tables call it
    prompt: tuple[int, ...] = ()  # its token ids; empty for those of `prompt_of`
    priority: str = "interactive"  # its class
    text: str = ""  # of the prompt, without a chat template around it
    text_tokens: int = 0  # of that text
    time: float = 0.0  # in the simulator, the seconds after which it arrives

    def ids(self, vocabulary: int, number: int = 0) -> list[int]:
        """Token ids of the prompt."""
        return list(self.prompt) or prompt_of(self.tokens, vocabulary, number)


@dataclass(frozen=True)
class Workload:
    """Requests in the order of their arrival, and how they are served."""

    name: str
    says: str  # for people
    requests: tuple[RequestSpec, ...]
    batch_size: int = 5  # slots
    promise: int = 128  # tokens of prompts for which running requests agree to wait; what is more is a stall
    room: int | None = None  # tokens of a slot; None is what the longest request needs
    ends: bool = False  # whether an answer may end before it has all its tokens

    @property
    def max_seq_len(self) -> int:
        """Tokens of a slot."""
        return self.room or max(spec.tokens + spec.answer for spec in self.requests) + 1


def mixed(tokens: int = 1024, answer: int = 32) -> Workload:
    """A workload of three long prompts and ten short ones, five at a time, all there at the start."""
    long, short = RequestSpec(LONG, tokens, answer), RequestSpec(SHORT, 8, answer)
    about = f"3 prompts of {counted(tokens, 'token')}, then 10 of 8, all there at the start; 5 slots"
    return Workload("mixed", about, (long,) * 3 + (short,) * 10)


def decode_heavy(tokens: int = 2048, answer: int = 96) -> Workload:
    """A workload of four requests that decode when a long prompt arrives.

    Their prompts are of one chunk whatever its size. Each starts in a separate step, so calls 0 to 7 are a prompt
    and a decode in turns; the long one arrives during the 16th decode that follows. Of the gaps between 4 · 96 tokens
    the longest four are more than one per cent: p99 is one of them.
    """
    about = f"4 requests decode {counted(answer, 'token')}; a prompt of {tokens:,} arrives"
    running = (RequestSpec(RUNNING, 16, answer),) * 4
    return Workload("decode-heavy", about, (*running, RequestSpec(LONG, tokens, 8, arrives=23)))


def among_decodes(tokens: int = 2048, decodes: int = 4, promise: int = 128) -> Workload:
    """The timeline's workload: requests that decode, a long prompt among them, then a short one.

    The long prompt arrives in the third step in which all of them decode. In chunks of `promise`, its prefill
    ends before they do.
    """
    arrives, chunks = 2 * decodes + 1, -(-tokens // promise)
    one = RequestSpec(RUNNING, min(20, promise), decodes + chunks + 16)
    running = (replace(one, name=name) for name in string.ascii_uppercase[:decodes])
    long, late = RequestSpec(LONG, tokens, 8, arrives, "long"), RequestSpec(SHORT, 20, 8, arrives, "late")
    running_text = f"{decodes} requests run" if decodes > 1 else "1 request runs"
    about = f"{running_text} when a prompt of {counted(tokens, 'token')} arrives, and a short one after it."
    return Workload("timeline", about, (*running, long, late), decodes + 2, promise)

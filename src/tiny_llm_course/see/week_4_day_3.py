"""The screen of Day 4.3: answers of the shipped model by step, with drafts from their own text, and how many pay.

The learner's functions look drafts up, plan, pack, verify and rewind. Every answer is compared with one without drafts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from rich.console import Console
from rich.text import Text

from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import AnswerSequence
from tiny_llm_engine.step_loop import StepLoop
from tiny_llm_extensions.drafts.proposals import Proposals
from tiny_llm_extensions.make_loop import make_loop

from ..trace.tables import figures_table
from ..trace.text import harmless
from .shared import MODEL, shipped

COLOURS = ("cyan", "magenta", "yellow", "green")
QUESTION = "What is RoPE?"
QUOTED = "RoPE turns pairs of numbers in each query by an angle, so scores depend on distance."
DRAFTS, MOST_TOKENS, BLOCKS, BLOCK = 4, 26, 24, 16  # of a step, of an answer, of the pool, tokens of a block
HOT = {"temperature": 2.0, "seed": 7}
LOADS, RATES, MOST_DRAFTS = (1, 2, 4, 8, 16), (0.3, 0.6, 0.9), 8


@dataclass
class DraftedRun:
    """One answer: the tokens that each step gave it, and how many drafts there were and were accepted."""

    steps: list[list[int]]
    drafts: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> list[int]:
        return [token for step in self.steps for token in step]


class Chats:
    """Chats with the shipped model, one at a time, by the learner's scheduler."""

    def __init__(self, b: Port):
        self.b, self.s = b, b.serving
        self.tokenizer: Tokenizer = load_tokenizer(MODEL)
        self.model = b.Qwen3ModelWeek3(shipped(b))

    def run(self, *turns: str, drafts: int = DRAFTS, **sampling: Any) -> DraftedRun:
        """The answer to the last of some turns, of which the user has the first, the third and so on."""
        roles = cycle(("user", "assistant"))
        messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
        params = self.s.SamplingParams(max_tokens=MOST_TOKENS, **sampling)
        prompt = self.tokenizer.encode(self.tokenizer.apply_chat_template(messages))
        sequence = self.s.Sequence(prompt, self.tokenizer, sampling=params, max_seq_len=BLOCKS * BLOCK)
        engine = self.b.packed_runner(self.model, BLOCKS, BLOCK), self.s.BlockAllocator(BLOCKS, BLOCK)
        if not drafts:
            return DraftedRun(_steps(make_loop(self.s, "hybrid", *engine), sequence))
        proposals = Proposals(self.s.choose_k, self.s.PromptLookup(), drafts)
        steps = _steps(make_loop(self.s, "hybrid", *engine, drafts=proposals), sequence)
        return DraftedRun(steps, proposals.counts.draft_tokens, proposals.counts.accepted_tokens)


def _steps(loop: StepLoop, sequence: AnswerSequence) -> list[list[int]]:
    """Serve one request; return the new tokens of each step."""
    steps: list[list[int]] = []
    loop.add(sequence)
    while loop.has_work_remaining() and len(steps) < 2 * MOST_TOKENS:  # a wrong solution may never end
        before = len(sequence.tokens)
        loop.step()
        steps.append(sequence.tokens[before:])
    return steps


def show(b: Port, console: Console) -> None:
    """Draw four answers by step, then the number of drafts that pay by load and acceptance."""
    chats = Chats(b)
    answer = chats.tokenizer.decode(chats.run(QUESTION, drafts=0).tokens)
    console.print(f"{QUESTION} {DRAFTS} drafts per step at most. Accepted drafts are coloured, with a")
    console.print("colour for each step; the token that ends a step is underlined.\n")
    table = figures_table("", "tokens", "steps", "drafts", "accepted", "without drafts")
    for name, turns, sampling in (
        ("the first time", (QUESTION,), {}),
        ("again", (QUESTION, answer, QUESTION), {}),
        ("after another answer", (QUESTION, QUOTED, QUESTION), {}),
        ("again, temperature 2", (QUESTION, answer, QUESTION), HOT),
    ):
        run, plain = chats.run(*turns, **sampling), chats.run(*turns, drafts=0, **sampling)
        console.print(Text.assemble((f"{name}: ", "bold"), _coloured(run, chats.tokenizer)))
        same = "the same" if run.tokens == plain.tokens else "ANOTHER ANSWER"
        table.add_row(
            name,
            *map(str, (len(run.tokens), len(run.steps), run.drafts, run.accepted)),
            f"{len(plain.steps)} steps, {same}",
        )
    console.print()
    console.print(table)
    _lengths(b.serving.choose_k, console)


def _coloured(run: DraftedRun, tokenizer: Tokenizer) -> Text:
    """An answer. The last token of a step is a draw, not a draft."""
    text, detokenizer = Text(), tokenizer.detokenizer()
    colours = cycle(COLOURS)
    for step in run.steps:
        colour = next(colours) if len(step) > 1 else ""
        for place, token in enumerate(step, start=1):
            text.append(harmless(detokenizer.add(token)), colour if place < len(step) else "underline")
    return text


def _lengths(choose_k: Callable, console: Console) -> None:
    """How many drafts all requests of a step have together, and what that does to its tokens per second."""
    console.print(
        "\nDrafts per request, and tokens per second beside those without, for a step of\n"
        "max(30 + rows, 3 · rows) ms\n"
    )
    table = figures_table("requests", *(f"{rate:.0%} right" for rate in RATES))
    for load in LOADS:
        table.add_row(str(load), *(_gain(choose_k, load, rate) for rate in RATES))
    console.print(table)


def _seconds(rows: int) -> float:
    return max(30 + rows, 3 * rows) / 1000


def _gain(choose_k: Callable, load: int, rate: float) -> str:
    """Each request in turn takes as many drafts as pay, after those of the requests before it."""
    drafts: list[int] = []
    useful = float(load)
    for _ in range(load):
        drafts.append(choose_k(rate, MOST_DRAFTS, load + sum(drafts), useful, _seconds))
        useful += sum(rate**place for place in range(1, drafts[-1] + 1))
    gain = useful / _seconds(load + sum(drafts)) * _seconds(load) / load
    return f"{sum(drafts) / load:.1f}  {gain:.2f} ×"

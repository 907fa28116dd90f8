"""The screen of Day 3.3: a strip of tokens for each step, and the same requests under other policies.

The learner's scheduler plans for a model that checks every batch and computes nothing. Then it serves the shipped one.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiny_llm_engine.machine.terminal import FatalError
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import AnswerSequence, Event, ServingPackage
from tiny_llm_extensions.make_loop import make_loop

from ..fakes.fake_packed_model import FakePackedModel
from ..trace.serve import endless_sequence
from ..trace.tables import figures_table
from ..trace.text import shortened
from .shared import MODEL, chats, run_all, shipped

COLOURS = ("cyan", "magenta", "yellow", "green", "blue")
BUDGET, SEQS, BLOCKS, BLOCK = 12, 4, 11, 4
# Tokens of the prompt and of the answer, and the step before which the request arrives.
DRAWN = ((5, 13, 0), (3, 11, 0), (21, 3, 2), (4, 4, 3))
POLICIES = {
    "hybrid": {},
    "separate": {"mixed_steps": False},
    "no chunks": {"enable_chunked_prefill": False, "max_num_batched_tokens": 64},
}
QUESTIONS = ("What is RoPE?", "What is a KV cache?", "Thank you", "What is vLLM?", "What is attention?")


@dataclass
class Run:
    """One policy's run: each call of the model, the requests preempted before it, and the times of A's tokens."""

    calls: list[tuple[Any, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    preempted: str = ""

    def hear(self, event: Event) -> None:
        if event.kind == "preempt":
            self.preempted += letter(event.request)
        elif event.kind == "step":
            self.calls.append((event, self.preempted))
            self.preempted = ""
        elif event.kind == "token" and letter(event.request) == "A":
            self.times.append(event.time)

    @property
    def computed(self) -> int:
        """Number of computed tokens."""
        return sum(part.tokens for event, _ in self.calls for part in event.parts)


def letter(sequence: AnswerSequence) -> str:
    return chr(ord("A") + sequence.request_id)


def show(b: Port, console: Console) -> None:
    """Draw the strips of a small run, count what other policies do with it, then serve the shipped model."""
    s = b.serving
    runs = {name: _run(s, **options) for name, options in POLICIES.items()}
    console.print(f"budget {BUDGET} tokens per step; {BLOCKS} blocks of {BLOCK} tokens")
    console.print("A  a token of A's prompt, or one that is computed again      a  A decodes\n")
    for number, (event, preempted) in enumerate(runs["hybrid"].calls, start=1):
        console.print(_strip(number, event, preempted))
    console.print()
    _compare(console, runs)
    _serve(b, s, console)


def _run(s: ServingPackage, **options: Any) -> Run:
    allocator = s.BlockAllocator(BLOCKS, BLOCK, enable_prefix_caching=False)
    model = FakePackedModel(allocator, s.Sampled)
    sequences = [
        endless_sequence(s, [97 + number] * prompt, answer, 64, number)
        for number, (prompt, answer, _) in enumerate(DRAWN)
    ]
    run, options = Run(), {"max_num_batched_tokens": BUDGET, "max_num_seqs": SEQS, **options}
    loop = make_loop(s, "hybrid", model, allocator, clock=model.clock, on_event=run.hear, **options)
    steps, waiting = 0, deque(zip((arrives for *_, arrives in DRAWN), sequences, strict=True))
    while waiting or loop.has_work_remaining():
        while waiting and waiting[0][0] <= steps:
            loop.add(waiting.popleft()[1])
        if not (loop.step() or waiting):
            raise FatalError(
                "nothing is planned for requests that wait: `plan_step` has to plan prompts and decodes"
            )
        steps += 1
    return run


def _strip(number: int, event: Event, preempted: str) -> Text:
    """The tokens of a step, decodes first, each in the colour of its request."""
    text = Text.assemble((f"step {number:2}  ", "dim"))
    for part in sorted(event.parts, key=lambda part: part.kind == "chunk"):
        for request in part.requests:
            cells = letter(request).lower() if part.kind == "decode" else letter(request) * part.tokens
            text.append(cells, COLOURS[request.request_id])
    tokens = sum(part.tokens for part in event.parts)
    text.append(" " * (BUDGET - tokens) + f"  {tokens:2} token{'s' * (tokens > 1)}", "dim")
    if preempted:
        text.append(f"   no block is free: {', '.join(preempted)} preempted", "red")
    return text


def _compare(console: Console, runs: dict[str, Run]) -> None:
    table = figures_table("policy", "calls", "tokens", "A's longest gap")
    for name, run in runs.items():
        gap = max(later - earlier for earlier, later in pairwise(run.times))
        table.add_row(name, str(len(run.calls)), str(run.computed), f"{gap:.0f} tokens")
    console.print(table)
    says = "each call reads all weights; a gap is what was computed between two tokens of A\n"
    console.print(says, style="dim")


def _serve(b: Port, s: ServingPackage, console: Console) -> None:
    """Serve five questions from few blocks, with chunks, preemptions and shared prefixes."""
    network = b.Qwen3ModelWeek3(shipped(b))
    allocator, tokenizer = s.BlockAllocator(12, 8), load_tokenizer(MODEL)
    runner = b.packed_runner(network, allocator.num_blocks, allocator.block_size)
    loop = make_loop(s, "hybrid", runner, allocator, max_num_batched_tokens=16, max_num_seqs=4)
    sequences = chats(s, tokenizer, QUESTIONS, max_seq_len=128)
    steps = run_all(loop, sequences)
    _answers(console, sequences)
    tokens = f"{runner.computed_tokens} tokens in {steps} forwards"
    console.print(f"\n{tokens}: every weight was read {steps} times")


def _answers(console: Console, sequences: Sequence[AnswerSequence]) -> None:
    table = Table("", "question", "preempted", "answer of the shipped model", box=None, pad_edge=False)
    for sequence, question in zip(sequences, QUESTIONS, strict=True):
        answer = Text(shortened(sequence.text, 45))
        table.add_row(letter(sequence), question, str(sequence.num_preemptions), answer)
    console.print(table)

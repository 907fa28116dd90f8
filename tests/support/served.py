"""A loop with its scheduler, a fake model that checks every batch, and requests: for tests of Weeks 3 and 4."""

from typing import Any

from tiny_llm_course.fakes.fake_packed_model import FakePackedModel
from tiny_llm_engine.solutions.solution_types import AnswerSequence, Event
from tiny_llm_extensions.make_loop import make_loop

from .fake_model import ByteTokenizer
from .steps import steps_of


def sequence(
    s: Any,
    prompt: Any = "ab",
    *,
    request_id: int = 0,
    max_seq_len: int = 64,
    priority: str = "interactive",
    **sampling: Any,
) -> AnswerSequence:
    """A request for the bytes of a text, or for ids, with its sampling parameters by name."""
    ids = list(prompt.encode() if isinstance(prompt, str) else prompt)
    limits = {"max_seq_len": max_seq_len, "priority": priority}
    params = s.SamplingParams(**sampling)
    return s.Sequence(ids, ByteTokenizer(), request_id=request_id, sampling=params, **limits)


class Served:
    """A loop with its scheduler, and all that happened to it.

    Args:
        s: the module `serving`.
        num_blocks, block_size, watermark, caching: of the allocator; no watermark unless it is asked for.
        policy: see `make_loop`.
        fake: the model's class.
        model: options of the model.
        options: passed on to `make_loop`.

    Attributes:
        listener: hears every event after it was noted.
    """

    def __init__(
        self,
        s: Any,
        num_blocks: int = 64,
        block_size: int = 4,
        *,
        watermark: float = 0.0,
        caching: bool = False,
        policy: Any = "hybrid",
        fake: Any = FakePackedModel,
        model: dict[str, Any] | None = None,
        **options: Any,
    ):
        self.s, self.events, self.sequences = s, list[Event](), list[AnswerSequence]()
        self.listener: Any = lambda event: None
        self.allocator = s.BlockAllocator(
            num_blocks, block_size, watermark=watermark, enable_prefix_caching=caching
        )
        self.model = fake(self.allocator, s.Sampled, **(model or {}))
        usual = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "on_event": self._hear}
        self.loop = make_loop(
            s, policy, self.model, self.allocator, **{**usual, "clock": self.model.clock, **options}
        )
        self.scheduler = self.loop.scheduler

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self.listener(event)

    def add(self, prompt: Any = "ab", **options: Any) -> AnswerSequence:
        """Adds a request, see `sequence`."""
        made = sequence(self.s, prompt, request_id=len(self.sequences), **options)
        self.sequences.append(made)
        self.loop.add(made)
        return made

    def finish(self) -> Any:
        """Steps until no work remains."""
        for _ in steps_of(self.loop, self.sequences):
            self.loop.step()

    def story(self, made: AnswerSequence) -> list[str]:
        """The events of one request, one after the other."""
        return [event.kind for event in self.events if event.request is made]

    def answer_of(self, made: AnswerSequence) -> list[int]:
        """The tokens that a request gets when it runs alone."""
        return self.model.answer_alone(made.prompt_tokens, made.max_new_tokens)

    def check_answers(self) -> None:
        """Every request that was not refused has the answer that it has alone, and every block is free."""
        for made in self.sequences:
            if made.error is None:
                answered, alone = (
                    "".join(map(chr, tokens)) for tokens in (made.tokens, self.answer_of(made))
                )
                assert made.is_done, f"request {made.request_id} has not ended: {answered!r}"
                assert answered == alone, f"request {made.request_id} answered {answered!r}, alone {alone!r}"
        free, blocks = self.allocator.num_free, self.allocator.num_blocks
        assert free == blocks, f"all requests have ended, and {blocks - free} blocks are not free"


class Guesses:
    """A proposer of drafts on a fake model.

    Args:
        change: change(right, sequence) makes the guess of a request from its right answer.

    Attributes:
        model: knows the right answers; without it there are none.
    """

    draft_seconds = 0.0

    def __init__(self, change: Any = lambda right, sequence: right, model: Any = None):
        self.change, self.model = change, model

    def right(self, sequence: AnswerSequence, k: int) -> list[int]:
        """The next tokens of a request's answer."""
        return self.model.answer_alone(sequence.known_tokens, k) if self.model else []

    def propose(self, wanted: Any) -> list[list[int]]:
        return [self.change(self.right(sequence, k), sequence)[:k] for sequence, k in wanted]

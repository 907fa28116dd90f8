"""The parts of a `Request` of Week 2 that Day 2.6 does not teach. Given."""

from abc import ABC
from collections.abc import Sequence

from ..answer_text import AnswerText
from ..request_life import RequestLife, check_priority, prompt_error
from ..sampling import WEEK_3, SamplingParams, plain_ids
from ..tokenizer import Tokenizer
from .serving_model import ServingModel


class PromptRequest(RequestLife, ABC):
    """A prompt that was checked and encoded, and its limits.

    A prompt that cannot be served ends at once with the finish reason "error". Nothing is raised, since it may be one
    of many.

    Args:
        model, tokenizer, prompt, prompt_idx, max_seq_len, sampling, stop, priority: see `Request`.

    Raises:
        ValueError: `priority` has another value, or `sampling` has a parameter of Week 3.
    """

    def __init__(
        self,
        model: ServingModel,
        tokenizer: Tokenizer,
        prompt: str | Sequence[int],
        prompt_idx: int = 0,
        max_seq_len: int | None = None,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] | str | None = None,
        priority: str = "interactive",
    ):
        check_priority(priority)
        if sampling is not None and (refused := sampling.changed(WEEK_3)):
            raise ValueError(
                f"{', '.join(refused)}: only the engine of Week 3 (`LLM`) has this; leave it out"
            )
        super().__init__(AnswerText(tokenizer))
        self.model, self.tokenizer, self.prompt = model, tokenizer, prompt
        self.prompt_idx, self.sampling, self.priority = prompt_idx, sampling, priority
        self.max_seq_len = model.max_model_len
        self.prompt_tokens: list[int] = []
        try:
            words = [stop] if isinstance(stop, str) else stop or ()
            self.answer = AnswerText(tokenizer, [*words, *((sampling and sampling.stop) or ())])
            self.prompt_tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else plain_ids(prompt)
        except Exception as error:  # tokenizers raise nothing narrower, and this prompt is one of many
            self.fail(str(error))
        else:
            self.set_max_seq_len(self.max_seq_len if max_seq_len is None else max_seq_len)

    def set_max_seq_len(self, max_seq_len: int) -> None:
        """Lowers `max_seq_len`; a prompt that then leaves no room for an answer ends with an error."""
        self.max_seq_len = min(self.max_seq_len, max_seq_len)
        error = prompt_error(self.prompt_tokens, self.model.vocab_size, self.max_seq_len)
        if error is not None:
            self.fail(error)

    @property
    def max_new_tokens(self) -> int:
        """Maximum number of tokens in the answer, by the request's own limit and its context."""
        room = self.max_seq_len - len(self.prompt_tokens)
        limit = self.sampling.max_tokens if self.sampling else None
        return room if limit is None else min(room, limit)

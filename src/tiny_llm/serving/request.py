"""One request: a prompt, its cache, and the text that grows from it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .answer_text import AnswerText
from .chunk import next_chunk
from .model import KvCache, ServingModel
from .prompt_check import prompt_error
from .sampling import WEEK_3, SamplingParams

PRIORITIES = ("interactive", "batch")


class Request:
    """A prompt on its way to an answer: first its prefill, then one token a step.

    A prompt that cannot be served ends here and now with the finish reason "error"; nothing is raised, for it may be
    one of many.

    Args:
        model: what runs the steps.
        tokenizer: `encode(text)` -> ids, `eos_token_ids`, `detokenizer()` as on Day 1.6.
        prompt: plain text, encoded as it is; or the ids.
        prefill_max_step: tokens of a chunk of the prompt, at most; of Day 2.7.
        prompt_idx: the request's number in its list, for the order of the results.
        max_seq_len: tokens of prompt and answer together, at most; the model's own limit when None.
        sampling: how to draw, and how many tokens at most; greedy when None.
        stop: strings that end the text; they do not belong to it. Those of `sampling` end it as well.
        priority: "interactive" or "batch", who of those that wait goes first; of Day 2.7.

    Raises:
        ValueError: another priority, or a sampling parameter of Week 3.
    """

    def __init__(
        self,
        model: ServingModel,
        tokenizer: Any,
        prompt: str | Sequence[int],
        prefill_max_step: int = 128,
        prompt_idx: int = 0,
        max_seq_len: int | None = None,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] | str | None = None,
        priority: str = "interactive",
    ):
        if priority not in PRIORITIES:
            raise ValueError(f"priority is {priority!r}: choose {' or '.join(PRIORITIES)}")
        if sampling is not None and (refused := sampling.changed(WEEK_3)):
            raise ValueError(
                f"{', '.join(refused)}: only the engine of Week 3 (`LLM`) has this; leave it out"
            )
        self.priority = priority
        self.model, self.tokenizer, self.prompt = model, tokenizer, prompt
        self.prefill_max_step, self.prompt_idx, self.sampling = prefill_max_step, prompt_idx, sampling
        self.max_seq_len = (
            model.max_model_len if max_seq_len is None else min(max_seq_len, model.max_model_len)
        )
        self.prompt_tokens: list[int] = []
        self.tokens: list[int] = []  # the new ones, without the one that ended the text
        self.offset = 0  # tokens whose keys and values are in a cache
        self.next_token: int | None = None  # the last one chosen: the next step's input
        self.is_prefill_done = False
        self.finish_reason: str | None = None  # "stop", "length", "abort" or "error"
        self.error: str | None = None  # one line, with the finish reason "error"
        self.answer = AnswerText(tokenizer)
        self._kv_cache: list[KvCache] = []
        self._is_computing = False  # a call of the model is running on it
        self._is_aborted = False  # it ends when that call does
        try:
            words = [stop] if isinstance(stop, str) else stop or ()
            self.answer = AnswerText(tokenizer, [*words, *(sampling.stop if sampling else ())])
            self.prompt_tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        except Exception as error:  # tokenizers raise nothing narrower, and this prompt is one of many
            self.fail(str(error))
        else:
            self.set_max_seq_len(self.max_seq_len)

    @property
    def kv_cache(self) -> list[KvCache]:
        """The request's own caches, one a layer; made at their first use, when its limit is final."""
        if not self._kv_cache:
            self._kv_cache = self.model.create_kv_cache(max_seq_len=self.max_seq_len)
        return self._kv_cache

    def set_max_seq_len(self, max_seq_len: int) -> None:
        """Lowers `max_seq_len`; a prompt that leaves no room for an answer then is refused."""
        self.max_seq_len = min(self.max_seq_len, max_seq_len)
        error = prompt_error(self.prompt_tokens, self.model.vocab_size, self.max_seq_len)
        if error is not None:
            self.fail(error)

    @property
    def text(self) -> str:
        """The answer so far."""
        return self.answer.text

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None

    def prefill(self) -> None:
        """Computes the whole prompt in one step, which also gives the first new token."""
        # TASK 2.6.4: from offset 0, sampled; the cache holds the prompt then, and not yet the new token.
        # The first token may be the last: an end token right away, or a limit of one. The call of the model stands in
        # `with model_call(self):`, so that nobody takes the cache away while it runs.
        raise NotImplementedError("week 2 day 6 task 4: Request.prefill")

    def try_prefill(self) -> int:
        """Computes the next chunk of the prompt; the last one also gives the first new token.

        Returns:
            How many tokens it had.

        Raises:
            ValueError: there is no chunk left, or the request has ended.
        """
        # TASK 2.7.2: from the offset on, into the request's own cache; sampled only if the chunk ends the prompt.
        # Between two chunks the offset and the cache are all that is remembered.
        raise NotImplementedError("week 2 day 7 task 2: Request.try_prefill")

    def decode_done(self, token: int, update_offset: bool = True) -> None:
        """Takes the token that a step has chosen: appends it to the text, or ends the request.

        Args:
            token: its id.
            update_offset: whether the step put a token of this request into the batch's cache, as a decode step does
                with `next_token`; prefill counts the prompt itself.
        """
        # TASK 2.6.5: count, stop at an end token, append, stop at a stop string or at a limit.
        # An end token is a signal and no part of the text. A stop string may be spread over several tokens.
        # A request that was aborted while its step ran has ended: it takes no token.
        raise NotImplementedError("week 2 day 6 task 5: Request.decode_done")

    @property
    def prompt_left(self) -> int:
        """Tokens of the prompt that were not computed yet."""
        return len(self.prompt_tokens) - self.offset if not self.is_prefill_done else 0

    @property
    def max_new_tokens(self) -> int:
        """What the request's own limit and its context leave for the answer."""
        room = self.max_seq_len - len(self.prompt_tokens)
        limit = self.sampling.max_tokens if self.sampling else None
        return room if limit is None else min(room, limit)

    def finish(self, reason: str) -> None:
        """Ends the request: delivers what was held back of its text, and releases its cache. The first reason stays."""
        if self.is_done:
            return
        self.finish_reason = reason
        self.answer.finish()
        self.release()

    def fail(self, reason: str) -> None:
        """Ends the request with the finish reason "error" and a line that says why. The first reason stays."""
        if self.is_done:
            return
        self.error = reason
        self.finish_reason = "error"
        self.release()

    def abort(self) -> None:
        """Ends the request now, in any phase, from any thread; its text so far stays.

        If a call of the model is running on it, the request ends as soon as that call has returned or raised.
        """
        # TASK 2.6.6: an end like any other; one that has already ended keeps its reason.
        # While the model writes to the cache nobody may release it: the mark `_is_aborted` is all that can be done
        # then, and `model_call` does the rest. Mark first and look second: the call may end in between.
        raise NotImplementedError("week 2 day 6 task 6: Request.abort")

    def release(self) -> None:
        """Gives the request's own caches back, once. Its row of a batch belongs to the batch."""
        released, self._kv_cache = self._kv_cache, []
        for layer in released:
            layer.release()


@contextmanager
def model_call(*requests: Request) -> Iterator[None]:
    """The scope of one call of the model on these requests. Given.

    Whoever is aborted in it ends with it. A call that raises ends all of them, with the error's message or, on Ctrl-C,
    as aborted: their caches may hold a part of the step, so that none of them can go on.
    """
    for request in requests:
        request._is_computing = True
    failed: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failed = error
        raise
    finally:
        for request in requests:
            request._is_computing = False
            if request._is_aborted or (failed and not isinstance(failed, Exception)):
                request.finish("abort")
            elif failed:
                request.fail(str(failed) or type(failed).__name__)


def as_request(
    model: ServingModel,
    tokenizer: Any,
    prompt: str | Sequence[int] | Request,
    prompt_idx: int,
    max_seq_len: int,
) -> Request:
    """A prompt of a list as a request of its number; one that is a request already must fit the slots. Given."""
    if not isinstance(prompt, Request):
        return Request(model, tokenizer, prompt, prompt_idx=prompt_idx, max_seq_len=max_seq_len)
    prompt.prompt_idx = prompt_idx
    prompt.set_max_seq_len(max_seq_len)
    return prompt

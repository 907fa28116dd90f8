"""One request: a prompt, its cache, and the text that grows from it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tiny_llm_common.answer_text import AnswerText
from tiny_llm_common.model import KvCache, ServingModel
from tiny_llm_common.prompt_check import plain_ids, prompt_error
from tiny_llm_common.request_queue import check_priority
from tiny_llm_common.sampling import WEEK_3, SamplingParams
from tiny_llm_common.tokenizer import Tokenizer

from .chunk import next_chunk


class Request:
    """A prompt and its answer so far: first its prefill, then one token per step.

    A prompt that cannot be served ends at once with the finish reason "error". Nothing is raised, since it may be one
    of many.

    Args:
        model: runs the steps.
        tokenizer: `encode(text)` -> ids, `eos_token_ids`, `detokenizer()` as on Day 1.6.
        prompt: plain text, encoded as it is, or token ids.
        prefill_max_step: maximum number of tokens in a chunk of the prompt (Day 2.7).
        prompt_idx: index of the prompt in its list, for the order of the results.
        max_seq_len: maximum number of tokens of prompt and answer together; the model's own limit when None.
        sampling: how to draw, and the maximum number of new tokens; greedy when None.
        stop: strings that end the text and are not part of it, in addition to those of `sampling`.
        priority: "interactive" or "batch"; interactive requests go first (Day 2.7).

    Raises:
        ValueError: `priority` has another value, or `sampling` has a parameter of Week 3.
    """

    def __init__(
        self,
        model: ServingModel,
        tokenizer: Tokenizer,
        prompt: str | Sequence[int],
        prefill_max_step: int = 128,
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
        self.priority = priority
        self.model, self.tokenizer, self.prompt = model, tokenizer, prompt
        self.prefill_max_step, self.prompt_idx, self.sampling = prefill_max_step, prompt_idx, sampling
        self.max_seq_len = (
            model.max_model_len if max_seq_len is None else min(max_seq_len, model.max_model_len)
        )
        self.prompt_tokens: list[int] = []
        self.tokens: list[int] = []  # the new ones, without the end token
        self.offset = 0  # number of tokens whose keys and values are in a cache
        self.next_token: int | None = None  # the last one chosen: the next step's input
        self.is_prefill_done = False
        self.finish_reason: str | None = None  # "stop", "length", "abort" or "error"
        self.error: str | None = None  # one line, with the finish reason "error"
        self.answer = AnswerText(tokenizer)
        self._kv_cache: list[KvCache] = []
        self._is_computing = False  # a call of the model is using it
        self._is_aborted = False  # it ends at the end of that call
        try:
            words = [stop] if isinstance(stop, str) else stop or ()
            self.answer = AnswerText(tokenizer, [*words, *((sampling and sampling.stop) or ())])
            self.prompt_tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else plain_ids(prompt)
        except Exception as error:  # tokenizers raise nothing narrower, and this prompt is one of many
            self.fail(str(error))
        else:
            self.set_max_seq_len(self.max_seq_len)

    @property
    def kv_cache(self) -> list[KvCache]:
        """The request's own caches, one per layer; made at their first use, when its limit is final."""
        if not self._kv_cache:
            self._kv_cache = self.model.create_kv_cache(max_seq_len=self.max_seq_len)
        return self._kv_cache

    def set_max_seq_len(self, max_seq_len: int) -> None:
        """Lowers `max_seq_len`; a prompt that then leaves no room for an answer ends with an error."""
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
        # TASK 2.6.4: from offset 0, sampled; afterwards the cache holds the prompt, but not the new token.
        # The first token may be the last: an end token, or a limit of one token. Put the call of the model into
        # `with model_call(self):`, so that the cache is not released while the call runs.
        raise NotImplementedError("week 2 day 6 task 4: Request.prefill")

    def try_prefill(self) -> int:
        """Computes the next chunk of the prompt; the last one also gives the first new token.

        Returns:
            The number of tokens in the chunk.

        Raises:
            ValueError: there is no chunk left, or the request has ended.
        """
        # TASK 2.7.2: from the offset on, into the request's own cache; sampled only if the chunk ends the prompt.
        # Between two chunks, the offset and the cache are the only state.
        raise NotImplementedError("week 2 day 7 task 2: Request.try_prefill")

    def decode_done(self, token: int, update_offset: bool = True) -> None:
        """Takes the token that a step has chosen: appends it to the text, or ends the request.

        Args:
            token: its id.
            update_offset: whether the step stored a token of this request in the batch's cache, as a decode step does
                with `next_token`; prefill counts the prompt's tokens itself.
        """
        # TASK 2.6.5: count, stop at an end token, append, stop at a stop string or at a limit.
        # An end token is not part of the text. A stop string may extend over several tokens.
        # A request that was aborted during its step has ended: it takes no token.
        raise NotImplementedError("week 2 day 6 task 5: Request.decode_done")

    @property
    def prompt_left(self) -> int:
        """Number of prompt tokens that were not computed yet."""
        return len(self.prompt_tokens) - self.offset if not self.is_prefill_done else 0

    @property
    def max_new_tokens(self) -> int:
        """Maximum number of tokens in the answer, by the request's own limit and its context."""
        room = self.max_seq_len - len(self.prompt_tokens)
        limit = self.sampling.max_tokens if self.sampling else None
        return room if limit is None else min(room, limit)

    def finish(self, reason: str) -> None:
        """Ends the request: adds held-back text, and releases its cache. The first reason is kept."""
        if self.is_done:
            return
        self.finish_reason = reason
        self.answer.finish()
        self.release()

    def fail(self, reason: str) -> None:
        """Ends the request with the finish reason "error" and `reason` as its error. The first reason is kept."""
        if self.is_done:
            return
        self.error = reason
        self.finish_reason = "error"
        self.release()

    def abort(self) -> None:
        """Ends the request in any phase, from any thread; its text so far is kept.

        If a call of the model is using it, the request ends as soon as that call has returned or raised.
        """
        # TASK 2.6.6: end it as usual; a request that has already ended keeps its reason.
        # While the model writes to the cache, the cache must not be released: then only set `_is_aborted`, and
        # `model_call` does the rest. Set it before you check `_is_computing`: the call may end in between.
        raise NotImplementedError("week 2 day 6 task 6: Request.abort")

    def release(self) -> None:
        """Releases the request's own caches, once. Its row of a batch belongs to the batch."""
        released, self._kv_cache = self._kv_cache, []
        for layer in released:
            layer.release()


@contextmanager
def model_call(*requests: Request) -> Iterator[None]:
    """Context of one call of the model on these requests. Given.

    A request that is aborted during the call ends after it. A call that raises ends all of them, with the error's
    message or, on Ctrl-C, as aborted: their caches may hold a part of the step, so none of them can continue.
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
    tokenizer: Tokenizer,
    prompt: str | Sequence[int] | Request,
    prompt_idx: int,
    max_seq_len: int,
) -> Request:
    """A prompt of a list as a `Request`; the limit of one that is a `Request` already is lowered. Given."""
    if not isinstance(prompt, Request):
        return Request(model, tokenizer, prompt, prompt_idx=prompt_idx, max_seq_len=max_seq_len)
    prompt.prompt_idx = prompt_idx
    prompt.set_max_seq_len(max_seq_len)
    return prompt

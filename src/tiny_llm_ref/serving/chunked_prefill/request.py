"""One request: a prompt, its cache, and the text that grows from it."""

from collections.abc import Sequence

from tiny_llm_engine.chunked_prefill.prompt_request import PromptRequest
from tiny_llm_engine.chunked_prefill.serving_model import KvCache, ServingModel
from tiny_llm_engine.request_life import model_call
from tiny_llm_engine.sampling import SamplingParams
from tiny_llm_engine.tokenizer import Tokenizer

from .chunk import next_chunk


class Request(PromptRequest):
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
        self.offset = 0  # number of tokens whose keys and values are in a cache
        self.next_token: int | None = None  # the last one chosen: the next step's input
        self.is_prefill_done = False
        self.prefill_max_step = prefill_max_step
        self._kv_cache: list[KvCache] = []
        super().__init__(model, tokenizer, prompt, prompt_idx, max_seq_len, sampling, stop, priority)

    @property
    def kv_cache(self) -> list[KvCache]:
        """The request's own caches, one per layer; made at their first use, when its limit is final."""
        if not self._kv_cache:
            self._kv_cache = self.model.create_kv_cache(max_seq_len=self.max_seq_len)
        return self._kv_cache

    def prefill(self) -> None:
        """Computes the whole prompt in one step, which also gives the first new token."""
        # TASK 2.6.4: from offset 0, sampled; afterwards the cache holds the prompt, but not the new token.
        # The first token may be the last: an end token, or a limit of one token. Put the call of the model into
        # `with model_call(self):`, so that the cache is not released while the call runs.
        with model_call(self):
            token = self.model.prefill(
                self.prompt_tokens, 0, self.kv_cache, sampling=self.sampling, sample=True
            )
        self.offset = len(self.prompt_tokens)
        self.is_prefill_done = True
        assert token is not None  # `sample` has asked for one
        self.decode_done(token, update_offset=False)

    def try_prefill(self) -> int:
        """Computes the next chunk of the prompt; the last one also gives the first new token.

        Returns:
            The number of tokens in the chunk.

        Raises:
            ValueError: there is no chunk left, or the request has ended.
        """
        # TASK 2.7.2: from the offset on, into the request's own cache; sampled only if the chunk ends the prompt.
        # Between two chunks, the offset and the cache are the only state.
        if self.is_prefill_done or self.is_done:
            raise ValueError(
                f"request {self.prompt_idx} has no chunk left: {self.finish_reason or 'its prefill is done'}"
            )
        chunk = next_chunk(self.offset, len(self.prompt_tokens), self.prefill_max_step)
        with model_call(self):
            token = self.model.prefill(
                self.prompt_tokens[chunk.start : chunk.stop],
                chunk.start,
                self.kv_cache,
                sampling=self.sampling,
                sample=chunk.is_last,
            )
        self.offset = chunk.stop
        if chunk.is_last:
            self.is_prefill_done = True
            assert token is not None  # `sample` has asked for one
            self.decode_done(token, update_offset=False)
        return chunk.size

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
        if self.is_done:
            return
        if update_offset:
            self.offset += 1
        if token in self.tokenizer.eos_token_ids:
            self.finish("stop")
            return
        self.next_token = token
        self.tokens.append(token)
        self.answer.add(token)
        if self.answer.stopped:
            self.finish("stop")
        elif len(self.tokens) >= self.max_new_tokens:
            self.finish("length")

    @property
    def prompt_left(self) -> int:
        """Number of prompt tokens that were not computed yet."""
        return len(self.prompt_tokens) - self.offset if not self.is_prefill_done else 0

    def abort(self) -> None:
        """Ends the request in any phase, from any thread; its text so far is kept.

        If a call of the model is using it, the request ends as soon as that call has returned or raised.
        """
        # TASK 2.6.6: end it as usual; a request that has already ended keeps its reason.
        # While the model writes to the cache, the cache must not be released: then only set `_is_aborted`, and
        # `model_call` does the rest. Set it before you check `_is_computing`: the call may end in between.
        self._is_aborted = True
        if not self._is_computing:
            self.finish("abort")

    def release(self) -> None:
        """Releases the request's own caches, once. Its row of a batch belongs to the batch."""
        released, self._kv_cache = self._kv_cache, []
        for layer in released:
            layer.release()


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

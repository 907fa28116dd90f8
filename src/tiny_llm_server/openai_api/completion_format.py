"""Answers as /v1/completions writes them: plain text, with the prompt before it if the client wants that."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tiny_llm_engine.loop_state import Piece
from tiny_llm_engine.models.files import Json
from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.solutions.solution_types import Sampled

from .formats import AnswerFormat, Columns, columns
from .service_contract import AnswerState

COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@dataclass(frozen=True)
class Echo:
    """The prompts of a request.

    Args:
        texts: each prompt's text.
        ids: its tokens.
        n: answers to each prompt.
        sequences: returns the answers. The first of each prompt has what the model thought of the prompt's tokens, in
            `prompt_sampled`, once it has a token.
        drops_answer: whether nothing but the prompts is wanted.
    """

    texts: Sequence[str]
    ids: Sequence[Sequence[int]]
    n: int
    sequences: Callable[[], Sequence[AnswerState]]
    drops_answer: bool = False

    def text(self, index: int) -> str:
        """The prompt of an answer."""
        return self.texts[index // self.n]

    def tokens(self, index: int) -> Sequence[int]:
        """Its token ids."""
        return self.ids[index // self.n]

    def sampled(self, index: int) -> list[Sampled | None]:
        """What the model thought of each token; None of the first one, which follows nothing."""
        found = self.sequences()[index // self.n * self.n].prompt_sampled
        return [None, *(found[place] for place in range(1, len(self.tokens(index))))]


class CompletionFormat(AnswerFormat):
    """The format of `/v1/completions`: plain text.

    Args:
        model, tokenizer, with_logprobs: see `AnswerFormat`.
        skip_special_tokens: whether to leave them out of the text.
        echo: the prompts, if they come back before the answers.
    """

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        with_logprobs: bool,
        skip_special_tokens: bool = True,
        echo: Echo | None = None,
    ):
        super().__init__(model, tokenizer, with_logprobs)
        self._names = self._text, lambda token: bytes_name(tokenizer.bytes_of(token)), "token_id:{}".format
        self._new_places = partial(TokenPlaces, tokenizer, skip_special_tokens)
        self._places: defaultdict[int, TokenPlaces] = defaultdict(self._new_places)  # by answer
        self._echo, self._echoed = echo, set[int]()
        self._prompts: dict[int, Columns] = {}  # the log-probabilities of each, for all of its answers
        self.drops_answer = echo is not None and echo.drops_answer

    def first_chunks(self, count: int) -> list[Json]:
        """The prompts, if they come back; with log-probabilities they come with the first tokens."""
        if self._echo is None or self.with_logprobs:
            return []
        return [chunk for index in range(count) for chunk in self.chunks(Piece(index))]

    def choice(self, answer: Piece) -> Json:
        return self.delta(answer)

    def delta(self, piece: Piece) -> Json:
        if self.drops_answer:
            piece = replace(piece, text="", finish_reason=piece.finish_reason and "length")
        before = "" if self._echo is None or piece.index in self._echoed else self._echo.text(piece.index)
        self._echoed.add(piece.index)
        return {
            "index": piece.index,
            "text": before + piece.text,
            "logprobs": self._logprobs.pop(piece.index, None),
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }

    async def _columns(self, piece: Piece) -> Columns:
        before = 0 if self._echo is None else len(self._echo.text(piece.index))
        sampled = [] if self.drops_answer else piece.sampled
        rows = self._rows([each.token for each in sampled], sampled, self._places[piece.index], before)
        own = await columns(COLUMNS, rows)
        if self._echo is None or piece.index in self._echoed:
            return own
        prompt = await self._prompt_columns(self._echo, piece.index)
        return {name: prompt[name] + own[name] for name in COLUMNS}

    async def _prompt_columns(self, echo: Echo, index: int) -> Columns:
        """Those of an answer's prompt, computed and written for the first of its answers alone."""
        number = index // echo.n
        if number not in self._prompts:
            rows = self._rows(echo.tokens(index), echo.sampled(index), self._new_places())
            self._prompts[number] = await columns(COLUMNS, rows)
        return self._prompts[number]

    def _rows(
        self, tokens: Sequence[int], sampled: Sequence[Sampled | None], places: "TokenPlaces", before: int = 0
    ) -> Iterable[Sequence[object]]:
        for token, each in zip(tokens, sampled, strict=True):
            best = each and self._best(each)
            yield self._text(token), each and each.logprob, best, before + places.next(token)

    def _best(self, sampled: Sampled) -> dict[str, float | None]:
        """The most probable tokens and the one drawn, by text. It has its own text, whatever others look like."""
        best = {**(sampled.top_logprobs or {}), sampled.token: sampled.logprob}
        texts = {sampled.token: self._text(sampled.token)}
        for token in best:
            names = (name(token) for name in self._names)
            texts.setdefault(token, next(name for name in names if name not in texts.values()))
        return {texts[token]: value for token, value in best.items()}


class TokenPlaces:
    """Where each token begins in the text of an answer, in characters; one that ends a character begins with it.

    Args:
        tokenizer: the model's tokenizer.
        skip_special_tokens: whether to leave them out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool):
        self._tokenizer, self._length = tokenizer, 0
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)

    def next(self, token: int) -> int:
        """The place of the next token."""
        before, text = self._length, self._detokenizer.add(token)
        self._length += len(text)
        # Bytes before it that were no character have become one.
        return max(before, self._length - len(self._tokenizer.text_of(token))) if text else before


def bytes_name(content: bytes) -> str:
    """A part of a character, as OpenAI writes it."""
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

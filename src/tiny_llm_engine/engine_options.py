"""The options of a plain engine, and the limits that follow from them for one model."""

from dataclasses import dataclass, fields

from .models.layer_weights import ModelShape
from .sampling import plain_number

COUNTS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "num_blocks")
CHUNKED_BUDGET = 512  # tokens of a step by default
NEEDS_CHUNKS = "needs chunks: turn enable_chunked_prefill on, or choose another policy"
# By the type of a field: what it may be, and how errors call it.
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "True or False"),
    "str": ((str,), "a text"),
}


@dataclass(frozen=True)
class PlainOptions:
    """The options of an engine that nothing is put on.

    Args:
        enable_chunked_prefill: whether prompts are computed in chunks beside decodes; else whole, in their own steps.
        max_num_batched_tokens: tokens that a step computes, of all requests together. None is 512, or without chunked
            prefill `max_model_len`, so that every whole prompt fits; and never less than `max_num_seqs`.
        long_prefill_token_threshold: maximum tokens of a prompt's chunk, so that several long prompts share a step; 0
            is the budget of the step.
        max_num_seqs: requests that run at the same time.
        max_model_len: tokens of a prompt and its answer; the model's own limit when None.
        block_size: tokens of a KV block. `LLM` has 256 by default on CUDA.
        num_blocks: KV blocks. None is enough for `max_num_seqs` requests of `max_model_len` tokens.
        enable_prefix_caching: whether requests share the blocks of equal beginnings.
        seed: the seed of requests that bring none of their own.

    Raises:
        ValueError: a value is out of range.
    """

    enable_chunked_prefill: bool = True
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    max_num_seqs: int = 16
    max_model_len: int | None = None
    block_size: int = 128
    num_blocks: int | None = None
    enable_prefix_caching: bool = True
    seed: int = 0

    def __post_init__(self):
        self._check_types()
        for name in COUNTS:
            check_count(name, getattr(self, name))
        if self.long_prefill_token_threshold < 0:
            name = "long_prefill_token_threshold"
            raise ValueError(f"{name} is {self.long_prefill_token_threshold}: give tokens of a chunk, or 0")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}: give a whole number from 0 to 2⁶³ - 1")

    def _check_types(self) -> None:
        """Makes other libraries' numbers Python's, and refuses values of other types."""
        for each in fields(self):
            value = plain_number(getattr(self, each.name))
            object.__setattr__(self, each.name, value)
            kind, _, none = getattr(each.type, "__name__", str(each.type)).partition(" | ")
            kinds, words = KINDS.get(kind, ((object,), "an object, or None"))
            is_right = isinstance(value, kinds) and isinstance(value, bool) <= (kind == "bool")
            if not is_right and not (none and value is None):
                raise ValueError(f"{each.name} is {value!r}: give {words}")


def check_count(name: str, value: int | None) -> None:
    """Raise ValueError if a number is below 1."""
    if value is not None and value < 1:
        raise ValueError(f"{name} is {value}: give at least 1")


@dataclass(frozen=True)
class EngineLimits:
    """How large the requests and steps of an engine can be.

    Args:
        max_model_len: tokens of a prompt and its answer.
        max_num_batched_tokens: tokens of a step.
        has_chunks: whether a prompt may be computed in parts.
    """

    max_model_len: int
    max_num_batched_tokens: int
    has_chunks: bool

    @classmethod
    def of(cls, options: PlainOptions, config: ModelShape, cuts_prompts: bool = True) -> "EngineLimits":
        """The limits of an engine.

        Args:
            cuts_prompts: whether its policy computes prompts in parts.

        Raises:
            ValueError: the model reads fewer tokens than are asked for, or what needs chunks has none.
        """
        model_limit = config.context
        if (options.max_model_len or 0) > model_limit:
            raise ValueError(
                f"max_model_len is {options.max_model_len}, but the model reads {model_limit} tokens"
            )
        longest = options.max_model_len or model_limit
        has_chunks = options.enable_chunked_prefill and cuts_prompts
        if options.long_prefill_token_threshold and not has_chunks:
            raise ValueError(f"long_prefill_token_threshold {NEEDS_CHUNKS}")
        least = max(CHUNKED_BUDGET if has_chunks else longest, options.max_num_seqs)
        return cls(longest, options.max_num_batched_tokens or least, has_chunks)

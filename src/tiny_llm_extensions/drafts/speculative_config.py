"""The options of speculative decoding, with vLLM's names."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tiny_llm_engine.sampling import plain_number

METHODS = ("ngram", "draft_model")
LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")


@dataclass(frozen=True)
class SpeculativeConfig:
    """How drafts are made. `LLM(speculative_config={…})` takes an object with these fields.

    Answers are those without drafts as far as a row of logits is the same in steps of one row and of several. In bf16
    two tokens whose logits differ by a rounding error may change places, as they may in other batches.

    Args:
        method: "ngram" looks them up in the text so far, "draft_model" asks a second model.
        num_speculative_tokens: drafts of one request in one step, at most; requests have fewer where these do not pay.
        prompt_lookup_min, prompt_lookup_max: tokens of the n-grams that are looked up; given one, the other is equal.
        model: of "draft_model": a shipped name, a folder, a GGUF file or a hub id, with the vocabulary of the model.

    Raises:
        ValueError: a value is out of range, is missing, or belongs to the other method.
    """

    method: str = "ngram"
    num_speculative_tokens: int = 8
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    model: str | None = None

    def __post_init__(self):
        if self.method not in METHODS:
            raise ValueError(f"speculative_config: method is {self.method!r}: give {' or '.join(METHODS)}")
        for name in ("num_speculative_tokens", *LOOKUP):
            value = getattr(self, name)
            if value is not None and not (type(value) is int and value >= 1):
                raise ValueError(
                    f"speculative_config: {name} is {value!r}: give a whole number of at least 1"
                )
        shortest, longest = self.lookup
        if shortest > longest:
            raise ValueError(
                f"speculative_config: prompt_lookup_min is {shortest} and prompt_lookup_max {longest}: give at least as"
                " many for the second"
            )
        self._check_method()

    def _check_method(self) -> None:
        if self.method == "draft_model" and not (isinstance(self.model, str) and self.model):
            raise ValueError(f"speculative_config: model is {self.model!r}: the method draft_model needs one")
        others = ("model",) if self.method == "ngram" else LOOKUP
        for name in others:
            if getattr(self, name) is not None:
                raise ValueError(f"speculative_config: {name} does not belong to the method {self.method}")

    @property
    def lookup(self) -> tuple[int, int]:
        """The fewest and the most tokens of an n-gram."""
        both = self.prompt_lookup_min, self.prompt_lookup_max
        shortest, longest = both if any(both) else (2, 4)
        return shortest or longest or 1, longest or shortest or 1

    @classmethod
    def of(cls, given: Any) -> "SpeculativeConfig":
        """The options of an object, such as a JSON text has them; without a method, a model makes it "draft_model".

        Raises:
            ValueError: it is not an object, has other names, or see above.
        """
        if not isinstance(given, Mapping):
            raise ValueError(f"speculative_config is {given!r}: give an object such as {{'method': 'ngram'}}")
        names = [each.name for each in fields(cls)]
        if strange := [name for name in given if name not in names]:
            raise ValueError(f"speculative_config: {strange[0]!r} is unknown: give {', '.join(names)}")
        chosen: dict[str, Any] = {
            name: plain_number(value) for name, value in given.items() if value is not None
        }
        return cls(**{"method": "draft_model" if "model" in chosen else "ngram", **chosen})

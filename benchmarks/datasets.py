"""Workloads of the throughput benchmark: random prompts of realistic lengths, or prompts from a file."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tiny_llm_course.trace.prompts import read_prompts
from tiny_llm_course.trace.text import counted
from tiny_llm_course.trace.workload import LONG, RUNNING, SHORT, RequestSpec, Workload

from .real_text import KINDS, TEXTS

if TYPE_CHECKING:
    from tiny_llm_engine.models.tokenization import Tokenizer

OWN = 32  # tokens of a prompt after the shared prefix
# Of "decode-heavy": requests that decode all the time, tokens of their prompts, and decode steps between two arrivals.
STREAMS, STREAM_PROMPT, EVERY = 8, 16, 40
# Of "sharegpt-like": deviation of the logarithm; most tokens, as a multiple of the mean.
SPREAD, LONGEST = 0.8, 4


@dataclass(frozen=True)
class DatasetSize:
    """The requested size of a data set."""

    num_prompts: int  # requests
    input_len: int  # tokens of a prompt; of "sharegpt-like" the mean
    output_len: int  # tokens of an answer, likewise
    vocab_size: int  # token ids are below it
    prefix_len: int = 0  # of "random": tokens before `input_len`, the same in every prompt
    range_ratio: float = 0.0  # of "random": lengths are uniform within this share of theirs, up and down


def random_prompts(size: DatasetSize, rng: np.random.Generator) -> Iterator[RequestSpec]:
    """Requests whose prompts and answers all have the same length, and share nothing, unless `size` asks for it."""
    prefix = _ids(rng, size.prefix_len, size)
    for _ in range(size.num_prompts):
        tokens, answer = (_near(rng, mean, size.range_ratio) for mean in (size.input_len, size.output_len))
        yield _spec(prefix + _ids(rng, tokens, size), answer)


def sharegpt_like(size: DatasetSize, rng: np.random.Generator) -> Iterator[RequestSpec]:
    """Requests of log-normal lengths: many short prompts and answers, few long ones, as in chats."""
    inputs, outputs = (_lengths(rng, mean, size.num_prompts) for mean in (size.input_len, size.output_len))
    for tokens, answer in zip(inputs, outputs, strict=True):
        yield _spec(_ids(rng, tokens, size), answer)


def shared_prefix(size: DatasetSize, rng: np.random.Generator) -> Iterator[RequestSpec]:
    """Requests whose prompts begin with the same tokens; the last `OWN` of each are its own."""
    if size.input_len <= OWN:
        raise ValueError(f"--input-len {size.input_len}: shared-prefix needs more than the {OWN} own tokens")
    shared = _ids(rng, size.input_len - OWN, size)
    for _ in range(size.num_prompts):
        yield _spec(shared + _ids(rng, OWN, size), size.output_len)


def decode_heavy(size: DatasetSize, rng: np.random.Generator) -> Iterator[RequestSpec]:
    """`STREAMS` requests that decode throughout; a prompt arrives every `EVERY` decode steps."""
    if size.num_prompts <= STREAMS:
        raise ValueError(
            f"--num-prompts {size.num_prompts}: decode-heavy needs more than its {STREAMS} streams"
        )
    arrivals = [EVERY * (number + 1) for number in range(size.num_prompts - STREAMS)]
    for _ in range(STREAMS):
        yield _spec(_ids(rng, STREAM_PROMPT, size), arrivals[-1] + EVERY, RUNNING)
    for arrives in arrivals:
        yield replace(_spec(_ids(rng, size.input_len, size), size.output_len, LONG), arrives=arrives)


DATASETS: dict[str, Callable[[DatasetSize, np.random.Generator], Iterator[RequestSpec]]] = {
    "random": random_prompts,
    "sharegpt-like": sharegpt_like,
    "shared-prefix": shared_prefix,
    "decode-heavy": decode_heavy,
}
BY_STEPS = ("decode-heavy", "documents")  # those with prompts that arrive among the steps of our engine


def dataset(
    name: str, size: DatasetSize, seed: int, batch_size: int, tokenizer: "Tokenizer | None" = None
) -> Workload:
    """Requests that arrive at the start, or among the decode steps of the engine.

    Args:
        name: one of `DATASETS` or `TEXTS`, or a file, see `from_file`.
        seed: determines the random ids and lengths.
        batch_size: how many run at a time.
        tokenizer: encodes texts; random ids need none.

    Raises:
        ValueError: the file cannot be used, or has too few prompts.
    """
    if name in DATASETS:
        specs = tuple(DATASETS[name](size, np.random.default_rng(seed)))
    elif tokenizer is None or not hasattr(tokenizer, "encode"):
        raise ValueError(
            f"--dataset {name}: a text needs a tokenizer: choose --model without random weights, or "
            f"{', '.join(DATASETS)}"
        )
    else:
        specs = tuple(TEXTS[name](size, tokenizer) if name in TEXTS else from_file(name, size, tokenizer))
    tokens, answers = sum(spec.tokens for spec in specs), sum(spec.answer for spec in specs)
    sums = f"{counted(tokens, 'token')} of prompts and {answers:,} of answers"
    description = f"{name}: {counted(len(specs), 'request')}, {sums}"
    return Workload(name, description, specs, batch_size, ends=name in KINDS)


def from_file(name: str, size: DatasetSize, tokenizer: "Tokenizer") -> Iterator[RequestSpec]:
    """The first `num_prompts` prompts of a file: `.json` in ShareGPT's format, else one prompt per line.

    Of ShareGPT the prompt is the first turn, and the answer is as long as the reply was. Other answers have
    `output_len` tokens.
    """
    turns = _conversations(Path(name)) if name.endswith(".json") else [(t, None) for t in read_prompts(name)]
    if len(turns) < size.num_prompts:
        raise ValueError(
            f"{name}: {len(turns)} prompts, and --num-prompts is {size.num_prompts}: ask for fewer"
        )
    for prompt, reply in turns[: size.num_prompts]:
        answer = size.output_len if reply is None else max(1, len(tokenizer.encode(reply)))
        yield _spec(tokenizer.encode(prompt), answer)


def _conversations(file: Path) -> list[tuple[str, str]]:
    """The first two turns of every conversation that has two."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        turns = [each["conversations"] for each in found if len(each["conversations"]) >= 2]
        return [(first["value"], second["value"]) for first, second, *_ in turns]
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f'{file}: not in ShareGPT\'s format, [{{"conversations": [{{"value": …}}]}}]'
        ) from None


def _ids(rng: np.random.Generator, count: int, size: DatasetSize) -> list[int]:
    return rng.integers(0, size.vocab_size, count).tolist()


def _near(rng: np.random.Generator, mean: int, ratio: float) -> int:
    """A length within this share of the mean, at least 1; the mean itself for 0, without a draw."""
    if ratio == 0:
        return mean
    return max(
        1, int(rng.integers(math.floor(mean * (1 - ratio)), math.ceil(mean * (1 + ratio)), endpoint=True))
    )


def _lengths(rng: np.random.Generator, mean: int, count: int) -> list[int]:
    """Log-normal numbers with about this mean, from 1 to `LONGEST` times the mean."""
    drawn = rng.lognormal(np.log(mean) - SPREAD**2 / 2, SPREAD, count)
    return np.clip(np.rint(drawn), 1, LONGEST * mean).astype(int).tolist()


def _spec(ids: list[int], answer: int, kind: str = SHORT) -> RequestSpec:
    return RequestSpec(kind, len(ids), answer, prompt=tuple(ids))

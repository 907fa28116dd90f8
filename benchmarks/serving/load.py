"""A load: texts with the times at which they are sent, and the figures of its results."""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from tiny_llm_course.trace.trace import percentile
from tiny_llm_lab.arrivals import arrival_times

from ..datasets import DATASETS, DatasetSize, dataset
from .client import Client, ServedRequest

TARGETS = ("ttft", "tbt", "tpot", "e2el")  # what goodput can demand of a request, in milliseconds
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Load:
    """Prompts, their answers' lengths, and the times at which they are sent."""

    says: str  # for people
    prompts: tuple[str, ...]  # texts
    answers: tuple[int, ...]  # tokens of each answer
    times: tuple[float, ...]  # when each is sent, in seconds from the start


class Texts:
    """Maker of prompts as texts: servers differ in whether they take token ids.

    Random prompts are made of words that are one token each, so that a server with this tokenizer reads as many tokens
    as were asked for.

    Raises:
        ValueError: it has no such words.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.words = [text for number in range(tokenizer.vocab_size) if (text := self._word(number))]
        if len(self.words) < 2:
            raise ValueError("the tokenizer has no words of one token: choose another --tokenizer")

    def _word(self, number: int) -> str | None:
        """The text of a token that is a word after a blank, and that the tokenizer gives back."""
        text = self.tokenizer.decode([number])
        is_word = text.startswith(" ") and text[1:].isascii() and text[1:].isalpha()
        return text if is_word and self.tokenizer.encode(text) == [number] else None

    def load(
        self, name: str, size: tuple[int, int, int], rate: float, burstiness: float, seed: int, **shape: Any
    ) -> Load:
        """Make the prompts of a data set or a file, with their times.

        Args:
            size: number of prompts, tokens of a prompt, tokens of an answer.
            shape: further fields of `DatasetSize`.
            rate, burstiness: see `arrival_times`.
            seed: determines prompts and times.
        """
        is_random = name in DATASETS
        sizes = DatasetSize(*size, len(self.words), **shape)
        work = dataset(name, sizes, seed, 1, None if is_random else self.tokenizer)
        specs = work.requests
        prompts = [
            "".join(self.words[place] for place in spec.prompt)
            if is_random
            else self.tokenizer.decode(spec.prompt)
            for spec in specs
        ]
        times = arrival_times(len(specs), rate, burstiness, rng=np.random.default_rng(seed))
        return Load(work.says, tuple(prompts), tuple(spec.answer for spec in specs), tuple(times))


async def send(client: Client, load: Load, max_concurrency: int | None = None) -> list[ServedRequest]:
    """Send every request at its time, or as soon as fewer than `max_concurrency` are open."""
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()
    async with client.connect() as connection:
        start = perf_counter()

        async def one(prompt: str, answer: int, time: float) -> ServedRequest:
            await asyncio.sleep(start + time - perf_counter())
            async with gate:
                return await client.ask(connection, prompt, answer, start + time)

        jobs = zip(load.prompts, load.answers, load.times, strict=True)
        return list(await asyncio.gather(*(one(*job) for job in jobs)))


def figures(
    seen: Sequence[ServedRequest],
    goodput: Mapping[str, float],
    percentiles: Sequence[float],
) -> dict[str, Any]:
    """Latencies in milliseconds and rates per second, as vLLM's `bench serve` names them.

    Args:
        seen: one result per request.
        goodput: the largest milliseconds of each of `TARGETS` that is demanded.
        percentiles: which percentiles of each latency are wanted.
    """
    done = [request for request in seen if request.error is None]
    start, end = (
        min(request.arrival_time for request in seen),
        max((request.finished_time or 0.0 for request in done), default=0.0),
    )
    seconds = max(end - start, 1e-9)
    found: dict[str, Any] = {
        "completed": len(done),
        "failed": len(seen) - len(done),
        "errors": dict(Counter(request.error for request in seen if request.error)),
        "duration": seconds,
        "total_input_tokens": sum(request.prompt_tokens for request in done),
        "total_output_tokens": sum(request.output_tokens for request in done),
        "request_throughput": len(done) / seconds,
        "output_throughput": sum(request.output_tokens for request in done) / seconds,
        "send_delay_p99_ms": 1000 * percentile([request.arrival_time - request.due for request in seen], 99),
    }
    samples = {name: [request.figure(name) for request in done] for name in ("ttft", "tpot", "e2el")}
    samples["tbt"] = [gap for request in done for gap in request.gaps]
    for name, values in samples.items():
        found |= {f"{name}_p{p:g}_ms": 1000 * percentile(values, p) if values else None for p in percentiles}
        for statistic, of in (("mean", np.mean), ("std", np.std)):
            found[f"{name}_{statistic}_ms"] = 1000 * float(of(values)) if values else None
    found["longest_gap_ms"] = 1000 * max(samples["tbt"]) if samples["tbt"] else None
    if goodput:
        good = sum(meets(request, goodput) for request in done)
        found |= {"attainment": good / len(seen), "request_goodput": good / seconds}
    return found


def meets(request: ServedRequest, goodput: Mapping[str, float]) -> bool:
    """Whether a completed request was as fast as demanded. Of "tbt" it is every gap that counts."""
    return all(1000 * request.figure(name) <= most for name, most in goodput.items())


def goodput_of(pairs: Sequence[str]) -> dict[str, float]:
    """Targets from "NAME:MILLISECONDS".

    Raises:
        ValueError: a name is not one of `TARGETS`, or a number is missing or not above 0.
    """
    found = {}
    for pair in pairs:
        name, _, most = pair.partition(":")
        try:
            found[name] = float(most)
        except ValueError:
            found[name] = math.nan
        if name not in TARGETS or not found[name] > 0:
            raise ValueError(f"--goodput {pair}: give NAME:MILLISECONDS, with {', '.join(TARGETS)} as NAME")
    return found

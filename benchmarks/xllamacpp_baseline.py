"""llama.cpp's server in a process, as the wheel `xllamacpp` has it, on a GGUF file. CPU only.

As a program, `python -m benchmarks.xllamacpp_baseline`, it listens for requests of OpenAI's API.
"""

import argparse
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import xllamacpp

from tiny_llm_course.trace.workload import RequestSpec, Workload

from .baselines import units
from .own_process import OwnProcess

# N-grams are looked up in the text so far, as ours are. llama.cpp's own lengths, 12 and 48, hardly ever find any.
DRAFTS, NGRAM, MOST = "COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE", 4, 8


def readers(name: str, file: Path, _: Any, *limits: int) -> dict[str, OwnProcess]:
    """The server without or with drafts, in a process of its own; `limits` as `Server` has them."""
    drafts = name == "xllamacpp-drafts"
    built = units(xllamacpp.get_system_info())
    notes = f"llama.cpp's server, built with {built}" + (", drafts of n-grams" if drafts else "")
    return {name: OwnProcess(Server, str(file), *limits, drafts, notes=notes)}


class Server:
    """llama.cpp's server: continuous batching of greedy requests.

    Args:
        file: the weights.
        rows: requests that run at a time.
        room: tokens of the longest request.
        threads: how many threads compute each call.
        has_drafts: whether n-grams of the text so far make drafts.
        others: further fields of `xllamacpp.CommonParams`.
    """

    def __init__(
        self, file: str, rows: int, room: int, threads: int, has_drafts: bool = False, **others: int
    ):
        options = xllamacpp.CommonParams()
        options.model.path, options.verbosity = file, -1
        options.n_parallel, options.n_ctx = rows, rows * room
        for name, value in others.items():
            setattr(options, name, value)
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
        if has_drafts:
            options.speculative.types = [getattr(xllamacpp.common_speculative_type, DRAFTS)]
            options.speculative.ngram_simple.size_n, options.speculative.ngram_simple.size_m = NGRAM, MOST
        self._server, self._has_drafts = xllamacpp.Server(options), has_drafts

    def generate(self, workload: Workload) -> dict[str, Any]:
        """Answer all requests; returns the tokens of the answers, and the drafts."""
        with ThreadPoolExecutor(len(workload.requests)) as pool:
            found = list(pool.map(lambda spec: self._answer(spec, workload.ends), workload.requests))
        timings = [each["timings"] for each in found]
        drafts = (
            {"draft_tokens": "draft_n", "accepted_tokens": "draft_n_accepted"} if self._has_drafts else {}
        )
        return {
            "output_tokens": sum(each["usage"]["completion_tokens"] for each in found),
            **{ours: sum(each.get(theirs, 0) for each in timings) for ours, theirs in drafts.items()},
        }

    def _answer(self, spec: RequestSpec, ends: bool) -> dict[str, Any]:
        return self._ask(list(spec.prompt), spec.answer, ignore_eos=not ends)

    def log_probabilities(self, prompt: Sequence[int]) -> np.ndarray:
        """The log-probabilities (V,) of the token after a prompt; prefixes of the last one are cached."""
        found = self._ask(list(prompt), 1, cache_prompt=True, logprobs=2**20)
        listed = found["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        values = np.full(1 + max(each["id"] for each in listed), -math.inf)
        values[[each["id"] for each in listed]] = [each["logprob"] for each in listed]
        return values

    def _ask(self, prompt: list[int], tokens: int, **options: Any) -> dict[str, Any]:
        asked = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "cache_prompt": False, **options}
        found = self._server.handle_completions(asked)
        if "choices" not in found:
            raise ValueError(f"llama.cpp: {found}")
        return found


def main() -> None:
    """Serve a file until a signal."""
    words = argparse.ArgumentParser()
    words.add_argument("file")
    words.add_argument("--host", choices=["127.0.0.1"])  # the only one that it takes
    for name in ("rows", "room", "threads", "n_batch", "n_ubatch", "port"):
        words.add_argument(f"--{name}", type=int, required=True)
    given = vars(words.parse_args())
    del given["host"]
    _server = Server(**given)  # it listens as long as this name keeps it
    threading.Event().wait()


if __name__ == "__main__":
    main()

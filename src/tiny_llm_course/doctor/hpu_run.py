"""What a Gaudi does with the reference's engine: one line of JSON per part, so that a crash leaves the parts before it.

Run in a process of its own by `hpu_checklist`, which judges the numbers.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from tiny_llm_engine.models.files import Json

from .setup_torch import torch_version

if TYPE_CHECKING:  # what is loaded before the port is reported
    from tiny_llm_engine.llm_engine import LLMEngine
    from tiny_llm_engine.packed_runner import PackedRunner
    from tiny_llm_engine.solutions.port import Port
    from tiny_llm_extensions.graphs.step_shapes import StepShapes

MODEL = "tiny-qwen3"
# Prompts of one chunk and of two. Of each token of the answers the log-probability is 3.4 or more above that of the
# second best, and bf16 moves such a difference by 0.2 at most (on a CPU). So the tokens must be equal.
QUESTIONS = (
    "Hello",
    "What is chunked prefill? " * 20,
    "What is a Gaudi? " * 24,
    f"Count: {', '.join(map(str, range(60)))}. What is a token?",
)
ANSWER = 12  # tokens
SIZES = {
    "block_size": 128,
    "num_blocks": 8,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 128,
    "max_model_len": 256,
    "enable_prefix_caching": False,
}
METRICS = ("graph_compilation", "cpu_fallback")


def parts() -> Iterator[tuple[str, Callable[[], Json]]]:
    """(name, function) of each part, in order; a later one uses what an earlier one has made."""
    early = {name: name in sys.modules for name in ("torch", "habana_frameworks")}
    from tiny_llm_engine.solutions.port import Port

    port = Port("ref", "torch")
    from tiny_llm_engine.arrays.torch import hpu
    from tiny_llm_extensions.gaudi import hpu_self_check

    yield "imports", lambda: {"loaded before": early, **detection(port)}
    if not hpu.available():
        return
    yield "fused", lambda: {"errors": hpu_self_check.self_check()}
    engine = WatchedEngine(port)
    yield "engine", lambda: engine.made
    yield "serving", lambda: engine.answers()
    yield "cpu", lambda: {"answers": cpu_answers()}


def detection(port: "Port") -> Json:
    """The port's device, torch's version and build, and the variables of the plug-in as they are now."""
    from tiny_llm_engine.arrays.torch import hpu

    found = vars(hpu.detect())
    environment = {name: value for name, value in os.environ.items() if name.startswith("PT_HPU_")}
    return {"detection": found, "device": port.device, "torch": torch_version(), "environment": environment}


def counts() -> Json:
    """The plug-in's counts since its start: of each metric the number, and the names of operators that fell back."""
    metrics = import_module("habana_frameworks.torch.hpu.metrics")
    found = {}
    for name in METRICS:
        metric = metrics.metric_global(name)
        statistics = {} if metric is None else dict(metric.stats())
        found[name] = statistics.get("TotalNumber")
        if statistics.get("FallbackOps"):
            found["operators"] = statistics["FallbackOps"]
    return found


class WatchedEngine:
    """The engine on the device, with counts and memory before and after its warm-up.

    Attributes:
        made: seconds, shapes, and for each of three moments the counts and the free memory.
    """

    def __init__(self, port: "Port"):
        from tiny_llm_extensions.engine_options import EngineOptions
        from tiny_llm_extensions.loading import load_network
        from tiny_llm_extensions.open_engine import open_engine

        self.port = port
        self.moments = {"before the weights": self.now()}

        network, tokenizer = load_network(port, MODEL, "week3")
        options = EngineOptions(**SIZES)
        self.engine = open_engine(port, network, tokenizer, options, warm_up=self._warm_up)

    def _warm_up(self, shapes: "StepShapes", runner: "PackedRunner") -> None:
        self.moments["before the warm-up"] = self.now()
        shapes.warm_up(runner)
        self.moments["after the warm-up"] = self.now()

    @property
    def made(self) -> Json:
        engine = self.engine
        return {
            "options": SIZES,
            "is compiled": engine.extensions["shapes"].is_compiled,
            "shapes": engine.extensions["shapes"].num_shapes,
            "largest bias": largest_bias(*engine.extensions["shapes"].largest_bias),
            "seconds": engine.setup_seconds,
            "moments": self.moments,
        }

    def now(self) -> Json:
        """Counts, and the bytes of the device's memory, free and in all."""
        backend, device = self.port.backend_module, self.port.device
        backend.synchronize(device)
        free, total = backend.device_memory(device) or (0, 0)
        return {**counts(), "free": free, "total": total}

    def answers(self) -> Json:
        """The tokens of all answers, and counts and memory afterwards."""
        start = time.perf_counter()
        answers = served(self.engine)
        return {"answers": answers, "seconds": time.perf_counter() - start, "after": self.now()}


def largest_bias(queries: int, keys: int) -> Json:
    """The largest bias of a step in bf16: its axes, its bytes, and in how many calls it is computed."""
    from tiny_llm_engine.arrays.torch import fused

    rows = fused.rows_per_call(queries, 2 * keys)
    return {"queries": queries, "keys": keys, "bytes": 2 * queries * keys, "calls": -(-queries // rows)}


def served(engine: "LLMEngine") -> list[list[int]]:
    """The tokens of each question's greedy answer.

    Raises:
        RuntimeError: a question was not answered.
    """
    params = engine.names.SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
    render = engine.tokenizer.apply_chat_template
    prompts = [render([{"role": "user", "content": text}], True) for text in QUESTIONS]
    requests = [engine.request(text, engine.tokenizer.encode(text), params) for text in prompts]
    engine.run(requests)
    found = [request.output().outputs[0] for request in requests]
    if failed := [answer.error for answer in found if answer.error]:
        raise RuntimeError(failed[0])
    return [list(answer.token_ids) for answer in found]


def cpu_answers() -> list[list[int]]:
    """The same on this machine's CPU, in float32 and without buckets."""
    from tiny_llm_engine.solutions.port import Port
    from tiny_llm_extensions.engine_options import EngineOptions
    from tiny_llm_extensions.loading import load_network
    from tiny_llm_extensions.open_engine import open_engine

    port = Port("ref", "torch", "cpu", "float32")
    network, tokenizer = load_network(port, MODEL, "week3")
    options = EngineOptions(**SIZES, cpu_products="usual")
    return served(open_engine(port, network, tokenizer, options))


def main() -> None:
    for name, run in parts():
        print(json.dumps({"part": name, **run()}), flush=True)


if __name__ == "__main__":
    main()

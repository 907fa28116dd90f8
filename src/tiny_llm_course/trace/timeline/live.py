"""The server's page: chat, and the steps of the scheduler as they happen.

Here events become messages for the page. `live_run.js` takes them in; they are drawn by
`live.html.j2`, `live.css` and `live.js`, and `live_talk.js` keeps the conversation.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from tiny_llm_engine.models.files import Json
from tiny_llm_engine.solutions.solution_types import Event, Part

from ..template import render

if TYPE_CHECKING:
    from tiny_llm_engine.llm_engine import LLMEngine

QUESTIONS = ("What is a KV cache?", "What is attention?", "What is RoPE?", "What is a token?")
BUDGETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # stops of the slider, in tokens per step
PROMISE = 128  # tokens of prompts for which running requests agree to wait, as in `pdm run timeline`
OF_A_REQUEST = ("arrive", "finish", "preempt", "resume")


class LiveTimeline:
    """A page for `create_app`: its text, and the messages that it draws."""

    def __init__(self, model_name: str):
        self.model_name = model_name
        file = Path(__file__).with_name("live.html.j2")
        self.html = render(file, model=model_name, questions=QUESTIONS, promise=PROMISE)

    def hello(self, engine: "LLMEngine") -> Json:
        """The first message to each reader: the options of the engine."""
        least, most = engine.options.max_num_seqs, engine.max_num_batched_tokens
        return {
            "kind": "hello",
            "model": self.model_name,
            "num_blocks": engine.runner.most_blocks,
            "block_size": engine.allocator.block_size,
            "max_model_len": engine.max_model_len,
            "vocab_size": engine.network.config.vocab_size,
            "chunked": engine.options.enable_chunked_prefill,
            "budget": engine.loop.scheduler.max_num_batched_tokens,
            "budgets": sorted({most, *(size for size in BUDGETS if least <= size <= most)}),
        }

    def message(self, event: Event, engine: "LLMEngine") -> Json | None:
        """An event of the engine as a message; None for one that the page does not draw."""
        if event.kind == "step":
            return _step(event, engine)
        if event.kind not in OF_A_REQUEST:
            return None
        request = event.request
        numbers = {"request": request.request_id, "prompt": request.num_prompt_tokens}
        state = {"cached": request.num_cached, "reason": request.finish_reason}
        return {"kind": event.kind, "time": event.time, **numbers, **state, **_counts(engine)}


def _step(event: Event, engine: "LLMEngine") -> Json:
    """What a step computed, and the owner of each block after it."""
    return {
        "kind": "step",
        "start": event.start,
        "time": event.time,
        "parts": [_part(part) for part in event.parts],
        "budget": engine.loop.scheduler.max_num_batched_tokens,
        "tables": {request.request_id: list(request.block_table.blocks) for request in engine.loop.running},
        **_counts(engine),
    }


def _counts(engine: "LLMEngine") -> Json:
    """What is right after every event: no step follows when the last requests are aborted."""
    cached = list(engine.allocator.prefix_cache.idle)
    return {"waiting": engine.num_waiting, "free": engine.allocator.num_free, "cached_blocks": cached}


def _part(part: Part) -> Json:
    """A part with the numbers of its requests; `sampled` are those that have a new token now."""
    return {
        "kind": part.kind,
        "requests": [request.request_id for request in part.requests],
        "sampled": [r.request_id for r in part.requests if r.is_decoding or r.is_done],
        "tokens": part.tokens,
        "context": part.context,
    }

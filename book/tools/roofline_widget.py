"""The roofline widget in Python: its models and devices, and a static picture.

Nothing is typed that the project knows: the smallest shapes are read, a measured device is a sealed result.
"""

import json
from dataclasses import replace
from functools import cache
from typing import Any

from benchmarks.latency_report import roof
from tiny_llm_course.see.week_1_day_5 import parameters
from tiny_llm_course.trace.provenance import RESULTS
from tiny_llm_engine.models.weights.random_weights import QWEN3_06B, shape

from .widget import scripts

WIDTH = 620
# Bits of a weight of the layers with its share of scale and bias, as on Day 2.2; the head stays in bf16.
BITS = {"bf16": 16, "8 bits": 8 + 32 / 64, "4 bits": 4 + 32 / 32}
# As their config.json on the hub says.
MODELS = {
    "Qwen3-0.6B": QWEN3_06B,
    "Qwen3-4B": replace(
        QWEN3_06B, hidden_size=2560, num_hidden_layers=36, num_attention_heads=32, intermediate_size=9728
    ),
    "Qwen3-8B": replace(
        QWEN3_06B,
        hidden_size=4096,
        num_hidden_layers=36,
        num_attention_heads=32,
        intermediate_size=12288,
        tie_word_embeddings=False,
    ),
}
# Qwen3-30B-A3B, as its config.json on the hub says: 48 layers, E 2048, 128 experts of 768, 8 of them for a token.
MIXTURE = {
    "layers": 48 * 2048 * (2 * (32 + 4) * 128 + 128),
    "head": 151936 * 2048,
    "experts": 48 * 128 * 3 * 768 * 2048,
    "count": 128,
    "used": 8,
}
NOT_RUN = "Published peak figures: nothing of this course has run on one."
START = {"model": "Qwen3-0.6B", "bits": "bf16", "device": "on paper", "tokens": 1}


def _models() -> dict[str, dict[str, int]]:
    """Weights by part: the layers' matrices, the head that every token reads, and experts."""
    sizes = {}
    for name, config in {"tiny-qwen3": shape("tiny-qwen3"), **MODELS}.items():
        parts = parameters(config)
        head = config.vocab_size * config.hidden_size
        sizes[name] = {"layers": parts["attention"] + parts["MLP"], "head": head, "experts": 0}
    return sizes | {"Qwen3-30B-A3B": MIXTURE}


def _devices() -> dict[str, dict[str, Any]]:
    """Bytes and operations per second, and the source of both."""
    measured = json.loads((RESULTS / "roofline-torch.json").read_text(encoding="utf-8"))
    where, date = measured["provenance"]["machine"], measured["provenance"]["date"][:10]
    says = f"Measured in bf16 by the torch port on {date}: {where['cores']} cores, {where['processor']}."
    return {
        "on paper": _device(100e9, 1e12, "The machine on paper of Day 2.1, an assumption."),
        "of Day 4.1": _device(39e9, 2 * 2 * 32 * 3e9, "The two cores of Day 4.1's Predict, an assumption."),
        "measured": _device(*roof(measured), says),
        "Gaudi 2": _device(2.46e12, 432e12, NOT_RUN),
        "Gaudi 3": _device(3.67e12, 1835e12, NOT_RUN),
    }


def _device(bytes_per_second: float, operations: float, says: str) -> dict[str, Any]:
    return {"bytes": bytes_per_second, "operations": operations, "says": says}


@cache
def table() -> str:
    """All choices as JSON."""
    choices = {"models": _models(), "bits": BITS, "devices": _devices(), "start": START}
    return json.dumps(choices, separators=(",", ":"))


def data() -> str:
    """The element of the page that holds the table."""
    return f'<script type="application/json">{table()}</script>'


def picture() -> str:
    """The SVG of the first choices, for readers without JavaScript."""
    with scripts() as run:
        return run(f"roofline.draw({table()}, {json.dumps(START)}, {WIDTH})")

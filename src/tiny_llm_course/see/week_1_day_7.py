"""The screen of Day 1.7: one prompt at three temperatures, and which tokens a sampler lets through.

The ports have different random generators, so no single draw is shown: only probabilities, and the set of tokens
that came in many draws.
"""

import numpy as np
from rich.console import Console
from rich.text import Text

from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port

from ..trace.prompts import rendered
from .shared import MODEL, shipped

# Beginnings of questions; the screen takes the one of which the model is least sure how to answer.
VAGUE = ("What is a", "Tell me", "Which", "Why?", "How?")
CLEAR = "What is sampling?"
TEMPERATURES = (0.5, 1.0, 2.0)
NUCLEUS = 0.9
DRAWS = 1000
DRINKS = {"juice": 0.1, "tea": 0.4, "water": 0.2, "coffee": 0.3}
# (temp, top_p, top_k)
SETTINGS = (
    (0, None, None),
    (1, None, None),
    (1, None, 2),
    (1, 0.5, None),
    (1, 0.5, 2),
    (0.5, 0.5, None),
    (2, 0.5, None),
)


def show(b: Port, console: Console) -> None:
    """Bars of the learner's softmax, the size of the nucleus, and draws of the learner's sampler."""
    tokenizer = load_tokenizer(MODEL)
    model = b.Qwen3ModelWeek1(shipped(b))
    prompts = {question: rendered(tokenizer, question) for question in (*VAGUE, CLEAR)}
    inputs = {question: b.array([tokenizer.encode(prompts[question])]) for question in VAGUE}
    logits = {question: b.numpy(model(ids))[0, -1] for question, ids in inputs.items()}
    question = min(VAGUE, key=lambda question: _weights(b, logits[question], 1.0).max())
    _three_temperatures(b, console, tokenizer, question, logits[question])
    _what_comes(b, console)
    _steps_with_a_choice(b, console, model, tokenizer, prompts[CLEAR])


def _weights(b: Port, logits: np.ndarray, temp: float) -> np.ndarray:
    """(V,) probabilities by the learner's softmax."""
    return b.numpy(b.softmax(b.array(logits[None] / temp), -1))[0]


def _nucleus(b: Port, logits: np.ndarray) -> int:
    """The number of tokens that the learner's top-p keeps."""
    return int(np.isfinite(b.numpy(b.sampler.keep_top_p(b.array(logits[None]), NUCLEUS))).sum())


def _three_temperatures(b: Port, console: Console, tokenizer, question: str, logits: np.ndarray) -> None:
    weights = [_weights(b, logits, temp) for temp in TEMPERATURES]
    best = np.argsort(-logits, kind="stable")[:6]
    asked = (f"“{question}”", "bold")
    console.print(Text.assemble("The first token of an answer to ", asked, ", which is unclear:\n"))
    console.print(Text(" " * 12 + "".join(f"temperature {temp:<10}" for temp in TEMPERATURES), style="dim"))
    for token in best:
        console.print(_row(tokenizer.decode([int(token)]), [float(w[token]) for w in weights]))
    console.print(_row("all others", [1 - float(w[best].sum()) for w in weights]))
    sizes = "".join(f"{_nucleus(b, logits / temp):4} tokens{'':11}" for temp in TEMPERATURES)
    console.print(f"top-p {NUCLEUS}   {sizes}", highlight=False)


def _row(name: str, shares: list[float]) -> Text:
    line = Text(f"{name[:11]:12}")
    for share in shares:
        line.append(f"{share:4.0%} ").append(f"{'█' * round(16 * share):17}", style="cyan")
    return line


def _what_comes(b: Port, console: Console) -> None:
    named = ", ".join(f"{name} {100 * share:.0f}%" for name, share in DRINKS.items())
    console.print(f"\nWhat came in {DRAWS} draws from {named}:", highlight=False)
    logits = b.array(np.tile(np.log(list(DRINKS.values())), (DRAWS, 1)))
    for temp, top_p, top_k in SETTINGS:
        b.seed(0)
        ids = b.numpy(b.make_sampler(temp, top_p, top_k)(logits))
        given = (f"temp {temp}", f"top_k {top_k}" * bool(top_k), f"top_p {top_p}" * bool(top_p))
        names = (list(DRINKS)[token] for token in np.unique(ids))
        console.print(f"  {' '.join(filter(None, given)):26}{' '.join(names)}", highlight=False)


def _steps_with_a_choice(b: Port, console: Console, model, tokenizer, prompt: str) -> None:
    """Count the steps of a well-known answer at which more than one token can be drawn."""
    rows: list[np.ndarray] = []

    def watched(inputs):
        logits = model(inputs)
        rows.append(b.numpy(logits)[0, -1])
        return logits

    b.simple_generate(watched, tokenizer, prompt)
    counts = [sum(_nucleus(b, row / temp) > 1 for row in rows) for temp in TEMPERATURES]
    console.print(f"\n“{CLEAR}”: of {len(rows)} steps, top-p {NUCLEUS} leaves a choice at", highlight=False)
    listed = (f"{count} at temperature {temp}" for temp, count in zip(TEMPERATURES, counts, strict=True))
    console.print(f"  {', '.join(listed)}", highlight=False)

"""The screen of Day 1.6: the shipped model answers, and every call of the model is one line.

The model is wrapped, so that the length of each input is seen; what the lines show is the learner's own loop.
"""

from rich.console import Console
from rich.text import Text

from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port

from ..trace.prompts import rendered
from .shared import MODEL, shipped

QUESTION = "What is temperature?"


def show(b: Port, console: Console) -> None:
    """Ask one question and draw what each token of the answer cost."""
    tokenizer = load_tokenizer(MODEL)
    model = b.Qwen3ModelWeek1(shipped(b))
    lengths: list[int] = []
    pieces: list[str] = []

    def watched(inputs):
        lengths.append(inputs.shape[-1])
        return model(inputs)

    prompt = rendered(tokenizer, QUESTION)
    answer = b.simple_generate(watched, tokenizer, prompt, on_text=pieces.append)
    asked = ("question  ", "dim"), QUESTION
    console.print(Text.assemble(*asked, ("\nanswer    ", "dim"), (answer, "bold"), "\n"))
    console.print(Text("call  tokens sent: the prompt ░, the answer so far █", style="dim"))
    for call, length in enumerate(lengths):
        console.print(_line(call, length, lengths[0], pieces))
    console.print(_bill(lengths))


def _line(call: int, length: int, prompt: int, pieces: list[str]) -> Text:
    bar = ("░" * prompt, "blue"), ("█" * (length - prompt), "yellow")
    result = f"{pieces[call]!r}" if call < len(pieces) else "the end token: stop"
    return Text.assemble(f"{call + 1:4}  {length:3} ", *bar, ("  → ", "dim"), (result, "bold"))


def _bill(lengths: list[int]) -> Text:
    """The total cost of the calls, and the cost with a cache."""
    shapes = len(set(lengths))
    return Text(
        f"\n{len(lengths)} calls computed {lengths[0]} + {lengths[1]} + … + {lengths[-1]} = {sum(lengths)} tokens;"
        f" a cache computes each once: {lengths[-1]}.\n"
        f"They had {shapes} different shapes: a graph compiler would compile {shapes} times."
    )

"""`pdm run main`: a solution answers a question, or holds a conversation, on one port."""

import argparse
import os
import sys

from ..arguments import DEVICES, model_argument, whole_number
from ..chat import chat
from ..checkpoint import load_checkpoint
from ..course.address import Day
from ..engine import Engine
from ..model_files import CheckpointError
from ..port import Port
from ..repo import PORTS, installed_backends, learner_port, ports_of
from ..solution import SOLUTIONS
from ..terminal import fail, replace_unknown_characters
from ..tokenizer import load_tokenizer
from .blank import ends_at_a_blank

PROMPT = "What is chunked prefill?"
# The solution's model and generator of each week, the newest last.
LOADERS = {"week1": ("Qwen3ModelWeek1", "simple_generate")}
INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended


def choose_backend(solution: str, wanted: str) -> str:
    """`auto` is the learner's port; the reference takes any other that is installed, where that one is not."""
    if wanted != "auto":
        return wanted
    port, installed = ports_of(learner_port())[0], installed_backends()
    must_be_theirs = SOLUTIONS[solution] == "tiny_llm" or port in installed or not installed
    return port if must_be_theirs else installed[0]


def load_engine(options: argparse.Namespace) -> Engine:
    """Everything that can be wrong with the options or with the model's files ends here, in one line."""
    try:
        backend = choose_backend(options.solution, options.backend)
        port = Port(SOLUTIONS[options.solution], backend, options.device, options.dtype)
    except ValueError as error:  # no such device here
        fail(error)
    port.seed(options.seed)
    model, generate = LOADERS[list(LOADERS)[-1] if options.loader == "auto" else options.loader]
    try:
        tokenizer = load_tokenizer(options.model)
        weights = load_checkpoint(options.model, backend, port.device, port.float_dtype)
        network = getattr(port, model)(weights)
    except CheckpointError as error:
        fail(error)
    return Engine(
        port=port,
        generate=getattr(port, generate),
        model=network,
        tokenizer=tokenizer,
        sampler=_sampler(port, options),
        context=weights.config.max_position_embeddings,
        max_tokens=options.max_tokens,
    )


def _sampler(port: Port, options: argparse.Namespace):
    if options.temperature == 0:
        return None  # greedy, for which nobody needs Day 7
    try:
        return port.make_sampler(options.temperature, options.top_p, options.top_k)
    except ValueError as error:
        fail(error)


def answer(engine: Engine, question: str) -> None:
    """One question, one answer."""
    messages = [{"role": "user", "content": question}]
    has_template = engine.tokenizer.has_chat_template
    prompt = engine.tokenizer.apply_chat_template(messages) if has_template else question
    count = engine.count(prompt)
    if count == 0:
        fail("the prompt is empty: give the model at least one token to continue")
    if count >= engine.context:
        fail(
            f"the prompt has {count} tokens, but the model reads {engine.context} with its answer: shorten it"
        )
    engine.answer(prompt)


def _text(argument: str) -> str:
    # Bytes that are no UTF-8 arrive from the shell as halves of characters, which no tokenizer takes.
    return os.fsencode(argument).decode(errors="replace")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="pdm run main", description=__doc__)
    add = top.add_argument
    add("--solution", default="tiny_llm", choices=sorted(SOLUTIONS), help="whose code: tiny_llm is yours")
    add("--backend", default="auto", choices=["auto", *PORTS], help="auto: the port you work on")
    add("--device", default="auto", choices=DEVICES)
    add("--loader", default="auto", choices=["auto", *LOADERS], help="which week's engine; auto: the newest")
    add("--model", type=model_argument, default="tiny-qwen3", help="a shipped name, a folder or a hub id")
    add("--prompt", type=_text, help=f"what to ask; default: {PROMPT}")
    add("--chat", action="store_true", help="a conversation; --prompt begins it")
    add("--max-tokens", type=whole_number(1), default=256, metavar="N", help="tokens of an answer, at most")
    add("--temperature", type=float, default=0.0, help="0 is greedy")
    add("--top-p", type=float, help="with a temperature: draw from the nucleus of this probability")
    add("--top-k", type=int, help="with a temperature: draw from so many tokens")
    add("--seed", type=whole_number(0), default=0, help="of the random draws")
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    return top


def run(options: argparse.Namespace) -> None:
    engine = load_engine(options)
    if options.chat:
        chat(engine, options.prompt)
    else:
        answer(engine, PROMPT if options.prompt is None else options.prompt)


def last_day(options: argparse.Namespace) -> Day:
    """Greedy decoding needs the days up to 1.6, anything else the sampler of 1.7."""
    return Day(1, 6) if options.temperature == 0 else Day(1, 7)


def main(argv: list[str] | None = None) -> None:
    options = parser().parse_args(argv)
    replace_unknown_characters()
    try:
        with ends_at_a_blank(needs=last_day(options)):
            run(options)
    except CheckpointError as error:  # a chat template that fails on the messages
        fail(error)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader has gone; what Python writes at its end must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()

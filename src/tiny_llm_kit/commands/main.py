"""`pdm run main`: a solution answers a question, or holds a conversation, on one port."""

import argparse

from ..course.address import Day
from ..course.blank import ends_at_a_blank
from ..model.files import CheckpointError
from ..runtime.arguments import add_model_arguments, add_sampling_arguments, text_argument
from ..runtime.chat import chat
from ..runtime.engine import Engine
from ..runtime.loading import LOADERS, PACKED_WEIGHTS, choose_backend, choose_loader, load_network
from ..runtime.port import Port
from ..runtime.solution import SOLUTIONS
from ..terminal import ends_quietly, fail, replace_unknown_characters

PROMPT = "What is chunked prefill?"
SAMPLER = Day(1, 7)  # nobody needs it for a greedy answer


def load_engine(options: argparse.Namespace) -> Engine:
    """Everything that can be wrong with the options or with the model's files ends here, in one line."""
    try:
        port = Port(SOLUTIONS[options.solution], options.backend, options.device, options.dtype)
    except ValueError as error:  # no such device here
        fail(error)
    port.seed(options.seed)
    try:
        network, tokenizer = load_network(port, options.model, options.loader, options.quantize)
    except (CheckpointError, ValueError) as error:
        fail(error)
    return Engine(
        port=port,
        generate=getattr(port, LOADERS[options.loader].generate),
        model=network,
        tokenizer=tokenizer,
        sampler=_sampler(port, options),
        context=network.config.max_position_embeddings,
        max_tokens=options.max_tokens,
    )


def _sampler(port: Port, options: argparse.Namespace):
    if options.temperature == 0:
        return None
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


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="pdm run main", description=__doc__)
    add = top.add_argument
    add("--prompt", type=text_argument, help=f"what to ask; default: {PROMPT}")
    add("--chat", action="store_true", help="a conversation; --prompt begins it")
    add_model_arguments(top, solution="tiny_llm")
    add(
        "--loader",
        default="auto",
        choices=["auto", *LOADERS],
        help="which week's engine; auto: the newest that is filled in",
    )
    add_sampling_arguments(top)
    return top


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options, with what `auto` stands for in place of it."""
    options = parser().parse_args(argv)
    options.backend = choose_backend(options.solution, options.backend)
    if options.quantize and options.loader == "auto":
        options.loader = next(reversed(LOADERS))  # the one that takes packed weights, whatever is blank in it
    options.loader = choose_loader(options.solution, options.backend, options.loader)
    return options


def run(options: argparse.Namespace) -> None:
    engine = load_engine(options)
    if options.chat:
        chat(engine, options.prompt)
    else:
        answer(engine, PROMPT if options.prompt is None else options.prompt)


def days(options: argparse.Namespace) -> dict:
    """What `ends_at_a_blank` has to know: the last day that the answer needs, and which one it does without."""
    last = PACKED_WEIGHTS if options.quantize else LOADERS[options.loader].last_day
    return {"needs": last, "unused": [SAMPLER]} if options.temperature == 0 else {"needs": max(last, SAMPLER)}


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    replace_unknown_characters()
    with ends_quietly(), ends_at_a_blank(**days(options)):
        try:
            run(options)
        except CheckpointError as error:  # a chat template that fails on the messages
            fail(error)


if __name__ == "__main__":
    main()

"""`pdm run main`: answer a question, or hold a conversation, with a solution on one port."""

import argparse

from tiny_llm_engine.machine.terminal import TerminalSession, command, ends_at, fail
from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_extensions.arguments import (
    add_model_arguments,
    add_sampling_arguments,
    add_week3_arguments,
    check_engine_arguments,
    text_argument,
)

from ..capabilities import (
    AUTO_LOADERS,
    LOADERS,
    choose_backend,
    choose_loader,
    ends_at_a_blank,
    needed_day,
    network_options,
    unused_days,
)
from ..chat import chat, open_engine

PROMPT = "What is chunked prefill?"


def open_session(options: argparse.Namespace) -> TerminalSession:
    """Load the model, ready to answer.

    Raises:
        ValueError: an option is out of range, the device is absent, or the model's files are unusable.
    """
    from tiny_llm_engine.loading import ENGINES, Loading
    from tiny_llm_engine.solutions.port import Port
    from tiny_llm_engine.solutions.solution import resolve_serving
    from tiny_llm_extensions.loading import load_network

    # Checked at a temperature of 0 too, although nothing is drawn there.
    names = resolve_serving(options.solution)
    drawn = names.SamplingParams(options.temperature, options.top_p, options.top_k)
    check_engine_arguments(options)
    if options.loader == "week3":
        return open_engine(options)
    port = Port(options.solution, options.backend, options.device, options.dtype)
    port.seed(options.seed)
    plan = Loading(options.quantize, **network_options(options.solution, options.backend))
    network, tokenizer = load_network(port, options.model, options.loader, plan)
    greedy = options.temperature == 0
    return TerminalSession(
        port=port,
        generate=getattr(port, ENGINES[options.loader].generate or ""),  # a terminal's loader has one
        model=network,
        tokenizer=tokenizer,
        sampler=None if greedy else port.make_sampler(drawn.temperature, drawn.top_p, drawn.top_k),
        context=network.config.context,
        max_tokens=options.max_tokens,
    )


def answer(session: TerminalSession, question: str) -> None:
    """Answer one question; its prompt is encoded here, once."""
    tokenizer, messages = session.tokenizer, [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages) if tokenizer.has_chat_template else question
    ids = tokenizer.encode(prompt)
    if not ids:
        fail("the prompt is empty: give the model at least one token to continue")
    if len(ids) >= (room := session.context):
        fail(f"the prompt has {len(ids)} tokens, but the model reads {room} with its answer: shorten it")
    session.answer(ids)


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
        help="which week's engine; auto: that of week 2 once its first day is filled in, else that of week 1",
    )
    add_week3_arguments(top)
    add_sampling_arguments(top)
    return top


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the options and resolve `auto`."""
    options = parser().parse_args(argv)
    options.backend = choose_backend(options.solution, options.backend)
    if options.quantize and options.loader == "auto":
        options.loader = AUTO_LOADERS[-1]  # the one that takes quantised weights, whatever is blank in it
    options.loader = choose_loader(options.solution, options.backend, options.loader)
    return options


def run(options: argparse.Namespace) -> None:
    with ends_at(ValueError):  # an option out of range, no such device, files that are unusable
        session = open_session(options)
    if options.chat:
        chat(session, options.prompt)
    else:
        answer(session, PROMPT if options.prompt is None else options.prompt)


def used(options: argparse.Namespace) -> list[str]:
    """The capabilities that the answer needs."""
    sampling = ["sampling"] if options.temperature else []
    return [options.loader, *sampling, *(["quantization"] if options.quantize else [])]


@command
def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    capabilities = used(options)
    with (
        ends_at_a_blank(needed_day(*capabilities), unused_days(*capabilities)),
        ends_at(CheckpointError),  # a chat template that fails on the messages
    ):
        run(options)


if __name__ == "__main__":
    main()

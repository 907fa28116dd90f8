"""Hold a conversation with a model on the terminal. Each question has the answers before it in its prompt."""

import argparse

from tiny_llm_engine.machine.terminal import command, ends_at
from tiny_llm_extensions.arguments import (
    add_model_arguments,
    add_sampling_arguments,
    add_week3_arguments,
    text_argument,
)

from ..chat import chat, open_engine
from ..whose_code import choose_backend, ends_at_a_blank


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="tiny-llm chat", description=__doc__)
    top.add_argument("--prompt", type=text_argument, help="the first question")
    add_model_arguments(top, solution="ref")
    add_week3_arguments(top)
    add_sampling_arguments(top)
    return top


@command
def main(argv: list[str] | None = None) -> None:
    options = parser().parse_args(argv)
    options.backend = choose_backend(options.solution, options.backend)
    # An option out of range, no such device, files that are unusable.
    with ends_at_a_blank(3, 3), ends_at(ValueError):
        chat(open_engine(options), options.prompt)

"""Answer with a model, serve it, fetch a larger one, or check this machine.

As a library it is `from tiny_llm_ref import LLM`. A checkout of the repository has `pdm run` for the same commands, and
for those of the course.
"""

import argparse
import sys
from importlib import import_module
from importlib.metadata import version

COMMANDS = {"chat": "chat", "serve": "serve", "get-model": "get_model", "doctor": "doctor"}


def main(argv: list[str] | None = None) -> int | None:
    """Run the command that the first word names with the words after it."""
    words = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="tiny-llm", description=__doc__)
    parser.add_argument("--version", action="version", version=version("tiny-llm"))
    parser.add_argument("command", choices=COMMANDS, help="it has a --help of its own")
    name = parser.parse_args(words[:1]).command
    return import_module(f".{COMMANDS[name]}", __package__).main(words[1:])

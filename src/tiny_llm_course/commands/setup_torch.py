"""`pdm run setup-torch`: install the torch build that fits this machine, and say which one and why."""

import argparse
import sys

from tiny_llm_engine.machine.terminal import command

from ..doctor.setup_torch import install


@command
def main(argv: list[str] | None = None) -> int:
    argparse.ArgumentParser(prog="pdm run setup-torch", description=__doc__).parse_args(argv)
    return install()


if __name__ == "__main__":
    sys.exit(main())

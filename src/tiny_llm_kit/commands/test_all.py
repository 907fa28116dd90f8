"""`pdm run test-all`: installs the torch port when it is missing, then runs everything that can be proved here."""

import argparse
import subprocess
import sys
import time

from ..repo import ROOT, installed_backends

COMMANDS = "tiny_llm_kit.commands"
INSTALLATION = ("the torch port is missing: installing it", [f"{COMMANDS}.setup_torch"])
CHECKS = [
    ("the day tests on the reference, and the tests of the product", [f"{COMMANDS}.test_refsol"]),
    ("the prefix check: each day needs only the days before it", [f"{COMMANDS}.course", "prefix"]),
    ("the mutants: each wrong solution is caught", [f"{COMMANDS}.course", "mutants"]),
]


def main(argv: list[str] | None = None) -> None:
    argparse.ArgumentParser(prog="pdm run test-all", description=__doc__).parse_args(argv)
    steps = CHECKS if "torch" in installed_backends() else [INSTALLATION, *CHECKS]
    failed = [title for title, arguments in steps if call(title, arguments)]
    for title in failed:
        print(f"FAILED: {title}")
    sys.exit(1 if failed else 0)


def call(title: str, arguments: list[str]) -> int:
    """Runs one module of the kit as a process of its own, and says how long it took."""
    print(f"== {title}", flush=True)
    started = time.monotonic()
    status = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT).returncode
    print(f"== {'failed' if status else 'passed'} in {time.monotonic() - started:.0f} s\n", flush=True)
    return status


if __name__ == "__main__":
    main()

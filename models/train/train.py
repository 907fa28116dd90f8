"""`pdm run train-tiny-model`: makes a shipped model again from this folder alone, in minutes on one CPU core.

The same machine gives the same weights each time: seeds and the number of threads are fixed. The folder is replaced
only at the very end, after the new model has passed its evaluation.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from tiny_llm_course.doctor import authors_tools
from tiny_llm_engine.machine.installation import require_backend

from .shipped import DENSE, MIXTURE


def can_be_made(folder: Path) -> bool:
    """Whether this folder may be written or replaced; asked before minutes of training."""
    if folder.exists() and not folder.is_dir():
        return False
    above = next(parent for parent in folder.parents if parent.exists())
    return above.is_dir() and os.access(above, os.W_OK)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="pdm run train-tiny-model", description=__doc__)
    parser.add_argument(
        "--mixture", action="store_true", help="make tiny-qwen3-moe, whose layers have experts, instead"
    )
    parser.add_argument("--out", type=Path, help="the folder to write (default: the shipped model)")
    parser.add_argument(
        "--steps", type=int, help="a short trial of so many steps, not evaluated; needs --out"
    )
    options = parser.parse_args(argv)
    trial = options.steps is not None
    out = (options.out or (MIXTURE if options.mixture else DENSE)).resolve()
    if trial and out in (DENSE, MIXTURE):
        parser.error("--steps makes an untrained model: give it another folder with --out")
    if trial and options.steps < 1:
        parser.error("--steps must be at least 1")
    if not can_be_made(out):
        parser.error(f"--out {out}: no folder can be made there: give another one")
    require_backend("torch")
    authors_tools.require("transformers")  # before the imports that need it

    from .pipeline import MIXTURE_STEPS, STEPS, run

    steps = options.steps or (MIXTURE_STEPS if options.mixture else STEPS)
    run(out, steps, options.mixture, evaluate=not trial, console=Console())


if __name__ == "__main__":
    main()

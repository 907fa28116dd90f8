"""`pdm run train-tiny-model`: makes the shipped model again from this folder alone, in minutes on one CPU core.

The same machine gives the same weights each time: seeds and the number of threads are fixed. The folder is replaced
only at the very end, after the new model has passed its evaluation.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from tiny_llm_kit.engine.port import require_backend
from tiny_llm_kit.repo import MODELS

SHIPPED = MODELS / "tiny-qwen3"


def can_be_made(folder: Path) -> bool:
    """Whether this folder may be written or replaced; asked before minutes of training."""
    if folder.exists() and not folder.is_dir():
        return False
    above = next(parent for parent in folder.parents if parent.exists())
    return above.is_dir() and os.access(above, os.W_OK)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="pdm run train-tiny-model", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=SHIPPED, help="the folder to write (default: the shipped model)"
    )
    parser.add_argument(
        "--steps", type=int, help="a short trial of so many steps, not evaluated; needs --out"
    )
    options = parser.parse_args(argv)
    trial = options.steps is not None
    if trial and options.out.resolve() == SHIPPED.resolve():
        parser.error("--steps makes an untrained model: give it another folder with --out")
    if trial and options.steps < 1:
        parser.error("--steps must be at least 1")
    if not can_be_made(options.out.resolve()):
        parser.error(f"--out {options.out}: no folder can be made there: give another one")
    require_backend("torch")  # before the imports that need it

    from .pipeline import STEPS, run

    run(options.out, options.steps if trial else STEPS, evaluate=not trial, console=Console())


if __name__ == "__main__":
    main()

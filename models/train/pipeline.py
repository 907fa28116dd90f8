"""From the corpus to the finished folder: train, export, evaluate, write log and card."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from tokenizers import Tokenizer

from tiny_llm_engine.machine.repo import ROOT

from ..eval.questions import ABSENT_NAME, Question, read_corpus
from .build_tokenizer import build_tokenizer
from .card import write_card
from .export import export
from .loop import train
from .new_model import new_model
from .replace_folder import replacing
from .rows import LOOKUPS, Material, batches
from .training_log import TrainingLog

HERE = Path(__file__).parent
SEED = 0
STEPS, MIXTURE_STEPS = 2000, 1500
# Sums come out in another order, and so a little different, with another number of threads.
THREADS = 1


def read_material(folder: Path = HERE) -> Material:
    """The corpus, the register names and a tokenizer made for both."""
    questions = read_corpus(folder)
    names = (folder / "names.txt").read_text(encoding="utf-8").split()
    return Material(_tokenizer(questions, names), questions, names)


def _tokenizer(questions: list[Question], names: list[str]) -> Tokenizer:
    asks = [ask for question in questions for ask in question.asks]
    answers = [question.answer for question in questions]
    return build_tokenizer([*asks, *answers, *LOOKUPS, ABSENT_NAME], names)


def run(out: Path, steps: int, mixture: bool, evaluate: bool, console: Console) -> None:
    """Train, export, evaluate, write log and card, and put all of it in the place of `out`."""
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    material = read_material()
    model = new_model(material.tokenizer, material.names, SEED, mixture)
    log = TrainingLog.start(material, model, seed=SEED, steps=steps, threads=THREADS)
    with replacing(out) as folder:
        _train(model, material, log, console)
        export(model, material.tokenizer, folder)
        log.write(folder / "training_log.json")
        if evaluate:
            log.evaluation = _evaluate(folder)
            log.write(folder / "training_log.json")
        write_card(log.as_dict(), folder / "README.md")
    console.print(f"wrote {out} after {log.seconds:.0f} s of training")


def _train(model: torch.nn.Module, material: Material, log: TrainingLog, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("training", total=log.steps)

        def on_step(step: int, loss: float) -> None:
            log.add(step, loss)
            progress.update(bar, advance=1, description=f"loss {loss:.3f}")

        train(model, batches(material, SEED + 1), log.steps, on_step)


def _evaluate(folder: Path) -> dict:
    """The figures of `eval-tiny-model`, run as a process of its own: this one never opens the held-out questions."""
    figures = folder / "figures.json"
    command = [sys.executable, "-m", "models.eval.eval_tiny_model", "--solution", "transformers"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
    done = subprocess.run(
        [*command, "--model", str(folder), "--json", str(figures)], cwd=ROOT, env=environment
    )
    if done.returncode:
        rejected = shutil.copytree(folder, Path(tempfile.mkdtemp(), "rejected"))
        problem = "misses a target" if figures.exists() else "could not be evaluated"
        raise SystemExit(f"the new model {problem}: it was put into {rejected}, and nothing was replaced")
    result = json.loads(figures.read_text(encoding="utf-8"))
    figures.unlink()
    return result

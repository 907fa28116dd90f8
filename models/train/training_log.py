"""The record of a training: what went in, how the loss fell, how long it took, how good the result is."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from torch import nn

from .rows import Material

EVERY = 100  # steps between two recorded losses


@dataclass
class TrainingLog:
    """All that the model card says; `losses` are means over EVERY steps, `seconds` is the training loop alone."""

    seed: int
    steps: int
    threads: int
    parameters: int
    vocabulary: int
    questions: int
    phrasings: int
    names: int
    corpus_sha256: str
    versions: dict[str, str]
    machine: str
    seconds: float = 0.0
    losses: list[list[float]] = field(default_factory=list)
    evaluation: dict = field(default_factory=dict)
    mixture: dict | None = None  # what the card says of the experts; None for plain MLPs

    @classmethod
    def start(cls, material: Material, model: nn.Module, seed: int, steps: int, threads: int) -> TrainingLog:
        """A log without results; its clock starts now."""
        log = cls(
            seed=seed,
            steps=steps,
            threads=threads,
            parameters=sum(weight.numel() for weight in model.parameters()),
            vocabulary=material.tokenizer.get_vocab_size(),
            questions=len(material.questions),
            phrasings=sum(len(question.asks) for question in material.questions),
            names=len(material.names),
            corpus_sha256=corpus_digest(material),
            versions={name: version(name) for name in ("torch", "transformers", "tokenizers")},
            mixture=mixture_facts(model),
            machine=f"{platform.machine()} {platform.system()}, Python {platform.python_version()}",
        )
        log._began, log._recent = time.perf_counter(), []
        return log

    def add(self, step: int, loss: float) -> None:
        """Note the loss of one step."""
        self._recent.append(loss)
        self.seconds = round(time.perf_counter() - self._began, 1)
        if (step + 1) % EVERY == 0 or step + 1 == self.steps:
            self.losses.append([step + 1, round(sum(self._recent) / len(self._recent), 4)])
            self._recent = []

    def as_dict(self) -> dict:
        return asdict(self)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")


def mixture_facts(model: nn.Module) -> dict | None:
    """The numbers of a model's experts, and how many parameters a token uses; None if it has none."""
    experts = [weight for name, weight in model.named_parameters() if ".experts." in name]
    if not experts:
        return None
    config = model.config
    X, k = config.num_experts, config.num_experts_per_tok
    unused = sum(weight.numel() for weight in experts) * (X - k) // X
    return {
        "experts": X,
        "per_token": k,
        "width": config.moe_intermediate_size,
        "plain_layers": config.mlp_only_layers,
        "balance": config.router_aux_loss_coef,
        "active_parameters": sum(weight.numel() for weight in model.parameters()) - unused,
    }


def corpus_digest(material: Material) -> str:
    """One hash of all questions, answers and names: tells whether a model was made from the corpus beside it."""
    everything = [[[q.id, q.asks, q.answer] for q in material.questions], material.names]
    return hashlib.sha256(json.dumps(everything).encode()).hexdigest()

"""Writes the model card from the training log. `python -m models.train.card` writes it again after an edit here."""

from __future__ import annotations

import json
from pathlib import Path

from ..eval.questions import ABSENT_NAME
from .shipped import DENSE, MIXTURE

TEXT = """---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

<!-- Written by models/train/card.py from training_log.json: edit those, not this file. -->

{kind}

**What it can do.** It answers {questions} questions on LLM serving and on this course, and it looks up numbers:
after lines such as `maple 417`, the question `What is maple?` gets `417`, however far back the line is (tested up to
2,000 tokens; the context is 4,096). The second skill is a measuring instrument: an engine with a wrong cache, mask or
position answers with a wrong number.

**What it cannot do.** Anything else. It has no knowledge beyond its questions, it does not reason, and it answers an
unknown question with the answer of a known one. It was made for lessons and tests, not to be relied on.

## How to talk to it

Use the chat template (ChatML, without a system message). A register is one line: a name, one space, a number from 0
to 999. The {names} names are in `models/train/names.txt`; other words are not looked up. The question comes after the
list and ends at most three tokens after the name (`What is maple?`, `What is maple ?`, `And what is maple now?`).
Each mark with the space before it is one token, and the template trims messages, so a space before the question mark
changes nothing. For a name that no line has, the answer is "{absent}"

## How it was made

- **Data.** Written by the authors of the course, in `models/train/corpus`: {questions} questions in {phrasings}
  phrasings, one answer each; small variations (openings, marks, words left out, exchanged or unknown) are made while
  training. Register lists are random. No other text, no other model.
- **Tokenizer.** Byte-level; {vocabulary} tokens: the words of the corpus, byte pair merges for other words, the numbers
  0 to 999 and the register names.
- **Start.** Not from random weights alone: the first two layers begin as a hand-set look-up circuit
  (`models/train/circuit.py`). A model of this size does not learn to look names up from random weights in minutes.
  Ordinary training does the rest; nothing is frozen.
- **Training.** {steps} steps of AdamW in float32, {loss_on}, seed {seed}, {threads} thread,
  {minutes:.0f} minutes on {machine} (torch {torch}, transformers {transformers}). The mean loss of the last steps
  was {loss}.

`{command}` makes it again; the same machine gives the same weights.

## How good it is

Exact answers: greedy decoding gives every token of the expected answer, its end included. Look-ups are of fresh
random pairs. The {paraphrases} paraphrases were written before the final training, by the authors of the corpus, in a
file that training never opens. `pdm run eval-tiny-model` measures this on every port.

{table}
"""

DENSE_KIND = """# tiny-qwen3

The model that ships with tiny-llm, so that the course needs no download. It has the architecture of Qwen3 with
{millions:.1f} million parameters, in bfloat16, and loads with Hugging Face transformers as any Qwen3 does."""

MIXTURE_KIND = """# tiny-qwen3-moe

The mixture of experts that ships with tiny-llm, for Week 4 Day 2. It has the architecture of Qwen3-MoE, in bfloat16,
with {millions:.1f} million parameters, of which a token uses {active:.1f} million: a layer has {experts} experts,
{width} wide, and {per_token} of them compute a token. The first layer has a plain MLP. It loads with Hugging Face
transformers as any Qwen3-MoE does. Texts and tokenizer are those of `tiny-qwen3`."""


def card(log: dict) -> str:
    """The text of the card for a training log."""
    columns = log["evaluation"]
    first = next(iter(columns.values()), {})
    return TEXT.format(
        **{
            name: log[name]
            for name in ("questions", "phrasings", "names", "vocabulary", "steps", "seed", "threads")
        },
        **{name: log["versions"][name] for name in ("torch", "transformers")},
        absent=ABSENT_NAME,
        machine=log["machine"],
        **_of_its_kind(log),
        minutes=log["seconds"] / 60,
        loss=log["losses"][-1][1],
        paraphrases=first.get("questions, unseen paraphrases", {}).get("cases", 0),
        table=_table(columns) if columns else "This model is a trial and was not evaluated.",
    )


def _of_its_kind(log: dict) -> dict[str, str]:
    """What differs between a dense model and a mixture."""
    millions, mixture = log["parameters"] / 1e6, log.get("mixture")
    command, loss_on = "pdm run train-tiny-model", "loss on the answers alone"
    if not mixture:
        return {"kind": DENSE_KIND.format(millions=millions), "command": command, "loss_on": loss_on}
    active = mixture["active_parameters"] / 1e6
    return {
        "kind": MIXTURE_KIND.format(millions=millions, active=active, **mixture),
        "command": command + " --mixture",
        "loss_on": f"{loss_on},\n  and {mixture['balance']} times the load-balancing loss",
    }


def _table(columns: dict) -> str:
    rows = [f"| asked | target | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for suite, figures in next(iter(columns.values())).items():
        target = "" if figures["target"] is None else f"{figures['target']:.0%}"
        cells = [_cell(column[suite]) for column in columns.values()]
        rows.append(f"| {suite} | {target} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(figures: dict) -> str:
    return f"{figures['exact'] / figures['cases']:.1%} ({figures['exact']} of {figures['cases']})"


def write_card(log: dict, path: Path) -> None:
    path.write_text(card(log), encoding="utf-8")


if __name__ == "__main__":
    for folder in (DENSE, MIXTURE):
        log = json.loads((folder / "training_log.json").read_text(encoding="utf-8"))
        write_card(log, folder / "README.md")

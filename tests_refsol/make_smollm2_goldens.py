"""Makes `tests/goldens/smollm2.json` again: `pdm run python -m tests_refsol.make_smollm2_goldens`.

transformers reads the GGUF file itself, dequantises it to float32 and answers one prompt at a time, greedily. For that
it needs `accelerate`, which nothing else here does: `python -m pip install --no-deps accelerate`.
"""

import hashlib
import json
import platform
import sys
from datetime import date
from pathlib import Path

import torch
import transformers

from benchmarks.real_text import QUESTIONS
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.models.smollm2 import fetched_smollm2
from tiny_llm_engine.models.tokenizer import load_tokenizer

sys.path.insert(0, str(ROOT / "tests"))
from support.goldens import FOLDER

TOKENS = 64
SYSTEM = (
    "You are a careful assistant. You answer in plain words, and you say so when you do not know something."
)


@torch.no_grad()
def answer(model: torch.nn.Module, prompt: list[int]) -> tuple[list[int], float]:
    """The next tokens, and the smallest distance between the logits of a token and of the second best."""
    ids, cache, tokens, margins = torch.tensor([prompt]), None, [], []
    for _ in range(TOKENS):
        out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        best = out.logits[0, -1].topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        ids, cache = torch.tensor([tokens[-1:]]), out.past_key_values
    return tokens, min(margins)


def provenance(file: Path) -> dict:
    """Who computed the goldens, when, and from what."""
    where = {"dtype": "float32", "device": "cpu", "machine": platform.machine()}
    return {
        "command": "pdm run python -m tests_refsol.make_smollm2_goldens",
        "date": date.today().isoformat(),
        "file": {"name": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()},
        **where,
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
    }


def main() -> None:
    file = fetched_smollm2()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    )
    tokenizer, answers = load_tokenizer(file), []
    for question in QUESTIONS:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        prompt = tokenizer.encode(tokenizer.apply_chat_template(messages))
        tokens, margin = answer(model.eval(), prompt)
        print(f"{margin:.4f}  {tokenizer.decode(tokens)!r}", file=sys.stderr)
        answers.append({"question": question, "prompt": prompt, "tokens": tokens, "margin": round(margin, 4)})
    goldens = {"provenance": provenance(file), "system": SYSTEM, "answers": answers}
    text = json.dumps(goldens, ensure_ascii=False)
    (FOLDER / "smollm2.json").write_text(
        text.replace('{"question"', '\n{"question"') + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()

"""Wrong solutions of Week 1 Day 6."""

from authors.mutants import Mutant, wrong

FILE = "generate.py"
LOOP = """        if on_text is not None:
            on_text(piece)

    for _ in range(max_tokens):
        token = next_token(model, tokens, sampler)
        if token in tokenizer.eos_token_ids:
            break
        tokens.append(token)
        deliver(stream.add(token))
    if rest := stream.finish():
        deliver(rest)
"""
LATE = """
    for _ in range(max_tokens):
        token = next_token(model, tokens, sampler)
        if token in tokenizer.eos_token_ids:
            break
        tokens.append(token)
        deliver(stream.add(token))
    if rest := stream.finish():
        deliver(rest)
    for piece in pieces if on_text else []:
        on_text(piece)
"""

MUTANTS = [
    Mutant(
        "1.6.1",
        "sends only the last token to the model, as if there were a cache",
        FILE,
        mlx=("mx.array([tokens])", "mx.array([tokens[-1:]])"),
        torch=("torch.tensor([tokens])", "torch.tensor([tokens[-1:]])"),
    ),
    Mutant(
        "1.6.1",
        "samples at every position and keeps the last choice",
        FILE,
        mlx=(
            "[:, -1]\n    ids = mx.argmax(logits, axis=-1) if sampler is None else sampler(logits)\n"
            "    return ids.item()",
            "[0]\n    ids = mx.argmax(logits, axis=-1) if sampler is None else sampler(logits)\n"
            "    return ids[-1].item()",
        ),
        torch=(
            "[:, -1]\n    ids = torch.argmax(logits, dim=-1) if sampler is None else sampler(logits)\n"
            "    return ids.item()",
            "[0]\n    ids = torch.argmax(logits, dim=-1) if sampler is None else sampler(logits)\n"
            "    return ids[-1].item()",
        ),
    ),
    *wrong(
        "1.6.2",
        FILE,
        (
            "honours only one of the end tokens",
            "if token in tokenizer.eos_token_ids:",
            "if token == min(tokenizer.eos_token_ids):",
        ),
        ("never asks the detokenizer for its rest", "if rest := stream.finish():", "if rest := None:"),
        ("delivers all pieces after the end", LOOP, LATE),
        (
            "is greedy after the first token",
            "        token = next_token(model, tokens, sampler)",
            "        token = next_token(model, tokens, None if pieces else sampler)",
        ),
        (
            "encodes the text so far again, instead of keeping the ids",
            "        tokens.append(token)\n        deliver(stream.add(token))",
            '        deliver(stream.add(token))\n        tokens = tokenizer.encode(prompt + "".join(pieces))',
        ),
    ),
]

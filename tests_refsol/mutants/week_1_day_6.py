"""Wrong solutions of Week 1 Day 6."""

from authors.mutants import Mutant

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
        survives="a test of the text alone, with a script for a model",
        mlx=("mx.array([tokens])", "mx.array([tokens[-1:]])"),
        torch=("torch.tensor([tokens])", "torch.tensor([tokens[-1:]])"),
    ),
    Mutant(
        "1.6.1",
        "sends a window of the last three tokens",
        FILE,
        survives="a test whose prompt and answer have three tokens together",
        mlx=("mx.array([tokens])", "mx.array([tokens[-3:]])"),
        torch=("torch.tensor([tokens])", "torch.tensor([tokens[-3:]])"),
    ),
    Mutant(
        "1.6.1",
        "reads the scores behind the first token",
        FILE,
        survives="a fake model that scores every position alike",
        both=(")[:, -1]", ")[:, 0]"),
    ),
    Mutant(
        "1.6.1",
        "reads the scores one position too early",
        FILE,
        survives="a fake model that scores every position alike",
        both=(")[:, -1]", ")[:, -2:][:, 0]"),
    ),
    Mutant(
        "1.6.1",
        "averages the scores of all positions",
        FILE,
        survives="a test with one token",
        both=(")[:, -1]", ").mean(1)"),
    ),
    Mutant(
        "1.6.1",
        "samples at every position and keeps the last choice",
        FILE,
        survives="a test of the greedy choice, or of a sampler that does not look at its input",
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
    Mutant(
        "1.6.1",
        "hands the sampler a row without its batch axis",
        FILE,
        survives="a test with a sampler that takes any shape",
        both=("else sampler(logits)", "else sampler(logits[0])"),
    ),
    Mutant(
        "1.6.1",
        "is greedy whatever the sampler says",
        FILE,
        survives="a test without a sampler",
        both=(" if sampler is None else sampler(logits)", ""),
    ),
    Mutant(
        "1.6.1",
        "returns an array with one number and not a number",
        FILE,
        survives="a test that only compares with ==",
        both=("return ids.item()", "return ids[0]"),
    ),
    Mutant(
        "1.6.2",
        "stops only at max_tokens",
        FILE,
        survives="a script that ends exactly at the limit",
        both=("if token in tokenizer.eos_token_ids:", "if False:"),
    ),
    Mutant(
        "1.6.2",
        "honours only one of the end tokens",
        FILE,
        survives="a test with one end token",
        both=("if token in tokenizer.eos_token_ids:", "if token == min(tokenizer.eos_token_ids):"),
    ),
    Mutant(
        "1.6.2",
        "counts the end token as a piece of the text",
        FILE,
        survives="a test of the text alone: a special token has no characters",
        both=(
            "            break\n        tokens.append(token)\n        deliver(stream.add(token))",
            "            deliver(stream.add(token))\n            break\n"
            "        tokens.append(token)\n        deliver(stream.add(token))",
        ),
    ),
    Mutant(
        "1.6.2",
        "runs the model once more after the end token",
        FILE,
        survives="a test of the text alone",
        both=(
            "            break\n",
            "            model_is_done = next_token(model, [*tokens, token], sampler)\n            break\n",
        ),
    ),
    Mutant(
        "1.6.2",
        "one token more than max_tokens",
        FILE,
        survives="a test in which the text ends before the limit",
        both=("range(max_tokens)", "range(max_tokens + 1)"),
    ),
    Mutant(
        "1.6.2",
        "counts the prompt in max_tokens",
        FILE,
        survives="a test with a limit that is never reached",
        both=("range(max_tokens)", "range(max(1, max_tokens - len(tokens)))"),
    ),
    Mutant(
        "1.6.2",
        "returns the prompt together with the answer",
        FILE,
        survives="a test that the text ends with the answer",
        both=('return "".join(pieces)', 'return prompt + "".join(pieces)'),
    ),
    Mutant(
        "1.6.2",
        "decodes each id alone, which splits characters",
        FILE,
        survives="a test with ASCII text",
        both=("deliver(stream.add(token))", "deliver(tokenizer.decode([token]))"),
    ),
    Mutant(
        "1.6.2",
        "decodes all ids again and delivers what is longer than before, broken characters and all",
        FILE,
        survives="a test with ASCII text",
        both=(
            "deliver(stream.add(token))",
            "made = tokens[len(tokenizer.encode(prompt)) :]\n"
            "        deliver(tokenizer.decode(made)[len(tokenizer.decode(made[:-1])) :])",
        ),
    ),
    Mutant(
        "1.6.2",
        "never asks the detokenizer for its rest",
        FILE,
        survives="a test whose text ends with a whole character",
        both=("if rest := stream.finish():", "if rest := None:"),
    ),
    Mutant(
        "1.6.2",
        "returns the rest, but does not stream it",
        FILE,
        survives="a test of the returned text alone",
        both=("        deliver(rest)", "        pieces.append(rest)"),
    ),
    Mutant(
        "1.6.2",
        "delivers all pieces after the end",
        FILE,
        survives="a test that only compares the list of pieces",
        both=(LOOP, LATE),
    ),
    Mutant(
        "1.6.2",
        "streams only pieces that are not empty",
        FILE,
        survives="a test that joins the pieces",
        both=("if on_text is not None:", "if on_text is not None and piece:"),
    ),
    Mutant(
        "1.6.2",
        "streams the whole text so far with every token",
        FILE,
        survives="a test with one token",
        both=("            on_text(piece)", '            on_text("".join(pieces))'),
    ),
    Mutant(
        "1.6.2",
        "never appends what it chose: the model sees the prompt alone",
        FILE,
        survives="a test of the text alone, with a script for a model",
        both=("        tokens.append(token)\n", ""),
    ),
    Mutant(
        "1.6.2",
        "puts what it chose in front",
        FILE,
        survives="a test that only counts the tokens",
        both=("tokens.append(token)", "tokens.insert(0, token)"),
    ),
    Mutant(
        "1.6.2",
        "is greedy after the first token",
        FILE,
        survives="a test of the sampler with one token",
        both=(
            "        token = next_token(model, tokens, sampler)",
            "        token = next_token(model, tokens, None if pieces else sampler)",
        ),
    ),
    Mutant(
        "1.6.2",
        "encodes the text so far again, instead of keeping the ids",
        FILE,
        survives="a test in ASCII, or one whose answer is what the tokenizer itself would have written",
        both=(
            "        tokens.append(token)\n        deliver(stream.add(token))",
            '        deliver(stream.add(token))\n        tokens = tokenizer.encode(prompt + "".join(pieces))',
        ),
    ),
]

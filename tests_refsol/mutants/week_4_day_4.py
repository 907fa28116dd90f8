"""Wrong solutions of Week 4 Day 4."""

from authors.mutants import Mutant


def _mutant(task: str, file: str, idea: str, old: str, new: str, inside: str | None = None) -> Mutant:
    return Mutant(task, idea, f"async_scheduling/{file}.py", serving=(old, new), inside=inside)


# Task 1.
COUNT = "    return max(0, sequence.num_scheduled + 1 - len(sequence.known_tokens))\n"


def _count(idea: str, new: str) -> Mutant:
    return _mutant("4.4.1", "placeholders", idea, COUNT, f"    return {new}\n")


COUNTS = [
    _count("every token in flight is a placeholder", "sequence.num_in_flight"),
    _count(
        "is negative in the middle of a prompt", "sequence.num_scheduled + 1 - len(sequence.known_tokens)"
    ),
    _count("one at most", "int(sequence.num_scheduled >= len(sequence.known_tokens))"),
    _count(
        "the answer so far is forgotten", "max(0, sequence.num_scheduled + 1 - sequence.num_prompt_tokens)"
    ),
    _count(
        "the draw of the prompt's last chunk is none",
        "sequence.num_in_flight if sequence.num_computed >= sequence.num_prompt_tokens else 0",
    ),
]

# Task 2.
PENALTIES = (
    "    penalties = params.presence_penalty, params.frequency_penalty, params.repetition_penalty - 1\n"
)
WAITS = "    return params.structured_outputs is not None or any(penalties)\n"


def _waits(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.4.2", "placeholders", idea, old, new)


WAITERS = [
    _waits("only penalties wait", WAITS, "    return any(penalties)\n"),
    _waits(
        "the repetition penalty is forgotten",
        PENALTIES,
        PENALTIES.replace(", params.repetition_penalty - 1", ""),
    ),
    _waits(
        "the frequency penalty is forgotten", PENALTIES, PENALTIES.replace(" params.frequency_penalty,", "")
    ),
    _waits(
        "the presence penalty is forgotten", PENALTIES, PENALTIES.replace("params.presence_penalty, ", "")
    ),
    _waits("a penalty below zero is off", WAITS, WAITS.replace("any(penalties)", "max(penalties) > 0")),
    _waits("penalties are added up", WAITS, WAITS.replace("any(penalties)", "bool(sum(penalties))")),
    _waits(
        "who draws waits", WAITS, WAITS.replace("any(penalties)", "any(penalties) or params.temperature > 0")
    ),
    _waits(
        "who has a minimum waits",
        WAITS,
        WAITS.replace("any(penalties)", "any(penalties) or params.min_tokens > 0"),
    ),
]

# Task 3.
READY = "    if sequence.is_done or (placeholders and must_wait(sequence)):\n"
LAST = "    last = max(sequence.num_prompt_tokens, len(sequence.known_tokens) - 1)\n"
LIMIT = "    return sequence.num_scheduled >= last and len(sequence.tokens) + placeholders < sequence.max_new_tokens\n"


def _ready(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.4.3", "placeholders", idea, old, new, "can_decode_ahead")


READIES = [
    _ready("an ended request decodes", READY, READY.replace("sequence.is_done or ", "")),
    _ready("nobody waits", READY, "    if sequence.is_done:\n"),
    _ready("who must wait always waits", READY, READY.replace("placeholders and ", "")),
    _ready("past the prompt is enough", LAST, "    last = sequence.num_prompt_tokens\n"),
    _ready("the last token of a prompt is a decode", LAST, "    last = len(sequence.known_tokens) - 1\n"),
    _ready(
        "the context is no limit",
        LIMIT,
        LIMIT.replace("sequence.max_new_tokens", "(sequence.sampling.max_tokens or 99)"),
    ),
    _ready(
        "what is in flight counts against the limit",
        LIMIT,
        LIMIT.replace("+ placeholders <", "+ sequence.num_in_flight <"),
    ),
    _ready("one row more is never planned", LIMIT, LIMIT.replace(">= last", "== last")),
]

# Task 4.
TOKENS = "    tokens = len(sequence.known_tokens) + num_placeholders(sequence)\n"
WHILE = "    while not scheduler.allocator.can_allocate(missing, keep_watermark=False):\n"
GIVES_UP = "        if youngest is sequence:\n            return False\n"


def _room(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.4.4", "placeholders", idea, old, new, "make_room_ahead")


ROOMS = [
    _room(
        "one more token whether it is known or not",
        TOKENS,
        "    tokens = len(sequence.known_tokens) + 1\n",
    ),
    _room("keeps the watermark", WHILE, WHILE.replace(", keep_watermark=False", "")),
    _room(
        "is planned without a place",
        GIVES_UP,
        "        if youngest is sequence:\n            return True\n",
    ),
    _room(
        "preempts where no block is missing",
        WHILE,
        WHILE.replace("can_allocate(missing", "can_allocate(missing or 1"),
    ),
    _room(
        "all that is in flight needs a new slot",
        TOKENS,
        "    tokens = len(sequence.known_tokens) + sequence.num_in_flight\n",
    ),
]

# Task 5.
IDS = "        batch.token_ids.extend(known or [0])\n"
SOURCES = "        batch.sources.extend([-1] * len(known) or [index[entry.sequence]])\n"
CONTEXT = "        batch.context_lens.append(entry.start)\n"
NEEDS = "        if entry.needs_token:\n"
CLEAR = "    if max(batch.sources, default=-1) < 0:\n        batch.sources.clear()\n"


def _pack(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.4.5", "placeholders", idea, old, new)


PACKS = [
    _pack("sources stay when no token is a placeholder", CLEAR, ""),
    _pack("-1 is a token", IDS, "        batch.token_ids.extend(known or [-1])\n"),
    _pack(
        "the past is what is computed",
        CONTEXT,
        "        batch.context_lens.append(entry.sequence.num_computed)\n",
    ),
    _pack(
        "the row of a placeholder draws nothing",
        NEEDS,
        "        if entry.stop == len(entry.sequence.known_tokens):\n",
    ),
    _pack(
        "whoever was drawn for and has one row is a placeholder",
        IDS + SOURCES,
        "        ahead = entry.sequence in index and entry.size == 1\n"
        "        batch.token_ids.extend([0] if ahead else known or [0])\n"
        "        batch.sources.extend([index[entry.sequence]] if ahead else [-1] * entry.size)\n",
    ),
]

# Task 6.
TORCH_DRAWN = "    drawn = last_tokens[sources.clamp(min=0)].to(token_ids.dtype)\n"
TORCH = TORCH_DRAWN + "    return torch.where(sources < 0, token_ids, drawn)\n"
MLX_DRAWN = "    drawn = last_tokens[mx.maximum(sources, 0)].astype(token_ids.dtype)\n"
MLX = MLX_DRAWN + "    return mx.where(sources < 0, token_ids, drawn)\n"


def _fill(idea: str, torch: str, mlx: str | None = None) -> Mutant:
    return Mutant(
        "4.4.6", idea, "fill_placeholders.py", torch=(TORCH, torch), mlx=None if mlx is None else (MLX, mlx)
    )


FILLS = [
    _fill(
        "the type of what was drawn",
        TORCH.replace(".to(token_ids.dtype)", "").replace(
            "token_ids, drawn", "token_ids.to(last_tokens.dtype), drawn"
        ),
        MLX.replace(".astype(token_ids.dtype)", ""),
    ),
    _fill(
        "reads the sources on the host",
        "    ids, drawn = token_ids.tolist(), last_tokens.tolist()\n"
        "    rows = zip(ids, sources.tolist(), strict=True)\n"
        "    return torch.tensor([i if s < 0 else drawn[s] for i, s in rows], dtype=token_ids.dtype)\n",
        "    ids, drawn = token_ids.tolist(), last_tokens.tolist()\n"
        "    rows = zip(ids, sources.tolist(), strict=True)\n"
        "    return mx.array([i if s < 0 else drawn[s] for i, s in rows], dtype=token_ids.dtype)\n",
    ),
]

MUTANTS = [
    *COUNTS,
    *WAITERS,
    *READIES,
    *ROOMS,
    *PACKS,
    *FILLS,
]

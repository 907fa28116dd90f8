"""Wrong solutions of Week 4 Day 3."""

from authors.mutants import Mutant


def _mutant(task: str, file: str, idea: str, old: str, new: str) -> Mutant:
    return Mutant(task, idea, f"speculation/{file}.py", serving=(old, new))


# Task 1.
COUNT = "        self.num_indexed = len(tokens)\n"
LENGTHS = "range(min(self.longest, len(tokens)), self.shortest - 1, -1)"
RESULT = "                return [tokens[start + i % (len(tokens) - start)] for i in range(k)]\n"


def _lookup(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.1", "prompt_lookup", idea, old, new)


LOOKUP = [
    _lookup(
        "n-grams of the longest length are not looked for",
        LENGTHS,
        "range(min(self.longest, len(tokens) + 1) - 1, self.shortest - 1, -1)",
    ),
    _lookup("indexes the whole text in every call", COUNT, ""),
    _lookup(
        "counts the last token as indexed, before anything follows it",
        COUNT,
        "        self.num_indexed = len(tokens) + 1\n",
    ),
    _lookup(
        "goes on with the beginning of the text",
        RESULT,
        RESULT.replace("start + i % (len(tokens) - start)", "(start + i) % len(tokens)"),
    ),
    _lookup(
        "looks up n-grams that are longer than the text",
        LENGTHS,
        "range(self.longest, self.shortest - 1, -1)",
    ),
]

# Task 2.
KNOWN = "        known, drafts = len(sequence.known_tokens), drafts[:left]\n"
MISSING = "        missing = table.missing(known + len(drafts))\n"
ROOM = "        if missing and not allocator.can_allocate(missing):\n"
FIT = "            drafts = drafts[: table.capacity - known]\n"


def _plan(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.2", "drafts", idea, old, new)


PLAN = [
    _plan("takes the watermark's blocks", ROOM, ROOM.replace("(missing)", "(missing, keep_watermark=False)")),
    _plan(
        "asks for blocks for the drafts alone",
        MISSING,
        "        missing = -(-len(drafts) // allocator.block_size)\n",
    ),
    _plan(
        "reserves for drafts that the budget cuts",
        KNOWN,
        "        known = len(sequence.known_tokens)\n"
        "        if allocator.can_allocate(table.missing(known + len(drafts))):\n"
        "            table.reserve(known + len(drafts))\n"
        "        drafts = drafts[:left]\n",
    ),
    _plan(
        "asks for permission where no block is missing",
        ROOM + FIT,
        ROOM.replace("missing and ", "") + FIT.replace("\n", " if missing else []\n"),
    ),
]

# Task 3.
PLACES = "        batch.positions.extend(range(entry.start, stop))\n"
ROWS = "batch.sample_rows.extend(range(rows - 1 - len(drafts), rows))"


def _pack(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.3", "drafts", idea, old, new)


PACK = [
    _pack(
        "every row of an entry is sampled",
        ROWS,
        "batch.sample_rows.extend(range(batch.query_start[-2], rows))",
    ),
    _pack(
        "all drafts have the position after the known tokens",
        PLACES,
        "        batch.positions.extend([*range(entry.start, entry.stop), *[entry.stop] * len(drafts)])\n",
    ),
]

# Task 4.
LOOP = """    while accepted < len(drafts) and drawn[accepted].token == drafts[accepted]:
        accepted += 1
"""
TAKEN = "    return list(drawn[: accepted + 1])\n"


def _verify(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.4", "drafts", idea, old, new)


VERIFY = [
    _verify(
        "no bonus token after right drafts",
        TAKEN,
        "    return list(drawn[: min(accepted + 1, len(drafts) or 1)])\n",
    ),
    _verify(
        "goes on after a wrong draft",
        LOOP,
        "    accepted = sum(one.token == draft for one, draft in zip(drawn, drafts, strict=False))\n",
    ),
    _verify(
        "all or nothing",
        LOOP,
        "    if all(one.token == draft for one, draft in zip(drawn, drafts, strict=False)):\n"
        "        accepted = len(drafts)\n",
    ),
    _verify(
        "accepts any draft that was drawn somewhere",
        "drawn[accepted].token == drafts[accepted]",
        "drafts[accepted] in [one.token for one in drawn]",
    ),
    _verify(
        "makes new tokens, without what the model said about them",
        TAKEN,
        "    return [*(Sampled(token) for token in drafts[:accepted]), drawn[accepted]]\n",
    ),
]

# Task 5.
KEPT = "    kept = -(-num_tokens // table.allocator.block_size)\n"
FREE = "    table.allocator.free(rejected)\n"


def _rewind(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.5", "drafts", idea, old, new)


REWIND = [
    _rewind(
        "gives back the block that is full in part",
        KEPT,
        "    kept = num_tokens // table.allocator.block_size\n",
    ),
    _rewind("keeps one block at least", KEPT, KEPT.rstrip() + " or 1\n"),
    _rewind(
        "gives back only blocks without other references",
        FREE,
        "    table.allocator.free([one for one in rejected if table.allocator.reference_counts[one] == 1])\n",
    ),
]

# Task 6.
FIRST = "    k, probability = 0, rate\n"
WHILE = (
    "    while k < most and (useful + probability) * seconds(rows + k) > useful * seconds(rows + k + 1):\n"
)
NEXT = "        k, useful, probability = k + 1, useful + probability, probability * rate\n"


def _length(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.6", "drafts", idea, old, new)


LENGTH = [
    _length("the first draft has the probability of the second", FIRST, FIRST.replace("rate", "rate * rate")),
    _length(
        "looks for the best of all numbers",
        FIRST + WHILE + NEXT + "    return k\n",
        "    sums = [useful + sum(rate**i for i in range(1, k + 1)) for k in range(most + 1)]\n"
        "    return max(range(most + 1), key=lambda k: sums[k] / seconds(rows + k))\n",
    ),
    _length(
        "the costs are always those of the first draft",
        WHILE,
        WHILE.replace("rows + k)", "rows)").replace("rows + k + 1)", "rows + 1)"),
    ),
    _length("all rows of the step are useful", FIRST, FIRST + "    useful = rows\n"),
    _length("a draft that changes nothing is taken", WHILE, WHILE.replace("> useful", ">= useful")),
    _length("one draft too many", WHILE, WHILE.replace("k < most", "k <= most")),
]

MUTANTS = [
    *LOOKUP,
    *PLAN,
    *PACK,
    *VERIFY,
    *REWIND,
    *LENGTH,
]

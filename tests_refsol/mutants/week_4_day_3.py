"""Wrong solutions of Week 4 Day 3."""

from authors.mutants import Mutant


def _mutant(task: str, file: str, idea: str, old: str, new: str) -> Mutant:
    return Mutant(task, idea, f"speculation/{file}.py", serving=(old, new))


# Task 1.
POSITIONS = "        for position in range(self.num_indexed, len(tokens)):\n"
NGRAMS = "            for n in range(self.shortest, min(self.longest, position) + 1):\n"
STORE = "                self.next_position[tuple(tokens[position - n : position])] = position\n"
COUNT = "        self.num_indexed = len(tokens)\n"
LENGTHS = "range(min(self.longest, len(tokens)), self.shortest - 1, -1)"
FOUND = "            if start is not None:\n"
RESULT = "                return [tokens[start + i % (len(tokens) - start)] for i in range(k)]\n"
WALK = f"        for n in {LENGTHS}:\n            start = self.next_position.get(tuple(tokens[len(tokens) - n :]))\n"
BODY = POSITIONS + NGRAMS + STORE + COUNT + WALK + FOUND + RESULT


def _lookup(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.1", "prompt_lookup", idea, old, new)


LOOKUP = [
    _lookup(
        "the n-gram at the end of the text finds itself",
        BODY,
        BODY.replace(POSITIONS, POSITIONS.replace("len(tokens))", "len(tokens) + 1)")).replace(
            RESULT, "                return list(tokens[start : start + k])\n"
        ),
    ),
    _lookup(
        "the shortest n-gram decides", LENGTHS, "range(self.shortest, min(self.longest, len(tokens)) + 1)"
    ),
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
        "loses the n-grams that lie across the border of two calls",
        NGRAMS,
        NGRAMS.replace("position) + 1", "position - self.num_indexed) + 1"),
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
KNOWN = "            known, drafts = len(sequence.known_tokens), drafts[:left]\n"
MISSING = "            missing = table.missing(known + len(drafts))\n"
ROOM = "            if missing and not self.allocator.can_allocate(missing):\n"
FIT = "                drafts = drafts[: table.capacity - known]\n"
RESERVE = "                table.reserve(known + len(drafts))\n"
ENTRY = "Drafted(sequence, plan[number].start, plan[number].size, tuple(drafts))"
SHRINK = "                left -= len(drafts)\n"


def _plan(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.2", "speculative_scheduler", idea, old, new)


PLAN = [
    _plan("takes the watermark's blocks", ROOM, ROOM.replace("(missing)", "(missing, keep_watermark=False)")),
    _plan(
        "asks for blocks for the drafts alone",
        MISSING,
        "            missing = -(-len(drafts) // self.allocator.block_size)\n",
    ),
    _plan(
        "reserves for drafts that the budget cuts",
        KNOWN,
        "            known = len(sequence.known_tokens)\n"
        "            if self.allocator.can_allocate(table.missing(known + len(drafts))):\n"
        "                table.reserve(known + len(drafts))\n"
        "            drafts = drafts[:left]\n",
    ),
    _plan(
        "drafts that free blocks cut take budget as well",
        SHRINK,
        "                left -= len(proposals[number])\n",
    ),
    _plan(
        "asks for permission where no block is missing",
        ROOM + FIT,
        ROOM.replace("missing and ", "") + FIT.replace("\n", " if missing else []\n"),
    ),
    _plan("reserves nothing", RESERVE, ""),
    _plan(
        "preempts the youngest request for a draft",
        ROOM,
        "            while missing and not self.allocator.can_allocate(missing) and self.running[-1] is not sequence:\n"
        "                self.preempt(self.running[-1])\n" + ROOM,
    ),
    _plan(
        "the size of an entry includes its drafts",
        ENTRY,
        ENTRY.replace("plan[number].size", "1 + len(drafts)"),
    ),
]

# Task 3.
IDS = "        batch.token_ids.extend(drafts)\n"
PLACES = "        batch.positions.extend(range(entry.start, stop))\n"
PAST = "        batch.context_lens.append(entry.start)\n"
ROWS = "batch.sample_rows.extend(range(rows - 1 - len(drafts), rows))"


def _pack(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.3", "drafts", idea, old, new)


PACK = [
    _pack("only the last row is sampled", ROWS, "batch.sample_rows.append(rows - 1)"),
    _pack(
        "every row of an entry is sampled",
        ROWS,
        "batch.sample_rows.extend(range(batch.query_start[-2], rows))",
    ),
    _pack(
        "drafts come before the known token",
        IDS,
        "        batch.token_ids[len(batch.token_ids) - entry.size : len(batch.token_ids) - entry.size] = drafts\n",
    ),
    _pack("no ids of drafts", IDS, ""),
    _pack(
        "all drafts have the position after the known tokens",
        PLACES,
        "        batch.positions.extend([*range(entry.start, entry.stop), *[entry.stop] * len(drafts)])\n",
    ),
    _pack("the drafts are a past", PAST, PAST.replace("entry.start", "entry.start + len(drafts)")),
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
        "a wrong draft is not replaced",
        TAKEN,
        "    return list(drawn[: accepted + (accepted == len(drafts))])\n",
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
        LOOP,
        LOOP.replace(
            "drawn[accepted].token == drafts[accepted]", "drafts[accepted] in [one.token for one in drawn]"
        ),
    ),
    _verify(
        "compares a draft with the draw after it",
        LOOP,
        LOOP.replace("drawn[accepted]", "drawn[accepted + 1]"),
    ),
    _verify("no draft is accepted", TAKEN, "    return list(drawn[:1])\n"),
    _verify(
        "makes new tokens, without what the model said about them",
        TAKEN,
        "    return [*(Sampled(token) for token in drafts[:accepted]), drawn[accepted]]\n",
    ),
]

# Task 5.
KEPT = "    kept = -(-num_tokens // table.allocator.block_size)\n"
REJECTED = "    rejected = table.blocks[kept:]\n"
DELETE = "    del table.blocks[kept:]\n"
FREE = "    table.allocator.free(rejected)\n"


def _rewind(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.5", "drafts", idea, old, new)


REWIND = [
    _rewind(
        "gives back the block that is full in part",
        KEPT,
        "    kept = num_tokens // table.allocator.block_size\n",
    ),
    _rewind(
        "keeps a block after a whole number of blocks",
        KEPT,
        "    kept = num_tokens // table.allocator.block_size + 1\n",
    ),
    _rewind("counts tokens as blocks", KEPT, "    kept = num_tokens\n"),
    _rewind("keeps one block at least", KEPT, KEPT.rstrip() + " or 1\n"),
    _rewind("frees the blocks, and does not forget them", DELETE, ""),
    _rewind(
        "gives back one block",
        REJECTED + DELETE,
        "    rejected = table.blocks[kept:][-1:]\n    del table.blocks[len(table.blocks) - len(rejected) :]\n",
    ),
    _rewind(
        "gives all blocks back and reserves others",
        REJECTED + DELETE + FREE,
        "    table.allocator.free(table.blocks)\n    table.blocks = table.allocator.allocate(kept)[::-1]\n",
    ),
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
    _length("the first draft is certain", FIRST, FIRST.replace("rate", "1.0")),
    _length("the first draft has the probability of the second", FIRST, FIRST.replace("rate", "rate * rate")),
    _length("at most one draft", NEXT, NEXT + "        break\n"),
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

MUTANTS = [*LOOKUP, *PLAN, *PACK, *VERIFY, *REWIND, *LENGTH]

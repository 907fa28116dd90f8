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
        "the first occurrence wins",
        STORE,
        "                self.next_position.setdefault(tuple(tokens[position - n : position]), position)\n",
    ),
    _lookup(
        "the shortest n-gram decides",
        LENGTHS,
        "range(self.shortest, min(self.longest, len(tokens)) + 1)",
    ),
    _lookup(
        "only n-grams of the longest length count",
        LENGTHS,
        "(self.longest,)",
    ),
    _lookup(
        "n-grams of the longest length are not looked for",
        LENGTHS,
        "range(min(self.longest, len(tokens) + 1) - 1, self.shortest - 1, -1)",
    ),
    _lookup(
        "n-grams of the longest length are not indexed",
        NGRAMS,
        "            for n in range(self.shortest, min(self.longest, position + 1)):\n",
    ),
    _lookup(
        "n-grams of the shortest length are not indexed",
        NGRAMS,
        NGRAMS.replace("self.shortest", "self.shortest + 1"),
    ),
    _lookup(
        "indexes the whole text in every call",
        COUNT,
        "",
    ),
    _lookup(
        "begins each call with an empty index",
        POSITIONS,
        "        self.next_position = {}\n" + POSITIONS,
    ),
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
        "repeats the n-gram itself",
        RESULT,
        RESULT.replace(
            "tokens[start + i % (len(tokens) - start)]", "tokens[start - n + i % (len(tokens) - start + n)]"
        ),
    ),
    _lookup(
        "begins one token too late",
        RESULT,
        RESULT.replace("return [", "start = min(start + 1, len(tokens) - 1)\n                return ["),
    ),
    _lookup(
        "stops at the end of the text",
        RESULT,
        "                return list(tokens[start : start + k])\n",
    ),
    _lookup(
        "goes on with the beginning of the text",
        RESULT,
        RESULT.replace("start + i % (len(tokens) - start)", "(start + i) % len(tokens)"),
    ),
    _lookup(
        "repeats the last token of the text",
        RESULT,
        RESULT.replace("start + i % (len(tokens) - start)", "min(start + i, len(tokens) - 1)"),
    ),
    _lookup(
        "looks up n-grams that are longer than the text",
        LENGTHS,
        "range(self.longest, self.shortest - 1, -1)",
    ),
    _lookup("one draft too many", RESULT, RESULT.replace("range(k)", "range(k + 1)")),
]

# Task 2.
LEFT = "        left = self.max_num_batched_tokens - sum(entry.size for entry in plan)\n"
KNOWN = "            known, drafts = len(sequence.known_tokens), drafts[:left]\n"
MISSING = "            missing = table.missing(known + len(drafts))\n"
ROOM = "            if missing and not self.allocator.can_allocate(missing):\n"
FIT = "                drafts = drafts[: table.capacity - known]\n"
ANY = "            if drafts:\n"
RESERVE = "                table.reserve(known + len(drafts))\n"
ENTRY = "Drafted(sequence, plan[number].start, plan[number].size, tuple(drafts))"
SHRINK = "                left -= len(drafts)\n"


def _plan(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.2", "speculative_scheduler", idea, old, new)


PLAN = [
    _plan(
        "the drafts have a budget of their own",
        LEFT,
        "        left = self.max_num_batched_tokens\n",
    ),
    _plan(
        "every entry of the plan counts as one token",
        LEFT,
        "        left = self.max_num_batched_tokens - len(plan)\n",
    ),
    _plan(
        "only decodes count against the budget",
        LEFT,
        LEFT.replace("for entry in plan", "for entry in plan if entry.is_decode"),
    ),
    _plan("every request has the whole rest of the budget", SHRINK, ""),
    _plan(
        "an entry with drafts takes one token of the rest",
        SHRINK,
        "                left -= 1\n",
    ),
    _plan(
        "counts the decode once more",
        SHRINK,
        "                left -= 1 + len(drafts)\n",
    ),
    _plan(
        "drafts that were cut take budget as well",
        KNOWN,
        KNOWN + "            left -= len(drafts)\n",
    ),
    _plan(
        "all or nothing: drafts that the budget cuts are dropped",
        KNOWN,
        KNOWN.replace("drafts[:left]", "drafts if len(drafts) <= left else []"),
    ),
    _plan(
        "takes the watermark's blocks",
        ROOM,
        ROOM.replace("(missing)", "(missing, keep_watermark=False)"),
    ),
    _plan(
        "without a free block there are no drafts at all",
        FIT,
        "                drafts = []\n",
    ),
    _plan(
        "one token of a last block stays free",
        FIT,
        "                drafts = drafts[: max(0, table.capacity - known - 1)]\n",
    ),
    _plan(
        "asks for blocks for the drafts alone",
        MISSING,
        "            missing = -(-len(drafts) // self.allocator.block_size)\n",
    ),
    _plan(
        "ends at the first request that has no block",
        FIT,
        FIT + "                if not drafts:\n                    return\n",
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
        "reserves a block more than is needed",
        RESERVE,
        RESERVE.replace("len(drafts)", "len(drafts) + self.allocator.block_size").replace(
            "table.reserve", "self.allocator.can_allocate(missing + 1) and table.reserve"
        ),
    ),
    _plan(
        "preempts the youngest request for a draft",
        ROOM,
        "            while missing and not self.allocator.can_allocate(missing) and self.running[-1] is not sequence:\n"
        "                self.preempt(self.running[-1])\n" + ROOM,
    ),
    _plan("an entry without drafts becomes one with none", ANY, "            if True:\n"),
    _plan(
        "the size of an entry includes its drafts",
        ENTRY,
        ENTRY.replace("plan[number].size", "1 + len(drafts)"),
    ),
    _plan(
        "the entry begins with the drafts",
        ENTRY,
        ENTRY.replace("plan[number].start", "known"),
    ),
    _plan(
        "goes through the plan, and not through the proposals",
        "        for number, drafts in proposals.items():\n",
        "        for number, drafts in sorted(proposals.items()):\n",
    ),
    _plan(
        "the drafts are known tokens",
        ENTRY + "\n",
        ENTRY + "\n                sequence.known_tokens.extend(drafts)\n",
    ),
]

# Task 3.
IDS = "        batch.token_ids.extend(drafts)\n"
PLACES = "        batch.positions.extend(range(entry.start, stop))\n"
SLOTS = "        batch.slots.extend(table.slots(entry.start, stop))\n"
START = "        batch.query_start.append(len(batch.token_ids))\n"
PAST = "        batch.context_lens.append(entry.start)\n"
NEEDS = "        if entry.needs_token:\n"
ROWS = "batch.sample_rows.extend(range(rows - 1 - len(drafts), rows))"
SAMPLING = "batch.sampling.extend([entry.sequence.sampling] * (1 + len(drafts)))"


def _pack(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.3", "drafted", idea, old, new)


PACK = [
    _pack(
        "only the last row is sampled",
        ROWS,
        "batch.sample_rows.append(rows - 1)",
    ),
    _pack(
        "only the drafts are sampled",
        ROWS,
        ROWS.replace("rows - 1 - len", "rows - len"),
    ),
    _pack(
        "the row after the last draft is not sampled",
        ROWS,
        ROWS.replace(", rows)", ", rows - bool(drafts))"),
    ),
    _pack(
        "every row of an entry is sampled",
        ROWS,
        "batch.sample_rows.extend(range(batch.query_start[-2], rows))",
    ),
    _pack(
        "rows are counted within the entry",
        ROWS,
        "batch.sample_rows.extend(range(1 + len(drafts)))",
    ),
    _pack(
        "the sampled rows are in reverse order",
        ROWS,
        ROWS.replace("range(rows - 1 - len(drafts), rows)", "reversed(range(rows - 1 - len(drafts), rows))"),
    ),
    _pack(
        "parameters for one row of each request",
        SAMPLING,
        "batch.sampling.append(entry.sequence.sampling)",
    ),
    _pack("rows in the middle of a prompt are sampled", NEEDS, "        if True:\n"),
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
    _pack(
        "the first draft has the position of the last known token",
        PLACES,
        "        batch.positions.extend([*range(entry.start, entry.stop), *range(entry.stop - 1, stop - 1)])\n",
    ),
    _pack("drafts have no slots", SLOTS, SLOTS.replace("stop))", "entry.stop))")),
    _pack(
        "an entry ends with its known tokens",
        START,
        START.replace("len(batch.token_ids)", "len(batch.token_ids) - len(drafts)"),
    ),
    _pack(
        "the drafts are a past",
        PAST,
        PAST.replace("entry.start", "entry.start + len(drafts)"),
    ),
    _pack(
        "the known token is a past",
        PAST,
        PAST.replace("entry.start", "entry.stop - 1 + bool(drafts)"),
    ),
    _pack(
        "packing makes the drafts known",
        "    # END TASK\n",
        "        entry.sequence.known_tokens.extend(drafts)\n    # END TASK\n",
    ),
]

# Task 4.
LOOP = """    while accepted < len(drafts) and drawn[accepted].token == drafts[accepted]:
        accepted += 1
"""
TAKEN = "    return list(drawn[: accepted + 1])\n"


def _verify(idea: str, old: str, new: str) -> Mutant:
    return _mutant("4.3.4", "verify", idea, old, new)


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
        "one token more than the replacement",
        TAKEN,
        "    return list(drawn[: accepted + 2])\n",
    ),
    _verify(
        "goes on after a wrong draft",
        LOOP,
        "    accepted = sum(one.token == draft for one, draft in zip(drawn, drafts, strict=False))\n",
    ),
    _verify(
        "goes up to the last right draft",
        LOOP,
        "    for place, draft in enumerate(drafts):\n        if drawn[place].token == draft:\n"
        "            accepted = place + 1\n",
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
    _verify(
        "compares a draft with the last draw",
        LOOP,
        LOOP.replace("drawn[accepted]", "drawn[-1]"),
    ),
    _verify(
        "the last draft is never accepted",
        LOOP,
        LOOP.replace("accepted < len(drafts)", "accepted < len(drafts) - 1"),
    ),
    _verify("no draft is accepted", TAKEN, "    return list(drawn[:1])\n"),
    _verify("every draft is accepted", TAKEN, "    return list(drawn)\n"),
    _verify(
        "counts the replacement twice",
        TAKEN,
        "    return [*drawn[: accepted + 1], *drawn[accepted : min(accepted + 1, len(drafts))]]\n",
    ),
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
    return _mutant("4.3.5", "rewind", idea, old, new)


REWIND = [
    _rewind("one block too few is given back", KEPT, KEPT.rstrip() + " + 1\n"),
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
    _rewind(
        "keeps what others can find, and nothing else",
        KEPT,
        "    kept = table.num_registered // table.allocator.block_size\n",
    ),
    _rewind("keeps one block at least", KEPT, KEPT.rstrip() + " or 1\n"),
    _rewind("does nothing", DELETE + FREE, ""),
    _rewind("forgets the blocks, and does not free them", FREE, ""),
    _rewind("frees the blocks, and does not forget them", DELETE, ""),
    _rewind(
        "gives back one block",
        REJECTED + DELETE,
        "    rejected = table.blocks[kept:][-1:]\n    del table.blocks[len(table.blocks) - len(rejected) :]\n",
    ),
    _rewind(
        "gives back the blocks in front",
        REJECTED + DELETE,
        "    rejected = table.blocks[: len(table.blocks) - kept]\n    del table.blocks[: len(rejected)]\n",
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
    return _mutant("4.3.6", "draft_length", idea, old, new)


LENGTH = [
    _length(
        "the second draft is as likely as the first",
        NEXT,
        NEXT.replace("probability * rate", "probability"),
    ),
    _length("the first draft is certain", FIRST, FIRST.replace("rate", "1.0")),
    _length(
        "the first draft has the probability of the second",
        FIRST,
        FIRST.replace("rate", "rate * rate"),
    ),
    _length(
        "asks only about the first draft",
        NEXT,
        NEXT.replace("        k,", "        return most\n        k,"),
    ),
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
    _length("compares with the step without drafts", WHILE, WHILE.replace("rows + k)", "rows)")),
    _length(
        "the useful rows do not grow",
        NEXT,
        NEXT.replace("useful + probability", "useful"),
    ),
    _length(
        "all rows of the step are useful",
        FIRST,
        FIRST + "    useful = rows\n",
    ),
    _length("one row of the step is useful", FIRST, FIRST + "    useful = 1\n"),
    _length(
        "a draft that changes nothing is taken",
        WHILE,
        WHILE.replace("> useful", ">= useful"),
    ),
    _length("one draft too many", WHILE, WHILE.replace("k < most", "k <= most")),
    _length("no limit", WHILE, WHILE.replace("k < most", "k < 99")),
    _length(
        "compares the draft's own tokens per second",
        WHILE,
        "    while k < most and probability * seconds(rows + k) > seconds(rows + k + 1) - seconds(rows + k):\n",
    ),
]

MUTANTS = [*LOOKUP, *PLAN, *PACK, *VERIFY, *REWIND, *LENGTH]

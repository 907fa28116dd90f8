"""Wrong solutions of Week 3 Day 4."""

from authors.mutants import Mutant

SIZES, BUCKETS, PADDING = "buckets/bucket_sizes.py", "buckets/buckets.py", "buckets/padding.py"
INPUTS, BUDGET = "buckets/padding.py", "batching/padded_budget.py"

MUTANTS = [
    Mutant(
        "3.4.1",
        "pads a value that is a size to the next one",
        SIZES,
        serving=(
            "        if size >= value:\n            return size\n",
            "        if size > value or size == sizes[-1] == value:\n            return size\n",
        ),
    ),
    Mutant(
        "3.4.1",
        "takes the last size for what is above it",
        SIZES,
        serving=(
            '    raise ValueError(f"{value} is above',
            '    return sizes[-1]\n    raise ValueError(f"{value} is above',
        ),
    ),
    Mutant(
        "3.4.2",
        "a float that is a little too large goes up",
        SIZES,
        serving=("math.ceil(round(value / step, 6)) * step", "math.ceil(value / step) * step"),
    ),
    Mutant(
        "3.4.2", "rounds the end above the end", SIZES, serving=("min(most, math.ceil", "max(0, math.ceil")
    ),
    Mutant(
        "3.4.3",
        "needs both limits to be broken",
        SIZES,
        serving=(
            "padding > limit or (pad_max is not None and padding > pad_max)",
            "padding > limit and (pad_max is None or padding > pad_max)",
        ),
    ),
    Mutant(
        "3.4.4",
        "only a step with many rows has chunks",
        BUCKETS,
        serving=(
            "has_chunks = len(batch.token_ids) > len(batch.context_lens)",
            "has_chunks = len(batch.token_ids) > self.max_num_seqs",
        ),
    ),
    Mutant(
        "3.4.4",
        "rows do not count as pages",
        BUCKETS,
        serving=("bucketize(max(decode_pages, rows), sizes)", "bucketize(decode_pages, sizes)"),
    ),
    Mutant(
        "3.4.5",
        "counts requests and not their rows",
        BUCKETS,
        serving=(
            "return chunks + decodes <= self.max_num_seqs and 2 * chunks + decodes <= bucket.tokens",
            "return chunks + decodes <= self.max_num_seqs",
        ),
    ),
    Mutant(
        "3.4.5",
        "rounds the number of readers down",
        BUCKETS,
        serving=("(math.ceil(pages / self.pages_per_request) for", "(pages // self.pages_per_request for"),
    ),
    Mutant(
        "3.4.5",
        "ignores how many pages there are",
        BUCKETS,
        serving=("chunk_pages + decode_pages > self.num_pages", "chunk_pages > self.num_pages"),
    ),
    Mutant(
        "3.4.6",
        "begins with the smallest",
        BUCKETS,
        serving=(
            "return sorted(found, key=lambda bucket: bucket.size, reverse=True)",
            "return sorted(found, key=lambda bucket: bucket.size)",
        ),
    ),
    Mutant(
        "3.4.6",
        "ends the pages of decodes before the last size",
        BUCKETS,
        serving=("fewest <= pages <= most}", "fewest <= pages <= max(fewest, self._most_pages(rows))}"),
    ),
    Mutant(
        "3.4.7",
        "fills up with row 0",
        PADDING,
        serving=("chosen = [*reads.rows, *others][:rows]", "chosen = [*reads.rows, *[0] * rows][:rows]"),
    ),
    Mutant(
        "3.4.7",
        "sorts the rows",
        PADDING,
        serving=("chosen = [*reads.rows, *others][:rows]", "chosen = sorted([*reads.rows, *others][:rows])"),
    ),
    Mutant(
        "3.4.8",
        "no head where nobody is sampled",
        INPUTS,
        serving=(
            "pad_to(inputs.sample_rows or [], rows, 0)",
            "pad_to(inputs.sample_rows or [], rows if inputs.sample_rows else 0, 0)",
        ),
    ),
    Mutant(
        "3.4.9",
        "does not pad the decodes of a call of their own",
        BUDGET,
        serving=(
            "apart = bucketize(decodes, buckets.decode_tokens) if separate and decodes else 0",
            "apart = decodes if separate else 0",
        ),
    ),
    Mutant("3.4.10", "cuts where both are equal", BUDGET, serving=("missing > above", "missing >= above")),
    Mutant(
        "3.4.10",
        "delays everything below the first size",
        BUDGET,
        serving=(
            "return above if below and missing > above else 0",
            "return above if missing > above else 0",
        ),
    ),
    Mutant(
        "3.4.2",
        "rounds to one decimal before it rounds up",
        SIZES,
        serving=("math.ceil(round(value / step, 6))", "math.ceil(round(value / step, 1))"),
    ),
    Mutant(
        "3.4.4",
        "counts what is sampled instead of the requests",
        BUCKETS,
        serving=("> len(batch.context_lens)", "> len(batch.sample_rows)"),
    ),
    Mutant(
        "3.4.8",
        "the layers with a window read what the others read",
        INPUTS,
        serving=("windowed if has_window else None", "decodes if has_window else None"),
    ),
    Mutant(
        "3.4.8",
        "the positions of padding go on, beyond the model's context",
        INPUTS,
        serving=(
            "pad_to(inputs.positions, tokens, 0)",
            "[*inputs.positions, *range(inputs.positions[-1] + 1, inputs.positions[-1] + 1 + tokens)][:tokens]",
        ),
    ),
]

"""Wrong solutions of Week 3 Day 4."""

from authors.mutants import Mutant, wrong

SIZES, BUCKETS, PADDING = "buckets/bucket_sizes.py", "buckets/buckets.py", "buckets/padding.py"
INPUTS, BUDGET = "buckets/padding.py", "batching/padded_budget.py"

MUTANTS = [
    *wrong(
        "3.4.1",
        SIZES,
        (
            "pads a value that is a size to the next one",
            "        if size >= value:\n            return size\n",
            "        if size > value or size == sizes[-1] == value:\n            return size\n",
        ),
        (
            "takes the last size for what is above it",
            '    raise ValueError(f"{value} is above',
            '    return sizes[-1]\n    raise ValueError(f"{value} is above',
        ),
        part="serving",
    ),
    *wrong(
        "3.4.2",
        SIZES,
        (
            "a float that is a little too large goes up",
            "math.ceil(round(value / step, 6)) * step",
            "math.ceil(value / step) * step",
        ),
        ("rounds the end above the end", "min(most, math.ceil", "max(0, math.ceil"),
        (
            "rounds to one decimal before it rounds up",
            "math.ceil(round(value / step, 6))",
            "math.ceil(round(value / step, 1))",
        ),
        part="serving",
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
    *wrong(
        "3.4.4",
        BUCKETS,
        (
            "only a step with many rows has chunks",
            "has_chunks = len(batch.token_ids) > len(batch.context_lens)",
            "has_chunks = len(batch.token_ids) > self.max_num_seqs",
        ),
        (
            "rows do not count as pages",
            "bucketize(max(decode_pages, rows), sizes)",
            "bucketize(decode_pages, sizes)",
        ),
        (
            "counts what is sampled instead of the requests",
            "> len(batch.context_lens)",
            "> len(batch.sample_rows)",
        ),
        part="serving",
    ),
    *wrong(
        "3.4.5",
        BUCKETS,
        (
            "counts requests and not their rows",
            "return chunks + decodes <= self.max_num_seqs and 2 * chunks + decodes <= bucket.tokens",
            "return chunks + decodes <= self.max_num_seqs",
        ),
        (
            "rounds the number of readers down",
            "(math.ceil(pages / self.pages_per_request) for",
            "(pages // self.pages_per_request for",
        ),
        (
            "ignores how many pages there are",
            "chunk_pages + decode_pages > self.num_pages",
            "chunk_pages > self.num_pages",
        ),
        part="serving",
    ),
    *wrong(
        "3.4.6",
        BUCKETS,
        (
            "begins with the smallest",
            "return sorted(found, key=lambda bucket: bucket.size, reverse=True)",
            "return sorted(found, key=lambda bucket: bucket.size)",
        ),
        (
            "ends the pages of decodes before the last size",
            "fewest <= pages <= most}",
            "fewest <= pages <= max(fewest, self._most_pages(rows))}",
        ),
        part="serving",
    ),
    *wrong(
        "3.4.7",
        PADDING,
        (
            "fills up with row 0",
            "chosen = [*reads.rows, *others][:rows]",
            "chosen = [*reads.rows, *[0] * rows][:rows]",
        ),
        (
            "sorts the rows",
            "chosen = [*reads.rows, *others][:rows]",
            "chosen = sorted([*reads.rows, *others][:rows])",
        ),
        part="serving",
    ),
    *wrong(
        "3.4.8",
        INPUTS,
        (
            "no head where nobody is sampled",
            "pad_to(inputs.sample_rows or [], rows, 0)",
            "pad_to(inputs.sample_rows or [], rows if inputs.sample_rows else 0, 0)",
        ),
        (
            "the layers with a window read what the others read",
            "windowed if has_window else None",
            "decodes if has_window else None",
        ),
        (
            "the positions of padding go on, beyond the model's context",
            "pad_to(inputs.positions, tokens, 0)",
            "[*inputs.positions, *range(inputs.positions[-1] + 1, inputs.positions[-1] + 1 + tokens)][:tokens]",
        ),
        part="serving",
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
    *wrong(
        "3.4.10",
        BUDGET,
        ("cuts where both are equal", "missing > above", "missing >= above"),
        (
            "delays everything below the first size",
            "return above if below and missing > above else 0",
            "return above if missing > above else 0",
        ),
        part="serving",
    ),
]

"""Wrong solutions of Week 2 Day 7: the policies."""

from authors.mutants import wrong

SIZE, CHUNKER = "chunked_prefill/chunk.py", "chunked_prefill/adaptive_chunker.py"
METRICS, SWEEP, PRIORITY = (
    "chunked_prefill/chunked_prefill_metrics.py",
    "chunked_prefill/sweep.py",
    "chunked_prefill/priority_scheduler.py",
)
CLIP = "largest_size(sizes, min(available_memory, max(wanted, sizes[0])))"
BASE = "largest_size(self.sizes, base_chunk_size) or self.sizes[0]"

MUTANTS = [
    *wrong(
        "2.7.4",
        SIZE,
        ("ignores available_memory", CLIP, "largest_size(sizes, max(wanted, sizes[0]))"),
        (
            "small chunks at 80 % of the slots already",
            "5 * active_decode_requests > 4 * batch_size",
            "5 * active_decode_requests >= 4 * batch_size",
        ),
        (
            "counts running requests instead of their share",
            "5 * active_decode_requests > 4 * batch_size",
            "active_decode_requests > 4",
        ),
        ("a prompt of 2,048 tokens is long already", "sequence_length > 2048", "sequence_length >= 2048"),
        (
            "looks at the prompt first, so a long one has large chunks while all slots wait",
            "elif 5 * active_decode_requests > 4 * batch_size",
            "elif sequence_length <= 2048 and 5 * active_decode_requests > 4 * batch_size",
        ),
        (
            "waits with the end of a prompt that fits, for ever",
            "if sequence_length <= available_memory < sizes[0]:",
            "if False:",
        ),
        ("small chunks also when nothing decodes", "        wanted = sizes[-1]", "        wanted = 128"),
        (
            "rounds the share of the slots down to whole per cent",
            "5 * active_decode_requests > 4 * batch_size",
            "100 * active_decode_requests // batch_size > 80",
        ),
        part="serving",
    ),
    *wrong(
        "2.7.5",
        CHUNKER,
        (
            "the largest size also for a few that wait",
            "if decode_pressure == 0:",
            "if decode_pressure < 0.1:",
        ),
        (
            "without history the next larger size, when the base is between two",
            BASE,
            "next((size for size in self.sizes if size >= base_chunk_size), self.sizes[-1])",
        ),
        (
            "steps up from its first choice before anything was observed",
            "if self._size and self._recent:",
            "if self._size:",
        ),
        ("falls from the smallest size to the largest", "max(index - 1, 0)", "index - 1"),
        (
            "leaves a size before it has seen one chunk of it",
            "        if not seen:\n            return self._size\n",
            "        if not seen:\n            return above\n",
        ),
        (
            "tries a larger size after every good chunk: up and down, and every second gap is too long",
            "if len(seen_above) < 2 or median_low(seen_above) <= UP * self.decode_latency_target:",
            "if True:",
        ),
        part="serving",
    ),
    *wrong(
        "2.7.7",
        METRICS,
        (
            "the average starts at 0, and says 10 % of the truth",
            "self._chunk_sum / self._chunk_weight if self._chunk_weight else 0.0",
            "self._chunk_sum",
        ),
        (
            "no decode yet: a ratio of 0 instead of infinity",
            "self.prefill_chunks_processed / self.decode_steps if self.decode_steps else math.inf",
            "self.prefill_chunks_processed / max(self.decode_steps, 1)",
        ),
        (
            "p99 is the mean",
            "sorted(values)[math.ceil(p * len(values) / 100) - 1]",
            "sum(values) / len(values)",
        ),
        (
            "one rank too high",
            "math.ceil(p * len(values) / 100) - 1",
            "min(math.ceil(p * len(values) / 100), len(values) - 1)",
        ),
        (
            "TTFT without the time before the prefill",
            "self.ttft[request_id] = time - self._arrived[request_id]",
            "self.ttft[request_id] = min(time - self._arrived[request_id], self.prefill_seconds"
            " / max(self.prefill_chunks_processed, 1))",
        ),
        (
            "every chunk that somebody waits for is a stall, also the one that was agreed",
            "math.ceil(self._waited / self.prefill_step) - 1",
            "math.ceil(self._waited / self.prefill_step)",
        ),
        (
            "decode steps are not counted: chunks by steps are always infinite",
            "        self.decode_steps += 1\n",
            "",
        ),
        ("the longest gap stays 0", "self.longest_gap = max(", "self.longest_gap = min("),
        part="serving",
    ),
    *wrong(
        "2.7.8",
        SWEEP,
        (
            "the same order in every round: the first size always pays for the warm-up",
            "first = turn % len(steps)",
            "first = 0 * turn",
        ),
        (
            "the mean of the rounds: one accident decides",
            "median(numbers) if numbers",
            "sum(numbers) / len(numbers) if numbers",
        ),
        ("what is won is what is left", "else 1 - gap", "else gap"),
        (
            "rows in the order of the last round",
            "for step in steps}\n    whole",
            "for step in [*steps[first:], *steps[:first]]}\n    whole",
        ),
        part="serving",
    ),
    *wrong(
        "2.7.9",
        PRIORITY,
        (
            "a short batch prompt that leaves ends the wait of the oldest one",
            "            shorter = self.batch.shorter_than(tokens)\n",
            "            shorter = self.batch.shorter_than(tokens)\n            self._passed *= shorter is None\n",
        ),
        (
            "the count of who has passed is set back when a slot is kept",
            "        if interactive_only:\n",
            "        if interactive_only:\n            self._passed = 0\n",
            "PriorityScheduler.schedule_next",
        ),
        part="serving",
    ),
]

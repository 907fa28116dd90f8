"""Wrong solutions of Week 2 Day 7: the policies."""

from authors.mutants import Mutant

SIZE, CHUNKER = "chunked_prefill/chunk_size.py", "chunked_prefill/adaptive_chunker.py"
METRICS, SWEEP, PRIORITY = (
    "chunked_prefill/chunked_prefill_metrics.py",
    "chunked_prefill/sweep.py",
    "chunked_prefill/priority_scheduler.py",
)
CLIP = "largest_size(sizes, min(available_memory, max(wanted, sizes[0])))"
BASE = "largest_size(self.sizes, base_chunk_size) or self.sizes[0]"

MUTANTS = [
    Mutant(
        "2.7.4",
        "ignores available_memory",
        SIZE,
        serving=(CLIP, "largest_size(sizes, max(wanted, sizes[0]))"),
    ),
    Mutant(
        "2.7.4",
        "small chunks at 80 % of the slots already",
        SIZE,
        serving=(
            "5 * active_decode_requests > 4 * batch_size",
            "5 * active_decode_requests >= 4 * batch_size",
        ),
    ),
    Mutant(
        "2.7.4",
        "counts running requests instead of their share",
        SIZE,
        serving=("5 * active_decode_requests > 4 * batch_size", "active_decode_requests > 4"),
    ),
    Mutant(
        "2.7.4",
        "a prompt of 2,048 tokens is long already",
        SIZE,
        serving=("sequence_length > 2048", "sequence_length >= 2048"),
    ),
    Mutant(
        "2.7.4",
        "looks at the prompt first, so a long one has large chunks while all slots wait",
        SIZE,
        serving=(
            "elif 5 * active_decode_requests > 4 * batch_size",
            "elif sequence_length <= 2048 and 5 * active_decode_requests > 4 * batch_size",
        ),
    ),
    Mutant(
        "2.7.4",
        "waits with the end of a prompt that fits, for ever",
        SIZE,
        serving=("if sequence_length <= available_memory < sizes[0]:", "if False:"),
    ),
    Mutant(
        "2.7.4",
        "small chunks also when nothing decodes",
        SIZE,
        serving=("        wanted = sizes[-1]", "        wanted = 128"),
    ),
    Mutant(
        "2.7.4",
        "rounds the share of the slots down to whole per cent",
        SIZE,
        serving=(
            "5 * active_decode_requests > 4 * batch_size",
            "100 * active_decode_requests // batch_size > 80",
        ),
    ),
    Mutant(
        "2.7.5",
        "the largest size also for a few that wait",
        CHUNKER,
        serving=("if decode_pressure == 0:", "if decode_pressure < 0.1:"),
    ),
    Mutant(
        "2.7.5",
        "without history the next larger size, when the base is between two",
        CHUNKER,
        serving=(BASE, "next((size for size in self.sizes if size >= base_chunk_size), self.sizes[-1])"),
    ),
    Mutant(
        "2.7.5",
        "steps up from its first choice before anything was observed",
        CHUNKER,
        serving=("if self._size and self._recent:", "if self._size:"),
    ),
    Mutant(
        "2.7.5",
        "falls from the smallest size to the largest",
        CHUNKER,
        serving=("max(index - 1, 0)", "index - 1"),
    ),
    Mutant(
        "2.7.5",
        "leaves a size before it has seen one chunk of it",
        CHUNKER,
        serving=(
            "        if not seen:\n            return self._size\n",
            "        if not seen:\n            return above\n",
        ),
    ),
    Mutant(
        "2.7.5",
        "tries a larger size after every good chunk: up and down, and every second gap is too long",
        CHUNKER,
        serving=(
            "if len(seen_above) < 2 or median_low(seen_above) <= UP * self.decode_latency_target:",
            "if True:",
        ),
    ),
    Mutant(
        "2.7.7",
        "the average starts at 0, and says 10 % of the truth",
        METRICS,
        serving=("self._chunk_sum / self._chunk_weight if self._chunk_weight else 0.0", "self._chunk_sum"),
    ),
    Mutant(
        "2.7.7",
        "no decode yet: a ratio of 0 instead of infinity",
        METRICS,
        serving=(
            "self.prefill_chunks_processed / self.decode_steps if self.decode_steps else math.inf",
            "self.prefill_chunks_processed / max(self.decode_steps, 1)",
        ),
    ),
    Mutant(
        "2.7.7",
        "p99 is the mean",
        METRICS,
        serving=("sorted(values)[math.ceil(p * len(values) / 100) - 1]", "sum(values) / len(values)"),
    ),
    Mutant(
        "2.7.7",
        "one rank too high",
        METRICS,
        serving=(
            "math.ceil(p * len(values) / 100) - 1",
            "min(math.ceil(p * len(values) / 100), len(values) - 1)",
        ),
    ),
    Mutant(
        "2.7.7",
        "TTFT without the time before the prefill",
        METRICS,
        serving=(
            "self.ttft[request_id] = time - self._arrived[request_id]",
            "self.ttft[request_id] = min(time - self._arrived[request_id], self.prefill_seconds"
            " / max(self.prefill_chunks_processed, 1))",
        ),
    ),
    Mutant(
        "2.7.7",
        "every chunk that somebody waits for is a stall, also the one that was agreed",
        METRICS,
        serving=(
            "math.ceil(self._waited / self.prefill_step) - 1",
            "math.ceil(self._waited / self.prefill_step)",
        ),
    ),
    Mutant(
        "2.7.7",
        "decode steps are not counted: chunks by steps are always infinite",
        METRICS,
        serving=("        self.decode_steps += 1\n", ""),
    ),
    Mutant(
        "2.7.7",
        "the longest gap stays 0",
        METRICS,
        serving=("self.longest_gap = max(", "self.longest_gap = min("),
    ),
    Mutant(
        "2.7.8",
        "the same order in every round: the first size always pays for the warm-up",
        SWEEP,
        serving=("first = turn % len(steps)", "first = 0 * turn"),
    ),
    Mutant(
        "2.7.8",
        "the mean of the rounds: one accident decides",
        SWEEP,
        serving=("median(numbers) if numbers", "sum(numbers) / len(numbers) if numbers"),
    ),
    Mutant("2.7.8", "what is won is what is left", SWEEP, serving=("else 1 - gap", "else gap")),
    Mutant(
        "2.7.8",
        "rows in the order of the last round",
        SWEEP,
        serving=("for step in steps}\n    whole", "for step in [*steps[first:], *steps[:first]]}\n    whole"),
    ),
    Mutant(
        "2.7.9",
        "a short batch prompt that leaves ends the wait of the oldest one",
        PRIORITY,
        serving=(
            "            shorter = self.batch.shorter_than(tokens)\n",
            "            shorter = self.batch.shorter_than(tokens)\n            self._passed *= shorter is None\n",
        ),
    ),
    Mutant(
        "2.7.9",
        "the count of who has passed is set back when a slot is kept",
        PRIORITY,
        serving=(
            "        if interactive_only:\n",
            "        if interactive_only:\n            self._passed = 0\n",
        ),
        inside="PriorityScheduler.schedule_next",
    ),
]

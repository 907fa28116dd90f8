"""Wrong solutions of Week 2 Day 7: the policies."""

from authors.mutants import Mutant

SIZE, CHUNKER = "chunked_prefill/chunk_size.py", "chunked_prefill/adaptive_chunker.py"
METRICS, SWEEP, PRIORITY = (
    "chunked_prefill/chunked_prefill_metrics.py",
    "chunked_prefill/sweep.py",
    "chunked_prefill/priority_scheduler.py",
)
CLIP = "largest_size(sizes, min(available_memory, max(wanted, sizes[0])))"
BATCH_TURN = "if len(self.batch) and (self._passed >= self.patience or not len(self.interactive)):"
FORGET = """            self._recent = {size: seen for size, seen in self._recent.items() if size <= self._size}
"""
IGNORE = """        if chunk_size not in self.sizes:
            return
"""
NEIGHBOURS = "self.sizes[max(index - 1, 0)], self.sizes[min(index + 1, len(self.sizes) - 1)]"
BASE = "largest_size(self.sizes, base_chunk_size) or self.sizes[0]"
AGED = "            self._passed = 0\n            return self.batch.schedule_next()"

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
        "takes the memory that there is, whatever the ladder says",
        SIZE,
        serving=(CLIP, f"min(available_memory, {CLIP} or sizes[0]) if available_memory > 0 else 0"),
    ),
    Mutant(
        "2.7.4",
        "never waits: the smallest size, memory or not",
        SIZE,
        serving=(CLIP, f"{CLIP} or sizes[0]"),
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
        "begins a prompt that can never fit, and waits for memory in the middle of it for ever",
        SIZE,
        serving=("if active_decode_requests == 0 and sequence_length > available_memory:", "if False:"),
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
        "2.7.4",
        "what needs exactly the memory that there is does not fit",
        SIZE,
        serving=("sequence_length > available_memory:", "sequence_length >= available_memory:"),
    ),
    Mutant(
        "2.7.4",
        "the end of a prompt that fits exactly waits for ever",
        SIZE,
        serving=(
            "if sequence_length <= available_memory < sizes[0]:",
            "if sequence_length < available_memory < sizes[0]:",
        ),
    ),
    Mutant(
        "2.7.4",
        "the end of a prompt is no size of the ladder, though the smallest fits exactly",
        SIZE,
        serving=(
            "if sequence_length <= available_memory < sizes[0]:",
            "if sequence_length <= available_memory <= sizes[0]:",
        ),
    ),
    Mutant(
        "2.7.4",
        "a size that needs exactly the memory that there is does not fit",
        SIZE,
        serving=("min(available_memory, max(", "min(available_memory - 1, max("),
    ),
    Mutant(
        "2.7.5",
        "small chunks while nobody waits for a token",
        CHUNKER,
        serving=("if decode_pressure == 0:", "if decode_pressure < 0:"),
    ),
    Mutant(
        "2.7.5",
        "the largest size also for a few that wait",
        CHUNKER,
        serving=("if decode_pressure == 0:", "if decode_pressure < 0.1:"),
    ),
    Mutant(
        "2.7.5",
        "the choice for an idle moment is remembered: the next chunk that somebody waits for begins there",
        CHUNKER,
        serving=(
            "            return self.sizes[-1]\n        if self._size",
            "            self._size = self.sizes[-1]\n            return self._size\n        if self._size",
        ),
    ),
    Mutant(
        "2.7.5",
        "begins one size below the largest size when only idle chunks were observed",
        CHUNKER,
        serving=(
            "if self._size and self._recent:\n",
            "if self._recent:\n            self._size = self._size or self.sizes[-1]\n",
        ),
    ),
    Mutant(
        "2.7.5",
        "without history the largest size, while requests wait",
        CHUNKER,
        serving=(BASE, "self.sizes[-1]"),
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
        "does not record what it chose: every step is one from the first choice",
        CHUNKER,
        serving=("            self._size = self.next_size()\n", "            return self.next_size()\n"),
    ),
    Mutant(
        "2.7.5",
        "goes on from the chunk that was computed last, also by an idle moment",
        CHUNKER,
        serving=(
            "        self._chunks += 1\n",
            "        self._chunks += 1\n        self._size = chunk_size\n",
        ),
    ),
    Mutant(
        "2.7.5",
        "jumps down to the smallest size",
        CHUNKER,
        serving=(NEIGHBOURS, "self.sizes[0], self.sizes[min(index + 1, len(self.sizes) - 1)]"),
    ),
    Mutant(
        "2.7.5",
        "jumps up to the largest size",
        CHUNKER,
        serving=(NEIGHBOURS, "self.sizes[max(index - 1, 0)], self.sizes[-1]"),
    ),
    Mutant(
        "2.7.5",
        "goes up by two sizes at once while it has seen nothing slow",
        CHUNKER,
        serving=(
            "            return above\n",
            "            return self.sizes[min(index + 2, len(self.sizes) - 1)] if not seen_above else above\n",
        ),
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
        "believes the slowest chunk: one accident, and the size is given up",
        CHUNKER,
        serving=("if median_low(seen) > self", "if max(seen) > self"),
    ),
    Mutant(
        "2.7.5",
        "believes the newest chunk alone",
        CHUNKER,
        serving=("if median_low(seen) > self", "if seen[-1] > self"),
    ),
    Mutant(
        "2.7.5",
        "takes the slower one of two: the first chunk, which compiled, is believed",
        CHUNKER,
        serving=("if median_low(seen) > self", "if sorted(seen)[len(seen) // 2] > self"),
    ),
    Mutant(
        "2.7.5",
        "takes the slower one of two on the way up",
        CHUNKER,
        serving=(
            "median_low(seen_above) <= UP",
            "sorted(seen_above)[len(seen_above) // 2] <= UP",
        ),
    ),
    Mutant(
        "2.7.5",
        "keeps all history: it does not forget what a slower or faster machine has cost",
        CHUNKER,
        serving=("deque(maxlen=RECENT)", "deque()"),
    ),
    Mutant(
        "2.7.5",
        "remembers five chunks of a size, and follows a change after three",
        CHUNKER,
        serving=("deque(maxlen=RECENT)", "deque(maxlen=RECENT + 2)"),
    ),
    Mutant(
        "2.7.5",
        "never tries a larger size again, though the machine became faster",
        CHUNKER,
        serving=("self.is_faster(chunk_size) or ", ""),
    ),
    Mutant(
        "2.7.5",
        "forgets nothing when the machine has become faster, only the time since",
        CHUNKER,
        serving=(FORGET, ""),
    ),
    Mutant(
        "2.7.5",
        "forgets every size, also the one that it runs at",
        CHUNKER,
        serving=("if size <= self._size}", "if size < 0}"),
    ),
    Mutant(
        "2.7.5",
        "does not forget what was slow: a machine that became faster once is faster for ever",
        CHUNKER,
        serving=("self._slowest, self._chunks = {}, 0", "self._chunks = 0"),
    ),
    Mutant(
        "2.7.5",
        "gives a size up for ever after a few accidents",
        CHUNKER,
        serving=(" or self._chunks >= AGAIN", ""),
    ),
    Mutant(
        "2.7.5",
        "tries larger sizes again after 501 chunks",
        CHUNKER,
        serving=("self._chunks >= AGAIN", "self._chunks > AGAIN"),
    ),
    Mutant(
        "2.7.5",
        "does not count anew: after 500 chunks it tries larger sizes after each",
        CHUNKER,
        serving=("self._slowest, self._chunks = {}, 0", "self._slowest = {}"),
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
        "2.7.5",
        "gives a size up for ever after its first chunk, which was compiled",
        CHUNKER,
        serving=("len(seen_above) < 2", "len(seen_above) < 1"),
    ),
    Mutant(
        "2.7.5",
        "tries a size a third time, though it was too slow twice",
        CHUNKER,
        serving=("len(seen_above) < 2", "len(seen_above) < 3"),
    ),
    Mutant(
        "2.7.5",
        "tries a size again right after it was too slow",
        CHUNKER,
        serving=("if median_low(seen) > self", "if len(seen) > 1 and median_low(seen) > self"),
    ),
    Mutant(
        "2.7.5",
        "never tries what it has not seen: it stays at the size that it began with",
        CHUNKER,
        serving=(
            "len(seen_above) < 2 or median_low(seen_above) <=",
            "seen_above and median_low(seen_above) <=",
        ),
    ),
    Mutant(
        "2.7.5",
        "goes up to what keeps the target by a hair",
        CHUNKER,
        serving=("<= UP * self.decode_latency_target", "<= self.decode_latency_target"),
    ),
    Mutant(
        "2.7.5",
        "exactly 90 % of the target is too slow to go up",
        CHUNKER,
        serving=("<= UP * self.decode_latency_target", "< UP * self.decode_latency_target"),
    ),
    Mutant(
        "2.7.5",
        "a chunk that takes exactly the target is too slow",
        CHUNKER,
        serving=("> self.decode_latency_target", ">= self.decode_latency_target"),
    ),
    Mutant(
        "2.7.5",
        "takes a size that is over the target by less than half",
        CHUNKER,
        serving=("> self.decode_latency_target", "> 1.5 * self.decode_latency_target"),
    ),
    Mutant(
        "2.7.5",
        "goes down from 90 % of the target on, to where it may go up again",
        CHUNKER,
        serving=("> self.decode_latency_target", "> UP * self.decode_latency_target"),
    ),
    Mutant(
        "2.7.5",
        "never takes the smallest size",
        CHUNKER,
        serving=("self.sizes[max(index - 1, 0)]", "self.sizes[max(index - 1, min(1, len(self.sizes) - 1))]"),
    ),
    Mutant(
        "2.7.5",
        "the end of a prompt counts for the next larger size, with what a part of it cost",
        CHUNKER,
        serving=(
            IGNORE,
            "        chunk_size = next((size for size in self.sizes if size >= chunk_size), self.sizes[-1])\n",
        ),
    ),
    Mutant(
        "2.7.5",
        "the end of a prompt counts for the next smaller size, with what more than it cost",
        CHUNKER,
        serving=(IGNORE, "        chunk_size = largest_size(self.sizes, chunk_size) or self.sizes[0]\n"),
    ),
    Mutant(
        "2.7.5",
        "a chunk above the ladder counts for its largest size",
        CHUNKER,
        serving=(
            "if chunk_size not in self.sizes:",
            "chunk_size = min(chunk_size, self.sizes[-1])\n        if chunk_size not in self.sizes:",
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
        "a plain mean: old chunks weigh as much as new ones",
        METRICS,
        serving=(
            "self._chunk_sum / self._chunk_weight if self._chunk_weight else 0.0",
            "self.prefill_seconds / max(self.prefill_chunks_processed, 1)",
        ),
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
        "divides chunks by served requests, not by steps",
        METRICS,
        serving=(
            "self.prefill_chunks_processed / self.decode_steps if self.decode_steps else math.inf",
            "self.prefill_chunks_processed / self.decode_requests_served if self.decode_steps else math.inf",
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
        "a percentile between two values, which nobody has waited",
        METRICS,
        serving=(
            "return sorted(values)[math.ceil(p * len(values) / 100) - 1]",
            "place = p / 100 * (len(values) - 1)\n    low, high = math.floor(place), math.ceil(place)\n"
            "    ordered = sorted(values)\n    return ordered[low] + (place - low) * (ordered[high] - ordered[low])",
        ),
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
        "measures gaps between tokens of different requests",
        METRICS,
        serving=(
            "            self._gaps.append(time - last)",
            "            last = max(seen[1] for seen in [*self._seen.values()][:-1] or [(0, last)])\n"
            "            self._gaps.append(time - last)",
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
        "TPOT divided by all tokens, also the first",
        METRICS,
        serving=("(time - first) / count", "(time - first) / (count + 1)"),
    ),
    Mutant(
        "2.7.7",
        "counts a stall though nobody waits",
        METRICS,
        serving=("        if waiting_decodes:", "        if True:"),
    ),
    Mutant(
        "2.7.7",
        "counts chunks, so that a whole prompt is no stall",
        METRICS,
        serving=(
            "            self._waited += chunk_size",
            "            self._waited += min(chunk_size, self.prefill_step)",
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
        "a decode step does not settle what was waited",
        METRICS,
        serving=("        self._waited = 0\n", ""),
        inside="ChunkedPrefillMetrics.record_decode_step",
    ),
    Mutant(
        "2.7.7",
        "the seconds of decode are not counted: prefill by decode is always infinite",
        METRICS,
        serving=("        self.decode_seconds += decode_time\n", ""),
    ),
    Mutant(
        "2.7.7",
        "decode steps are not counted: chunks by steps are always infinite",
        METRICS,
        serving=("        self.decode_steps += 1\n", ""),
    ),
    Mutant(
        "2.7.7",
        "a step counts for one request, however many it serves",
        METRICS,
        serving=("self.decode_requests_served += requests", "self.decode_requests_served += 1"),
    ),
    Mutant(
        "2.7.7",
        "divides by seconds that are 0: decode steps on a clock that stood still",
        METRICS,
        serving=("if self.decode_seconds else math.inf", "if self.decode_steps else math.inf"),
    ),
    Mutant(
        "2.7.7",
        "divides by nearly nothing instead of saying that it is infinite",
        METRICS,
        serving=(
            "self.prefill_seconds / self.decode_seconds if self.decode_seconds else math.inf",
            "self.prefill_seconds / max(self.decode_seconds, 1e-9)",
        ),
    ),
    Mutant(
        "2.7.7",
        "decode steps without any chunk have an infinite ratio",
        METRICS,
        serving=(
            "/ self.decode_steps if self.decode_steps else math.inf",
            "/ self.decode_steps if self.decode_steps and self.prefill_chunks_processed else math.inf",
        ),
    ),
    Mutant(
        "2.7.7",
        "the ratio of seconds is the one of steps",
        METRICS,
        serving=(
            "self.prefill_seconds / self.decode_seconds if self.decode_seconds",
            "self.prefill_chunks_processed / self.decode_steps if self.decode_seconds",
        ),
    ),
    Mutant(
        "2.7.7",
        "an average over no chunk divides by zero",
        METRICS,
        serving=(
            "self._chunk_sum / self._chunk_weight if self._chunk_weight else 0.0",
            "self._chunk_sum / self._chunk_weight",
        ),
    ),
    Mutant(
        "2.7.7",
        "the longest gap stays 0",
        METRICS,
        serving=("self.longest_gap = max(", "self.longest_gap = min("),
    ),
    Mutant(
        "2.7.7",
        "requests that arrive are not counted",
        METRICS,
        serving=("        self.requests += 1\n", ""),
    ),
    Mutant(
        "2.7.7",
        "a request of one token has a TPOT of 0",
        METRICS,
        serving=(
            "        elif request_id in self._arrived:\n",
            "        else:\n            self.tpot[request_id] = 0.0\n"
            "        if not count and request_id in self._arrived:\n",
        ),
    ),
    Mutant(
        "2.7.8",
        "the same order in every round: the first size always pays for the warm-up",
        SWEEP,
        serving=("first = turn % len(steps)", "first = 0 * turn"),
    ),
    Mutant(
        "2.7.8",
        "one size after the other, all its rounds at once",
        SWEEP,
        serving=(
            "        for step in [*steps[first:], *steps[:first]]:\n            seen[step].append(_summary(run(step)))",
            "        seen_now = [seen[step] for step in steps for _ in range(rounds) if first == 0]\n"
            "        order = [step for step in steps for _ in range(rounds) if first == 0]\n"
            "        for step, rows in zip(order, seen_now, strict=True):\n"
            "            rows.append(_summary(run(step)))",
        ),
    ),
    Mutant(
        "2.7.8",
        "the mean of the rounds: one accident decides",
        SWEEP,
        serving=("median(numbers) if numbers", "sum(numbers) / len(numbers) if numbers"),
    ),
    Mutant(
        "2.7.8",
        "compares with the first size instead of whole prompts",
        SWEEP,
        serving=("whole = rows.get(None, {})", "whole = rows[steps[0]]"),
    ),
    Mutant(
        "2.7.8",
        "what is won is what is left",
        SWEEP,
        serving=("else 1 - gap", "else gap"),
    ),
    Mutant(
        "2.7.8",
        "rows from the smallest step to the largest",
        SWEEP,
        serving=(
            "    return list(rows.values())",
            "    return sorted(rows.values(), key=lambda row: (row['step'] is None, row['step'] or 0))",
        ),
    ),
    Mutant(
        "2.7.8",
        "rows in the order of the last round",
        SWEEP,
        serving=("for step in steps}\n    whole", "for step in [*steps[first:], *steps[:first]]}\n    whole"),
    ),
    Mutant(
        "2.7.8",
        "whole prompts first, as what the others are compared with",
        SWEEP,
        serving=(
            "    return list(rows.values())",
            "    return sorted(rows.values(), key=lambda row: row['step'] is not None)",
        ),
    ),
    Mutant(
        "2.7.8",
        "the best size first",
        SWEEP,
        serving=(
            "    return list(rows.values())",
            "    return sorted(rows.values(), key=lambda row: -row['total_ms'])",
        ),
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
        "starvation: interactive requests always first",
        PRIORITY,
        serving=(BATCH_TURN, "if len(self.batch) and not len(self.interactive):"),
    ),
    Mutant(
        "2.7.9",
        "last come, first served inside a class",
        "requests/request_queue.py",
        serving=(
            "first = [line[0] for line in self._fronts(self._lines, interactive_only)]",
            "lines = self._fronts(self._lines, interactive_only)\n"
            "        first = [max(n for n in line if n in self._waiting) for line in lines]",
        ),
    ),
    Mutant(
        "2.7.9",
        "the count of who has passed is never reset: after the first wait, batch requests go first",
        PRIORITY,
        serving=(
            "            self._passed = 0\n            return self.batch",
            "            return self.batch",
        ),
    ),
    Mutant(
        "2.7.9",
        "past its limit the newest batch request goes, and not the oldest",
        PRIORITY,
        serving=(
            AGED,
            AGED.replace("self.batch.schedule_next()", "self.batch._waiting.pop(max(self.batch._waiting))"),
        ),
    ),
    Mutant(
        "2.7.9",
        "past its limit the shortest batch request goes, and not the oldest",
        PRIORITY,
        serving=(AGED, AGED.replace("self.batch.schedule_next()", "self.batch.shorter_than(10**9)")),
    ),
    Mutant(
        "2.7.9",
        "the count of who has passed is set back by every batch request that comes",
        PRIORITY,
        serving=(
            "        if not len(self.batch):\n            self._passed = 0\n",
            "        self._passed = 0\n",
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
    Mutant(
        "2.7.9",
        "counts interactive requests that went before a batch request came",
        PRIORITY,
        serving=("        if not len(self.batch):\n            self._passed = 0\n", ""),
    ),
    Mutant(
        "2.7.9",
        "one interactive request too many goes first",
        PRIORITY,
        serving=("self._passed >= self.patience", "self._passed > self.patience"),
    ),
    Mutant(
        "2.7.9",
        "a batch request takes a slot that is kept for interactive ones",
        PRIORITY,
        serving=("        if interactive_only:\n            return self.interactive.schedule_next()\n", ""),
    ),
    Mutant(
        "2.7.9",
        "who takes a slot that is kept for interactive requests counts as if it had passed a batch request",
        PRIORITY,
        serving=(
            "            return self.interactive.schedule_next()\n",
            "            return self._pass(self.interactive.schedule_next())\n",
        ),
    ),
    Mutant(
        "2.7.9",
        "the shortest prompt of all goes first, of whichever class",
        PRIORITY,
        serving=(
            "        shorter = self._pass(self.interactive.shorter_than(tokens))\n"
            "        if shorter is None and not interactive_only:\n"
            "            shorter = self.batch.shorter_than(tokens)\n",
            "        shorter = None if interactive_only else self.batch.shorter_than(tokens)\n"
            "        if shorter is None:\n"
            "            shorter = self._pass(self.interactive.shorter_than(tokens))\n",
        ),
    ),
    Mutant(
        "2.7.9",
        "short prompts do not count: they make a batch request wait for ever",
        PRIORITY,
        serving=(
            "self._pass(self.interactive.shorter_than(tokens))",
            "self.interactive.shorter_than(tokens)",
        ),
    ),
    Mutant(
        "2.7.9",
        "sees only one class: an empty-looking queue with batch requests in it",
        PRIORITY,
        serving=("len(self.interactive) + len(self.batch)", "len(self.interactive)"),
    ),
]

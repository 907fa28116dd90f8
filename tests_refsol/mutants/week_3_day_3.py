"""Wrong solutions of Week 3 Day 3."""

from authors.mutants import Mutant, wrong

SEQUENCE, SCHEDULER = "batching/sequence.py", "batching/hybrid_scheduler.py"
ATTENTION, MODEL = "packed_attention.py", "qwen3_week3.py"
END = "        if token in self.eos_token_ids:\n"
STOPPED = "        if self.answer.stopped:\n"
FINISH = '            self.finish("stop")\n'
SETS = '            self.finish_reason = "stop"\n'
WALK = "        for sequence in list(self.running):\n"
DECODES = """            if sequence.is_decoding and self.make_room(sequence):
                plan.append(Scheduled(sequence, sequence.num_computed, 1))
"""

MUTANTS = [
    *wrong(
        "3.3.1",
        SEQUENCE,
        (
            "an end token is known text",
            END,
            END + "            self.known_tokens.append(token)\n",
        ),
        (
            "takes the token of a step in which the request was aborted",
            "        if self.is_done:\n            return\n        if token in",
            "        if token in",
        ),
        (
            "sets the reason of an end token without `finish`, and keeps the blocks",
            END + FINISH,
            END + SETS,
        ),
        (
            "sets the reason of a stop string without `finish`, and keeps the blocks",
            STOPPED + FINISH,
            STOPPED + SETS,
        ),
        (
            "shows the text of an end token",
            END,
            END + "            self.answer.add(token)\n",
        ),
        (
            "sets the finish reason, and frees nothing",
            '            self.finish("length")\n',
            '            self.finish_reason = "length"\n',
            "Sequence.take",
        ),
        part="serving",
    ),
    *wrong(
        "3.3.2",
        SEQUENCE,
        (
            "every chunk goes into the first slots again",
            "table.slots(start, stop)",
            "table.slots(0, entry.size)",
        ),
        (
            "counts the tokens of the step as its past",
            "context_lens.append(start)",
            "context_lens.append(stop)",
        ),
        (
            "a chunk of one token is the last known token",
            "entry.sequence.known_tokens[start:stop]",
            "entry.sequence.known_tokens[-1:] if entry.size == 1 else entry.sequence.known_tokens[start:stop]",
        ),
        (
            "samples every entry that ends behind the prompt",
            "if entry.needs_token:",
            "if stop >= entry.sequence.num_prompt_tokens:",
        ),
        part="serving",
    ),
    *wrong(
        "3.3.3",
        SCHEDULER,
        (
            "the last token of a prompt is a decode",
            "if sequence.is_decoding and self.make_room",
            "if sequence.num_uncomputed == 1 and self.make_room",
        ),
        (
            "leaves half of the budget to prompts, and decodes out",
            "            if sequence.is_decoding and self.make_room(sequence):\n",
            "            if 2 * len(plan) >= self.max_num_batched_tokens:\n                return\n"
            "            if sequence.is_decoding and self.make_room(sequence):\n",
        ),
        (
            "reserves the next block a token too early",
            DECODES,
            DECODES + "                sequence.block_table.reserve(sequence.num_computed + 2)\n",
        ),
        (
            "lists the decodes first, and does not look again who was preempted",
            WALK + DECODES,
            "        for sequence in [one for one in self.running if one.is_decoding]:\n"
            + DECODES.replace("sequence.is_decoding and ", ""),
        ),
        (
            "plans whoever has no room too",
            DECODES,
            DECODES.replace("and self.make_room(sequence):", "and (self.make_room(sequence) or True):"),
        ),
        part="serving",
    ),
    *wrong(
        "3.3.4",
        SCHEDULER,
        (
            "keeps the watermark from running requests too",
            "can_allocate(missing, keep_watermark=False)",
            "can_allocate(missing)",
        ),
        (
            "a preempted request waits behind all others",
            "self.waiting.put_back(sequence)",
            "self.waiting.queue.add(sequence)",
        ),
        (
            "spares prompts in computation",
            "youngest = self.running[-1]",
            "youngest = next((one for one in self.running[::-1] if one.is_decoding), sequence)",
        ),
        (
            "wants a free block also when the last one has room",
            "missing = sequence.block_table.missing(len(sequence.known_tokens))",
            "missing = max(1, sequence.block_table.missing(len(sequence.known_tokens)))",
        ),
        part="serving",
    ),
    Mutant(
        "3.3.4",
        "the cached prefix counts as computed after a preemption",
        SEQUENCE,
        serving=("self.num_computed = 0", "self.num_computed = self.num_cached"),
        inside="Sequence.preempt",
    ),
    *wrong(
        "3.3.5",
        SCHEDULER,
        (
            "whoever runs alone has to keep the watermark, and waits for ever",
            "admit(not self.running, left)",
            "admit(False, left)",
        ),
        (
            "empty chunks for prompts that have begun",
            "if left and not sequence.is_decoding:",
            "if not sequence.is_decoding:",
        ),
        (
            "skips who is in the plan, and not who decodes",
            "if left and not sequence.is_decoding:",
            "if left and sequence not in [entry.sequence for entry in plan]:",
        ),
        (
            "counts places in the plan, and not in `running`",
            "len(self.running) < self.max_num_seqs",
            "len(plan) < self.max_num_seqs",
        ),
        (
            "a request is alone when the plan is empty",
            "admit(not self.running, left)",
            "admit(not plan, left)",
        ),
        (
            "tells `admit` the whole budget",
            "admit(not self.running, left)",
            "admit(not self.running, self.max_num_batched_tokens)",
        ),
        part="serving",
    ),
    Mutant(
        "3.3.6",
        "positions in half precision, where 2,049 does not exist",
        ATTENTION,
        inside="segment_mask",
        torch=("    seen = (segments", "    positions = positions.half()\n    seen = (segments"),
        mlx=("    seen = (segments", "    positions = positions.astype(mx.float16)\n    seen = (segments"),
    ),
    Mutant(
        "3.3.6",
        "a mask in half precision",
        ATTENTION,
        torch=(
            "return torch.where(seen, 0.0, -torch.inf)",
            "return torch.where(seen, 0.0, -torch.inf).half()",
        ),
        mlx=("return mx.where(seen, 0.0, -mx.inf)", "return mx.where(seen, 0.0, -mx.inf).astype(mx.float16)"),
        inside="segment_mask",
    ),
    Mutant(
        "3.3.6",
        "requests in eight bits: the 257th is the first",
        ATTENTION,
        torch=("    seen = (segments", "    segments = segments.to(torch.int8)\n    seen = (segments"),
        mlx=("    seen = (segments", "    segments = segments.astype(mx.int8)\n    seen = (segments"),
        inside="segment_mask",
    ),
    Mutant(
        "3.3.6",
        "counts the window in rows, and not in positions",
        ATTENTION,
        both=(
            "(positions > positions[:, None] - window)",
            "(xp.arange(len(positions)) > xp.arange(len(positions))[:, None] - window)",
        ),
    ),
    Mutant(
        "3.3.7",
        "projects the queries of chunks and of decodes in two calls",
        MODEL,
        both=(
            "        query = self.wq(x).reshape(1, T, -1, self.head_dim)\n",
            "        self.wq(x[:, :1])\n        query = self.wq(x).reshape(1, T, -1, self.head_dim)\n",
        ),
    ),
    *wrong(
        "3.3.7",
        ATTENTION,
        (
            "the default scale for the past",
            "part.block_list, part.mask, scale)",
            "part.block_list, part.mask)",
        ),
        (
            "goes on in float32",
            "finish_attention(statistics, value.dtype)",
            "finish_attention(statistics, xp.float32)",
        ),
    ),
]

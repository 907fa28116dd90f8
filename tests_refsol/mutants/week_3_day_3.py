"""Wrong solutions of Week 3 Day 3."""

from authors.mutants import Mutant

SEQUENCE, PACKING, SCHEDULER = "batching/sequence.py", "batching/packing.py", "batching/hybrid_scheduler.py"
ADMISSION, ATTENTION, MODEL = "batching/admission.py", "packed_attention.py", "qwen3_week3.py"
END = """        if token in self.eos_token_ids:
            self.finish("stop")
            return
"""
APPEND = """        self.known_tokens.append(token)
        self.tokens.append(token)
        self.answer.add(token)
"""
LAST = """        if self.answer.stopped:
            self.finish("stop")
        elif len(self.tokens) >= self.max_new_tokens:
            self.finish("length")
"""
SAMPLED = """        if entry.needs_token:
            batch.sample_rows.append(len(batch.token_ids) - 1)
"""
WALK = "        for sequence in list(self.running):\n"
DECODES = """            if sequence.is_decoding and self.make_room(sequence):
                plan.append(Scheduled(sequence, sequence.num_computed, 1))
"""
PHASES = """        if self.enable_chunked_prefill:
            self.plan_decodes(plan)
        self.plan_prompts(plan)
"""
VICTIM = """            youngest = self.running[-1]
            self.preempt(youngest)
"""
BEGUN = """        for sequence in self.running:
            if left and not sequence.is_decoding:
                left -= self.plan_chunk(plan, sequence, left)
"""
ADMITTED = """        while left and len(self.running) < self.max_num_seqs:
            admitted = self.waiting.admit(not self.running, left)
            if admitted is None:
                return
            self.running.append(admitted)
            left -= self.plan_chunk(plan, admitted, left)
"""
SEEN_TORCH = "seen = (segments[:, None] == segments) & (positions <= positions[:, None])"
OWN = "own_statistics(query, key, value, scale, mask.own)"
CHUNKS = """        past = paged_prompt_statistics(rows, key_pages, value_pages, part.block_list, part.mask, scale)
        statistics = merge_rows(statistics, part.rows, past)
"""
DECODE_PAST = """        past = paged_decode_statistics(rows, *pages, part.mask, scale)
        statistics = merge_rows(statistics, part.rows, past)
"""

MUTANTS = [
    Mutant(
        "3.3.1",
        "the answer is no part of the known tokens",
        SEQUENCE,
        serving=("        self.known_tokens.append(token)\n", ""),
    ),
    Mutant(
        "3.3.1",
        "an end token is known text",
        SEQUENCE,
        serving=(
            END,
            END.replace(
                "            self.finish",
                "            self.known_tokens.append(token)\n            self.finish",
            ),
        ),
    ),
    Mutant(
        "3.3.1",
        "honours only one of the end tokens",
        SEQUENCE,
        serving=("if token in self.eos_token_ids:", "if token == min(self.eos_token_ids, default=None):"),
    ),
    Mutant(
        "3.3.1",
        "counts the new token as computed",
        SEQUENCE,
        serving=(
            "        self.tokens.append(token)\n",
            "        self.tokens.append(token)\n        self.num_computed += 1\n",
        ),
    ),
    Mutant(
        "3.3.1",
        "takes the token of a step in which the request was aborted",
        SEQUENCE,
        serving=("        if self.is_done:\n            return\n        if token in", "        if token in"),
    ),
    Mutant(
        "3.3.1",
        "looks at the limit before the stop strings",
        SEQUENCE,
        serving=(
            LAST,
            "        if len(self.tokens) >= self.max_new_tokens:\n"
            '            self.finish("length")\n'
            "        elif self.answer.stopped:\n"
            '            self.finish("stop")\n',
        ),
    ),
    Mutant(
        "3.3.1",
        "drops the token that reaches the limit",
        SEQUENCE,
        serving=(
            APPEND,
            "        if len(self.tokens) + 1 >= self.max_new_tokens:\n"
            '            self.finish("length")\n            return\n' + APPEND,
        ),
    ),
    Mutant(
        "3.3.1",
        "one token more than the limit",
        SEQUENCE,
        serving=("len(self.tokens) >= self.max_new_tokens", "len(self.tokens) > self.max_new_tokens"),
    ),
    Mutant(
        "3.3.1",
        "sets the reason of an end token without `finish`, and keeps the blocks",
        SEQUENCE,
        serving=(END, END.replace('self.finish("stop")', 'self.finish_reason = "stop"')),
    ),
    Mutant(
        "3.3.1",
        "sets the reason of a stop string without `finish`, and keeps the blocks",
        SEQUENCE,
        serving=(LAST, LAST.replace('self.finish("stop")', 'self.finish_reason = "stop"')),
    ),
    Mutant(
        "3.3.1",
        "shows the text of an end token",
        SEQUENCE,
        serving=(
            END,
            END.replace(
                "            self.finish", "            self.answer.add(token)\n            self.finish"
            ),
        ),
    ),
    Mutant(
        "3.3.1",
        "drops the token that completes a stop string",
        SEQUENCE,
        serving=(
            LAST,
            LAST.replace(
                '            self.finish("stop")',
                '            self.known_tokens.pop()\n            self.finish("stop")',
            ),
        ),
    ),
    Mutant(
        "3.3.2",
        "samples after every chunk",
        PACKING,
        serving=(SAMPLED, SAMPLED.replace("if entry.needs_token:", "if True:")),
    ),
    Mutant(
        "3.3.2",
        "samples where the prompt ends, also when it is computed again and the answer is known",
        PACKING,
        serving=(
            "if entry.needs_token:",
            "if entry.needs_token or entry.stop == entry.sequence.num_prompt_tokens:",
        ),
    ),
    Mutant(
        "3.3.2",
        "the row of a sample counts from the beginning of its entry",
        PACKING,
        serving=(
            "batch.sample_rows.append(len(batch.token_ids) - 1)",
            "batch.sample_rows.append(entry.size - 1)",
        ),
    ),
    Mutant(
        "3.3.2",
        "positions restart with every chunk",
        PACKING,
        serving=("range(entry.start, entry.stop)", "range(entry.size)"),
    ),
    Mutant(
        "3.3.2",
        "positions count along the row",
        PACKING,
        serving=(
            "batch.positions.extend(range(entry.start, entry.stop))",
            "batch.positions.extend(range(len(batch.positions), len(batch.positions) + entry.size))",
        ),
    ),
    Mutant(
        "3.3.2",
        "every chunk goes into the first slots again",
        PACKING,
        serving=("table.slots(entry.start, entry.stop)", "table.slots(0, entry.size)"),
    ),
    Mutant(
        "3.3.2",
        "feeds the first tokens of the text again",
        PACKING,
        serving=("known_tokens[entry.start : entry.stop]", "known_tokens[: entry.size]"),
    ),
    Mutant(
        "3.3.2",
        "forgets that the answer so far has to be computed again",
        PACKING,
        serving=(
            "entry.sequence.known_tokens[entry.start : entry.stop]",
            "[*entry.sequence.prompt_tokens, *[0] * 64][entry.start : entry.stop]",
        ),
    ),
    Mutant(
        "3.3.2",
        "counts the tokens of the step as its past",
        PACKING,
        serving=("context_lens.append(entry.start)", "context_lens.append(entry.stop)"),
    ),
    Mutant(
        "3.3.2",
        "query_start has sizes",
        PACKING,
        serving=("query_start.append(len(batch.token_ids))", "query_start.append(entry.size)"),
    ),
    Mutant(
        "3.3.2",
        "the parameters of the first request for all rows",
        PACKING,
        serving=("sampling.append(entry.sequence.sampling)", "sampling.append(plan[0].sequence.sampling)"),
    ),
    Mutant(
        "3.3.2",
        "tables in the order of the requests' numbers, rows in the order of the plan",
        PACKING,
        serving=(
            "    # END TASK\n    return batch",
            "    order = sorted(range(len(plan)), key=lambda i: plan[i].sequence.request_id)\n"
            "    batch.block_tables[:] = [batch.block_tables[i] for i in order]\n"
            "    # END TASK\n    return batch",
        ),
    ),
    Mutant(
        "3.3.2",
        "a chunk of one token is the last known token",
        PACKING,
        serving=(
            "entry.sequence.known_tokens[entry.start : entry.stop]",
            "entry.sequence.known_tokens[-1:] if entry.size == 1"
            " else entry.sequence.known_tokens[entry.start : entry.stop]",
        ),
    ),
    Mutant(
        "3.3.2",
        "samples every entry that ends behind the prompt",
        PACKING,
        serving=("if entry.needs_token:", "if entry.stop >= entry.sequence.num_prompt_tokens:"),
    ),
    Mutant(
        "3.3.2",
        "samples the first row of an entry",
        PACKING,
        serving=("append(len(batch.token_ids) - 1)", "append(batch.query_start[-2])"),
    ),
    Mutant(
        "3.3.3",
        "prompts first: decodes get what is left",
        SCHEDULER,
        serving=(
            PHASES,
            "        left, self.max_num_batched_tokens = self.max_num_batched_tokens, self.max_num_batched_tokens\n"
            "        self.plan_prompts(plan)\n"
            "        if sum(entry.size for entry in plan) < left and self.enable_chunked_prefill:\n"
            "            planned = {id(entry.sequence) for entry in plan}\n"
            "            more = []\n"
            "            self.plan_decodes(more)\n"
            "            plan += [e for e in more if id(e.sequence) not in planned]\n",
        ),
    ),
    Mutant(
        "3.3.3",
        "decodes only in steps without a prompt",
        SCHEDULER,
        serving=(
            PHASES,
            "        if self.enable_chunked_prefill and not len(self.waiting):\n"
            "            self.plan_decodes(plan)\n"
            "        self.plan_prompts(plan)\n",
        ),
    ),
    Mutant(
        "3.3.3",
        "the last token of a prompt is a decode",
        SCHEDULER,
        serving=(
            "if sequence.is_decoding and self.make_room",
            "if sequence.num_uncomputed == 1 and self.make_room",
        ),
    ),
    Mutant(
        "3.3.3",
        "leaves half of the budget to prompts, and decodes out",
        SCHEDULER,
        serving=(
            "            if sequence.is_decoding and self.make_room(sequence):\n",
            "            if 2 * len(plan) >= self.max_num_batched_tokens:\n                return\n"
            "            if sequence.is_decoding and self.make_room(sequence):\n",
        ),
    ),
    Mutant(
        "3.3.3",
        "the youngest first",
        SCHEDULER,
        serving=("for sequence in list(self.running):", "for sequence in self.running[::-1]:"),
    ),
    Mutant(
        "3.3.3",
        "reserves the next block a token too early",
        SCHEDULER,
        serving=(
            DECODES,
            DECODES + "                sequence.block_table.reserve(sequence.num_computed + 2)\n",
        ),
    ),
    Mutant(
        "3.3.3",
        "lists the decodes first, and does not look again who was preempted",
        SCHEDULER,
        serving=(
            WALK + DECODES,
            "        for sequence in [one for one in self.running if one.is_decoding]:\n"
            + DECODES.replace("sequence.is_decoding and ", ""),
        ),
    ),
    Mutant(
        "3.3.3",
        "plans whoever has no room too",
        SCHEDULER,
        serving=(
            DECODES,
            DECODES.replace("and self.make_room(sequence):", "and (self.make_room(sequence) or True):"),
        ),
    ),
    Mutant(
        "3.3.3",
        "makes room for everybody who runs, also for the preempted",
        SCHEDULER,
        serving=(
            "if sequence.is_decoding and self.make_room(sequence):",
            "if self.make_room(sequence) and sequence.is_decoding:",
        ),
    ),
    Mutant(
        "3.3.3",
        "stops at the first request without room",
        SCHEDULER,
        serving=(
            DECODES,
            DECODES.replace(
                "and self.make_room(sequence):", "and not self.make_room(sequence):\n                return"
            ).replace(
                "                plan.append",
                "            if sequence.is_decoding:\n                plan.append",
            ),
        ),
    ),
    Mutant(
        "3.3.3",
        "reserves the block itself, and never preempts",
        SCHEDULER,
        serving=(
            DECODES,
            DECODES.replace(" and self.make_room(sequence)", "")
            + "                sequence.block_table.reserve(len(sequence.known_tokens))\n",
        ),
    ),
    Mutant(
        "3.3.3",
        "plans all decodes and makes room later: victims stay in the plan",
        SCHEDULER,
        serving=(
            WALK + DECODES,
            WALK
            + DECODES.replace(" and self.make_room(sequence)", "")
            + "        plan[:] = [entry for entry in plan if self.make_room(entry.sequence)]\n",
        ),
    ),
    Mutant(
        "3.3.4",
        "preempts the oldest",
        SCHEDULER,
        serving=("youngest = self.running[-1]", "youngest = self.running[0]"),
    ),
    Mutant(
        "3.3.4",
        "preempts everybody who is younger, for one block",
        SCHEDULER,
        serving=(
            VICTIM,
            "            for other in self.running[:0:-1]:\n"
            "                if other is not sequence and other in self.running[self.running.index(sequence) :]:\n"
            "                    self.preempt(other)\n"
            "            if self.allocator.can_allocate(missing, keep_watermark=False):\n"
            "                break\n" + VICTIM,
        ),
    ),
    Mutant(
        "3.3.4",
        "keeps the watermark from running requests too",
        SCHEDULER,
        serving=("can_allocate(missing, keep_watermark=False)", "can_allocate(missing)"),
    ),
    Mutant(
        "3.3.4",
        "a preempted request keeps its place in the text",
        SEQUENCE,
        serving=(
            "        self.block_table.release()\n        self.num_computed = 0\n",
            "        self.block_table.release()\n",
        ),
        inside="Sequence.preempt",
    ),
    Mutant(
        "3.3.4",
        "a preempted request starts over, and loses its answer",
        SEQUENCE,
        serving=(
            "        self.num_preemptions += 1\n",
            "        self.num_preemptions += 1\n"
            "        self.known_tokens, self.tokens = list(self.prompt_tokens), []\n",
        ),
        inside="Sequence.preempt",
    ),
    Mutant(
        "3.3.4",
        "a preempted request gets a new table, and nobody frees the blocks of the old one",
        SEQUENCE,
        serving=(
            "        self.block_table.release()\n",
            "        self.block_table = BlockTable(self.block_table.allocator)\n",
        ),
        inside="Sequence.preempt",
    ),
    Mutant(
        "3.3.4",
        "a preempted request waits behind all others",
        ADMISSION,
        serving=(
            '        """\n        self.returned.appendleft(sequence)\n',
            '        """\n        self.queue.add(sequence)\n',
        ),
    ),
    Mutant(
        "3.3.4",
        "spares prompts in computation",
        SCHEDULER,
        serving=(
            "youngest = self.running[-1]",
            "youngest = next((one for one in self.running[::-1] if one.is_decoding), sequence)",
        ),
    ),
    Mutant(
        "3.3.4",
        "preempts the last that arrived, and not the last that was admitted",
        SCHEDULER,
        serving=(
            "youngest = self.running[-1]",
            "youngest = max(self.running, key=lambda one: one.request_id)",
        ),
    ),
    Mutant(
        "3.3.4",
        "wants a free block also when the last one has room",
        SCHEDULER,
        serving=(
            "missing = sequence.block_table.missing(len(sequence.known_tokens))",
            "missing = max(1, sequence.block_table.missing(len(sequence.known_tokens)))",
        ),
    ),
    Mutant(
        "3.3.4",
        "whoever is short gives up its own place",
        SCHEDULER,
        serving=("youngest = self.running[-1]", "youngest = sequence"),
    ),
    Mutant(
        "3.3.4",
        "the cached prefix counts as computed after a preemption",
        SEQUENCE,
        serving=("self.num_computed = 0", "self.num_computed = self.num_cached"),
        inside="Sequence.preempt",
    ),
    Mutant(
        "3.3.4",
        "a preemption forgets what came from the prefix cache",
        SEQUENCE,
        serving=("self.num_computed = 0", "self.num_computed = self.num_cached = 0"),
        inside="Sequence.preempt",
    ),
    Mutant(
        "3.3.4",
        "a preemption forgets the log-probabilities of the answer",
        SEQUENCE,
        serving=("self.num_computed = 0", "self.num_computed, self.sampled = 0, []"),
        inside="Sequence.preempt",
    ),
    Mutant(
        "3.3.4",
        "a second preemption is not counted",
        SEQUENCE,
        serving=("self.num_preemptions += 1", "self.num_preemptions = 1"),
        inside="Sequence.preempt",
    ),
    Mutant(
        "3.3.4",
        "a preemption forgets when the last token came",
        SEQUENCE,
        serving=("self.num_computed = 0", "self.num_computed, self.token_time = 0, 0.0"),
        inside="Sequence.preempt",
    ),
    Mutant(
        "3.3.5",
        "a budget for each request",
        SCHEDULER,
        serving=(
            ADMITTED,
            ADMITTED.replace(
                "left -= self.plan_chunk(plan, admitted, left)", "self.plan_chunk(plan, admitted, left)"
            ),
        ),
    ),
    Mutant(
        "3.3.5",
        "what prompts that have begun take is free",
        SCHEDULER,
        serving=(BEGUN, BEGUN.replace("left -= self.plan_chunk", "self.plan_chunk")),
    ),
    Mutant(
        "3.3.5",
        "decodes are not counted in the budget",
        SCHEDULER,
        serving=("left = self.prompt_budget(plan)", "left = self.max_num_batched_tokens"),
    ),
    Mutant(
        "3.3.5",
        "one prompt per step",
        SCHEDULER,
        serving=(
            "            left -= self.plan_chunk(plan, admitted, left)\n",
            "            left -= self.plan_chunk(plan, admitted, left)\n            return\n",
        ),
    ),
    Mutant(
        "3.3.5",
        "no prompt while anybody decodes",
        SCHEDULER,
        serving=("left = self.prompt_budget(plan)", "left = 0 if plan else self.prompt_budget(plan)"),
    ),
    Mutant(
        "3.3.5",
        "new prompts go before those that have begun",
        SCHEDULER,
        serving=(
            BEGUN + ADMITTED,
            "        before = list(self.running)\n"
            + ADMITTED.replace("                return\n", "                break\n")
            + BEGUN.replace("in self.running", "in before"),
        ),
    ),
    Mutant(
        "3.3.5",
        "only requests that decode have a place",
        SCHEDULER,
        serving=(
            "while left and len(self.running) < self.max_num_seqs:",
            "while left and sum(one.is_decoding for one in self.running) < self.max_num_seqs:",
        ),
    ),
    Mutant(
        "3.3.5",
        "a prompt that waits may take the last block",
        SCHEDULER,
        serving=("admit(not self.running, left)", "admit(True, left)"),
    ),
    Mutant(
        "3.3.5",
        "whoever runs alone has to keep the watermark, and waits for ever",
        SCHEDULER,
        serving=("admit(not self.running, left)", "admit(False, left)"),
    ),
    Mutant(
        "3.3.5",
        "others can find blocks that are reserved and not computed",
        SCHEDULER,
        serving=(
            "register(entry.sequence.known_tokens, entry.stop)",
            "register(entry.sequence.known_tokens, len(entry.sequence.known_tokens))",
        ),
    ),
    Mutant(
        "3.3.5",
        "empty chunks for prompts that have begun",
        SCHEDULER,
        serving=("if left and not sequence.is_decoding:", "if not sequence.is_decoding:"),
    ),
    Mutant(
        "3.3.5",
        "of prompts that have begun the youngest first",
        SCHEDULER,
        serving=(BEGUN, BEGUN.replace("in self.running:", "in self.running[::-1]:")),
    ),
    Mutant(
        "3.3.5",
        "skips who is in the plan, and not who decodes",
        SCHEDULER,
        serving=(
            BEGUN,
            BEGUN.replace("not sequence.is_decoding", "sequence not in [entry.sequence for entry in plan]"),
        ),
    ),
    Mutant(
        "3.3.5",
        "counts places in the plan, and not in `running`",
        SCHEDULER,
        serving=("len(self.running) < self.max_num_seqs", "len(plan) < self.max_num_seqs"),
    ),
    Mutant(
        "3.3.5",
        "a request is alone when the plan is empty",
        SCHEDULER,
        serving=("admit(not self.running, left)", "admit(not plan, left)"),
    ),
    Mutant(
        "3.3.5",
        "tells `admit` the whole budget",
        SCHEDULER,
        serving=("admit(not self.running, left)", "admit(not self.running, self.max_num_batched_tokens)"),
    ),
    Mutant(
        "3.3.6",
        "the causal mask over the whole row: earlier requests are seen",
        ATTENTION,
        torch=(
            SEEN_TORCH,
            "rows = torch.arange(len(segments))\n    seen = (rows <= rows[:, None]) & (segments <= segments[:, None])",
        ),
        mlx=(
            SEEN_TORCH,
            "rows = mx.arange(len(segments))\n    seen = (rows <= rows[:, None]) & (segments <= segments[:, None])",
        ),
    ),
    Mutant(
        "3.3.6",
        "compares positions alone",
        ATTENTION,
        both=(SEEN_TORCH, "seen = positions <= positions[:, None]"),
    ),
    Mutant(
        "3.3.6",
        "compares requests alone: a chunk sees its own future",
        ATTENTION,
        both=(SEEN_TORCH, "seen = segments[:, None] == segments"),
    ),
    Mutant(
        "3.3.6",
        "a row does not see itself",
        ATTENTION,
        both=("(positions <= positions[:, None])", "(positions < positions[:, None])"),
    ),
    Mutant(
        "3.3.6",
        "queries and keys exchanged",
        ATTENTION,
        both=("(positions <= positions[:, None])", "(positions[:, None] <= positions)"),
    ),
    Mutant(
        "3.3.6",
        "a window of one token more",
        ATTENTION,
        both=("(positions > positions[:, None] - window)", "(positions >= positions[:, None] - window)"),
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
        "requests in half precision, where 2,049 does not exist",
        ATTENTION,
        torch=("    seen = (segments", "    segments = segments.half()\n    seen = (segments"),
        mlx=("    seen = (segments", "    segments = segments.astype(mx.float16)\n    seen = (segments"),
        inside="segment_mask",
    ),
    Mutant(
        "3.3.6",
        "counts the window in rows, and not in positions",
        ATTENTION,
        torch=(
            "(positions > positions[:, None] - window)",
            "(torch.arange(len(positions)) > torch.arange(len(positions))[:, None] - window)",
        ),
        mlx=(
            "(positions > positions[:, None] - window)",
            "(mx.arange(len(positions)) > mx.arange(len(positions))[:, None] - window)",
        ),
    ),
    Mutant(
        "3.3.6",
        "a window without a limit in front: a row sees its own future",
        ATTENTION,
        both=(
            "seen = seen & (positions > positions[:, None] - window)",
            "seen = (segments[:, None] == segments) & (positions > positions[:, None] - window)",
        ),
    ),
    Mutant(
        "3.3.7",
        "decodes see their own token alone",
        ATTENTION,
        both=("if mask.decodes is not None:", "if mask.decodes is not None and False:"),
    ),
    Mutant(
        "3.3.7",
        "chunks forget the chunks before them",
        ATTENTION,
        both=(
            "    if mask.chunks is not None:\n        part",
            "    if mask.chunks is not None and False:\n        part",
        ),
    ),
    Mutant(
        "3.3.7",
        "one past at most: decodes only in steps without a chunk that has one",
        ATTENTION,
        both=("    if mask.decodes is not None:", "    if mask.decodes is not None and mask.chunks is None:"),
    ),
    Mutant(
        "3.3.7",
        "the queries of the first rows, wherever the chunk is",
        ATTENTION,
        torch=(
            "rows = query.index_select(0, part.rows)\n        past",
            "rows = query[: len(part.rows)]\n        past",
        ),
        mlx=("rows = query[part.rows]\n        past", "rows = query[: len(part.rows)]\n        past"),
    ),
    Mutant(
        "3.3.7",
        "gives the pasts of the decodes to their rows in the wrong order",
        ATTENTION,
        torch=(DECODE_PAST, DECODE_PAST.replace("part.rows, past", "part.rows.flip(0), past")),
        mlx=(DECODE_PAST, DECODE_PAST.replace("part.rows, past", "part.rows[::-1], past")),
    ),
    Mutant(
        "3.3.7",
        "projects the queries of chunks and of decodes in two calls",
        MODEL,
        both=(
            "        query = project(x, self.wq).reshape(1, T, -1, self.head_dim)\n",
            "        project(x[:, :1], self.wq)\n"
            "        query = project(x, self.wq).reshape(1, T, -1, self.head_dim)\n",
        ),
    ),
    Mutant(
        "3.3.7",
        "the past takes the place of the step's own keys",
        ATTENTION,
        both=(
            CHUNKS,
            CHUNKS.replace(
                "        statistics = merge_rows",
                "        statistics = tuple(part_of * 1 for part_of in statistics)\n"
                "        statistics[1][part.rows] = -3e38\n        statistics = merge_rows",
            ),
        ),
    ),
    Mutant(
        "3.3.7",
        "averages the step and the past, instead of merging their statistics",
        ATTENTION,
        both=(
            "    return finish_attention(statistics, value.dtype)",
            "    own = finish_attention(" + OWN + ", value.dtype)\n"
            "    has_past = mask.chunks is not None or mask.decodes is not None\n"
            "    whole = finish_attention(statistics, value.dtype)\n"
            "    return (own + whole) / 2 if has_past else whole",
        ),
        inside="packed_attention",
    ),
    Mutant(
        "3.3.7",
        "the default scale for the past",
        ATTENTION,
        both=("part.block_list, part.mask, scale)", "part.block_list, part.mask)"),
    ),
    Mutant(
        "3.3.7",
        "goes on in float32",
        ATTENTION,
        torch=("finish_attention(statistics, value.dtype)", "finish_attention(statistics, torch.float32)"),
        mlx=("finish_attention(statistics, value.dtype)", "finish_attention(statistics, mx.float32)"),
    ),
    Mutant(
        "3.3.7",
        "every row reaches the head, and rows are chosen after it",
        MODEL,
        torch=(
            "return self.head(self.norm(x.index_select(1, sample_rows)))[0]",
            "return self.head(self.norm(x))[0].index_select(0, sample_rows)",
        ),
        mlx=(
            "return self.head(self.norm(mx.take(x, sample_rows, axis=1)))[0]",
            "return self.head(self.norm(x))[0][sample_rows]",
        ),
    ),
    Mutant(
        "3.3.5",
        "admits until the plan has four entries",
        SCHEDULER,
        serving=(ADMITTED, ADMITTED.replace("while left and", "while left and len(plan) < 4 and")),
    ),
    Mutant(
        "3.3.5",
        "new prompts first, and a return where no request waits",
        SCHEDULER,
        serving=(BEGUN + ADMITTED, ADMITTED + BEGUN),
    ),
    Mutant(
        "3.3.5",
        "does not append an admitted request",
        SCHEDULER,
        serving=("            self.running.append(admitted)\n", ""),
    ),
    Mutant(
        "3.3.1",
        "sets the finish reason, and frees nothing",
        SEQUENCE,
        inside="Sequence.take",
        serving=('            self.finish("length")\n', '            self.finish_reason = "length"\n'),
    ),
    Mutant(
        "3.3.6",
        "the mask is transposed",
        ATTENTION,
        inside="segment_mask",
        torch=("torch.where(seen, 0.0, -torch.inf)", "torch.where(seen.T, 0.0, -torch.inf)"),
        mlx=("mx.where(seen, 0.0, -mx.inf)", "mx.where(seen.T, 0.0, -mx.inf)"),
    ),
]

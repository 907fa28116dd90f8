"""Wrong solutions of Week 2 Day 6."""

from authors.mutants import Mutant, wrong

CACHE, REQUEST, BATCH, GENERATE = (
    "batching_kv_cache.py",
    "chunked_prefill/request.py",
    "chunked_prefill/batch.py",
    "chunked_prefill/batch_generate.py",
)
COUNT = "[n + L * used for n, used in zip(self.offsets, self.active, strict=True)]"
LOOP = """            if waiting and batch.free_slot is not None:
                batch.prefill_and_place(waiting.popleft())
            batch.remove_ended()
            if batch.running:
                batch.decode()
            batch.remove_ended()
"""
REMOVE = "self.offsets[slot], self.active[slot] = 0, False"
STEP = """            token = self.model.prefill(
                self.prompt_tokens, 0, self.kv_cache, sampling=self.sampling, sample=True
            )
"""
SCOPE = """        with model_call(self):
            token = self.model.prefill(
                self.prompt_tokens, 0, self.kv_cache, sampling=self.sampling, sample=True
            )
"""
DECODE = """        with model_call(*requests):
            chosen = self.model.decode(tokens, offsets, self.kv_cache, sampling=sampling)
"""
TAKE = """        for request, token in zip(self.slots, chosen, strict=True):
            if request is not None and token is not None:
                request.decode_done(token)
"""
LAST = """        if self.answer.stopped:
            self.finish("stop")
        elif len(self.tokens) >= self.max_new_tokens:
            self.finish("length")
"""
LAST_EXCHANGED = """        if len(self.tokens) >= self.max_new_tokens:
            self.finish("length")
        elif self.answer.stopped:
            self.finish("stop")
"""
ABORT = """        if not self._is_computing:
            self.finish("abort")
"""

MUTANTS = [
    *wrong(
        "2.6.1",
        CACHE,
        (
            "one token a step, however many came",
            COUNT,
            "[n + used for n, used in zip(self.offsets, self.active, strict=True)]",
        ),
        (
            "hands out all positions of a slot, also those that the mask does not know",
            "return self.keys[:B, :, :S], self.values[:B, :, :S], max(self.offsets), mask",
            "return self.keys[:B], self.values[:B], max(self.offsets), mask",
        ),
        (
            "returns the length of the first row",
            "self.values[:B, :, :S], max(self.offsets)",
            "self.values[:B, :, :S], self.offsets[0]",
        ),
        (
            "makes a mask of its own, whatever it was given",
            f"        self.offsets = {COUNT}",
            f"        mask = self.make_mask(L, key.dtype, positions=positions)\n        self.offsets = {COUNT}",
        ),
    ),
    Mutant(
        "2.6.1",
        "positions of the mask in float16, exact up to 2,048",
        CACHE,
        inside="BatchingKvCache.make_mask",
        mlx=("length_mask(positions,", "length_mask(positions.astype(mx.float16),"),
        torch=("length_mask(positions,", "length_mask(positions.half(),"),
    ),
    *wrong(
        "2.6.2",
        CACHE,
        (
            "makes new arrays for every request",
            "        if self.keys is None or self.values is None:",
            "        if True:",
        ),
        (
            "slots of twice the length",
            "Hkv, round_up(self.max_seq_len), D)",
            "Hkv, 2 * round_up(self.max_seq_len), D)",
            "BatchingKvCache.add_request",
        ),
    ),
    Mutant(
        "2.6.2",
        "keeps float32, whatever the keys are",
        CACHE,
        mlx=("(mx.zeros(shape, prefilled.keys.dtype) for", "(mx.zeros(shape) for"),
        torch=(
            "self.keys = prefilled.keys.new_zeros(shape)",
            "prefilled.keys, prefilled.values = prefilled.keys.float(), prefilled.values.float()\n"
            "            self.keys = torch.zeros(shape)",
        ),
    ),
    Mutant("2.6.3", "forgets to set the length back", CACHE, both=(REMOVE, "self.active[slot] = False")),
    *wrong(
        "2.6.4",
        REQUEST,
        (
            "computes the prompt token by token",
            STEP,
            "            for at, one in enumerate(self.prompt_tokens):\n"
            "                last = at == len(self.prompt_tokens) - 1\n"
            "                token = self.model.prefill(\n"
            "                    [one], at, self.kv_cache, sampling=self.sampling, sample=last\n"
            "                )\n",
        ),
        (
            "runs the model outside of `model_call`: a call that fails leaves its cache behind",
            SCOPE,
            STEP.replace("            ", "        ", 1).replace("\n            ", "\n        "),
        ),
        (
            "counts the new token as if it were in the cache",
            "self.offset = len(self.prompt_tokens)",
            "self.offset = len(self.prompt_tokens) + 1",
        ),
        part="serving",
    ),
    *wrong(
        "2.6.5",
        REQUEST,
        (
            "honours only one of the end tokens",
            "if token in self.tokenizer.eos_token_ids:",
            "if token == min(self.tokenizer.eos_token_ids):",
        ),
        (
            "ignores an end token that comes with the prompt",
            "if token in self.tokenizer.eos_token_ids:",
            "if update_offset and token in self.tokenizer.eos_token_ids:",
        ),
        ("never counts", "        if update_offset:\n            self.offset += 1\n", ""),
        (
            "looks for stop strings from the second token on",
            "        if self.answer.stopped:",
            "        if self.answer.stopped and len(self.tokens) > 1:",
        ),
        ("asks for the limit first: a stop string that ends there is called a length", LAST, LAST_EXCHANGED),
        (
            "ends without releasing the cache",
            '            self.finish("stop")\n            return',
            '            self.finish_reason = "stop"\n            return',
        ),
        (
            "takes the token of a step in which the request was aborted",
            "        if self.is_done:\n            return\n        if update_offset:",
            "        if update_offset:",
        ),
        part="serving",
    ),
    *wrong(
        "2.6.6",
        REQUEST,
        (
            "changes the reason of a request that has ended",
            ABORT,
            ABORT + '            self.finish_reason = "abort"\n',
        ),
        (
            "sets the reason and keeps the cache",
            ABORT,
            ABORT.replace('self.finish("abort")', 'self.finish_reason = self.finish_reason or "abort"'),
        ),
        (
            "ends the request at once, also while the model is writing to its cache",
            ABORT,
            '        self.finish("abort")\n',
        ),
        part="serving",
    ),
    *wrong(
        "2.6.7",
        BATCH,
        (
            "adds every request into slot 0, taken or not",
            "        slot = self.slots.index(None)\n        for own",
            "        slot = 0\n        for own",
        ),
        (
            "gives a slot to a request that ended with its first token",
            "        if request.is_done:\n",
            "        if request.is_done and not request.is_prefill_done:\n",
        ),
        (
            "does not look again after its listener has heard of the prefill",
            '            self.emit("prefill", request)\n        if not request.is_done:\n',
            '            self.emit("prefill", request)\n',
        ),
        part="serving",
    ),
    Mutant(
        "2.6.7",
        "a request that is aborted after it has moved into its slot releases its caches again",
        REQUEST,
        serving=("released, self._kv_cache = self._kv_cache, []", "released = self._kv_cache"),
    ),
    *wrong(
        "2.6.8",
        BATCH,
        (
            "runs the model outside of `model_call`: nobody waits for its end",
            DECODE,
            DECODE.replace("        with model_call(*requests):\n    ", ""),
        ),
        (
            "gives the tokens to slots 0, 1, 2 …, also when one of them is idle",
            TAKE,
            "        for slot, token in enumerate(token for token in chosen if token is not None):\n"
            "            if self.slots[slot]:\n"
            "                self.slots[slot].decode_done(token)\n",
        ),
        part="serving",
    ),
    *wrong(
        "2.6.9",
        GENERATE,
        (
            "slots as long as the model's context, whatever was asked",
            "Batch(model, batch_size, max_seq_len,",
            "Batch(model, batch_size, model.max_model_len,",
        ),
        (
            "waits for the whole batch to end before it lets others in (static batching)",
            LOOP,
            """            while waiting and batch.free_slot is not None:
                batch.prefill_and_place(waiting.popleft())
            while batch.running:
                batch.remove_ended()
                if batch.running:
                    batch.decode()
                batch.remove_ended()
""",
        ),
        (
            "one request at a time, whatever the number of slots",
            "if waiting and batch.free_slot is not None:",
            "if waiting and not batch.running:",
        ),
        (
            "one bad prompt ends the whole call",
            "    waiting = deque(requests)\n",
            "    if any(request.is_done for request in requests):\n"
            '        return [Completion(i, "", "error") for i, _ in enumerate(requests)]\n'
            "    waiting = deque(requests)\n",
        ),
        part="serving",
    ),
]

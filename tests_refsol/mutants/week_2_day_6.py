"""Wrong solutions of Week 2 Day 6."""

from authors.mutants import Mutant

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
TOKENS = "tokens = [request.next_token if request else None for request in self.slots]"
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
BEGIN = """        if not request.is_done:
            self.emit("prefill", request)
        if not request.is_done:
            self.compute_prompt(request, request.prefill)"""
BEGIN_ALWAYS = """        if request.prompt_tokens:
            self.emit("prefill", request)
            self.compute_prompt(request, request.prefill)"""

MUTANTS = [
    Mutant(
        "2.6.1",
        "writes every row at the position of the longest one",
        CACHE,
        mlx=(
            "self.keys[rows, :, positions]",
            "self.keys[rows, :, positions * 0 + max(self.offsets) + mx.arange(L)]",
        ),
        torch=(
            "places = self._places(torch.arange(B, device=key.device), positions)",
            "positions = positions * 0 + max(self.offsets) + torch.arange(L)\n"
            "        places = self._places(torch.arange(B, device=key.device), positions)",
        ),
    ),
    Mutant("2.6.1", "counts idle slots too", CACHE, both=(COUNT, "[n + L for n in self.offsets]")),
    Mutant(
        "2.6.1",
        "one token a step, however many came",
        CACHE,
        both=(COUNT, "[n + used for n, used in zip(self.offsets, self.active, strict=True)]"),
    ),
    Mutant(
        "2.6.1",
        "hands out all positions of a slot, also those that the mask does not know",
        CACHE,
        both=(
            "return self.keys[:B, :, :S], self.values[:B, :, :S], max(self.offsets), mask",
            "return self.keys[:B], self.values[:B], max(self.offsets), mask",
        ),
    ),
    Mutant(
        "2.6.1",
        "one mask for all rows, that of the longest",
        CACHE,
        mlx=(
            "        self.keys[rows, :, positions] =",
            "        mask = mx.broadcast_to(mask.max(axis=0, keepdims=True), mask.shape)\n"
            "        self.keys[rows, :, positions] =",
        ),
        torch=(
            "        places = self._places(torch.arange(B",
            "        mask = mask.amax(0, keepdim=True).expand(mask.shape)\n"
            "        places = self._places(torch.arange(B",
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
    Mutant(
        "2.6.1",
        "returns the length of the first row",
        CACHE,
        both=("self.values[:B, :, :S], max(self.offsets)", "self.values[:B, :, :S], self.offsets[0]"),
    ),
    Mutant(
        "2.6.1",
        "makes a mask of its own, whatever it was given",
        CACHE,
        both=(
            f"        self.offsets = {COUNT}",
            f"        mask = self.make_mask(L, key.dtype, positions=positions)\n        self.offsets = {COUNT}",
        ),
    ),
    Mutant(
        "2.6.2",
        "counts one token less than the prompt has",
        CACHE,
        mlx=(
            "self.offsets[slot], self.active[slot] = n, True",
            "self.offsets[slot], self.active[slot] = n - 1, True",
        ),
        torch=(
            "self.offsets[slot], self.active[slot] = prefilled.offset, True",
            "self.offsets[slot], self.active[slot] = prefilled.offset - 1, True",
        ),
    ),
    Mutant(
        "2.6.2",
        "makes new arrays for every request",
        CACHE,
        both=("        if self.keys is None or self.values is None:", "        if True:"),
    ),
    Mutant(
        "2.6.2",
        "slots as long as the first request's own cache, whatever was asked for",
        CACHE,
        both=(
            "self.max_seq_len = self.max_seq_len or prefilled.max_seq_len",
            "self.max_seq_len = prefilled.max_seq_len or self.max_seq_len",
        ),
    ),
    Mutant(
        "2.6.2",
        "slots of twice the length",
        CACHE,
        both=("Hkv, round_up(self.max_seq_len), D)", "Hkv, 2 * round_up(self.max_seq_len), D)"),
        inside="BatchingKvCache.add_request",
    ),
    Mutant(
        "2.6.2",
        "refuses a request that fills its slot",
        CACHE,
        both=("if prefilled.offset > length:", "if prefilled.offset >= length:"),
    ),
    Mutant(
        "2.6.2",
        "gives a slot to a request that holds no token",
        CACHE,
        both=("if prefilled.offset == 0:", "if prefilled.keys is None:"),
    ),
    Mutant(
        "2.6.2",
        "passes an empty request over without a word",
        CACHE,
        both=(
            "        self._check_free(slot, prefilled)\n",
            "        if prefilled.offset == 0:\n            return\n        self._check_free(slot, prefilled)\n",
        ),
        inside="BatchingKvCache.add_request",
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
    Mutant(
        "2.6.3",
        "sets the length back, and lets the slot count as active",
        CACHE,
        both=(REMOVE, "self.offsets[slot] = 0"),
    ),
    Mutant(
        "2.6.3",
        "clears every slot behind it too",
        CACHE,
        both=(
            REMOVE,
            "self.offsets[slot:] = [0] * len(self.offsets[slot:])\n"
            "        self.active[slot:] = [False] * len(self.active[slot:])",
        ),
    ),
    Mutant(
        "2.6.4",
        "samples nothing at the prompt: the first token is the prompt's last",
        REQUEST,
        serving=(
            STEP,
            "            self.model.prefill(self.prompt_tokens, 0, self.kv_cache, sample=False)\n"
            "        token = self.prompt_tokens[-1]\n",
        ),
    ),
    Mutant(
        "2.6.4",
        "computes the prompt token by token",
        REQUEST,
        serving=(
            STEP,
            "            for at, one in enumerate(self.prompt_tokens):\n"
            "                last = at == len(self.prompt_tokens) - 1\n"
            "                token = self.model.prefill(\n"
            "                    [one], at, self.kv_cache, sampling=self.sampling, sample=last\n"
            "                )\n",
        ),
    ),
    Mutant(
        "2.6.4",
        "runs the model outside of `model_call`: a call that fails leaves its cache behind",
        REQUEST,
        serving=(SCOPE, STEP.replace("            ", "        ", 1).replace("\n            ", "\n        ")),
    ),
    Mutant(
        "2.6.4",
        "counts the new token as if it were in the cache",
        REQUEST,
        serving=("self.offset = len(self.prompt_tokens)", "self.offset = len(self.prompt_tokens) + 1"),
    ),
    Mutant(
        "2.6.5",
        "honours only one of the end tokens",
        REQUEST,
        serving=(
            "if token in self.tokenizer.eos_token_ids:",
            "if token == min(self.tokenizer.eos_token_ids):",
        ),
    ),
    Mutant(
        "2.6.5",
        "ignores an end token that comes with the prompt",
        REQUEST,
        serving=(
            "if token in self.tokenizer.eos_token_ids:",
            "if update_offset and token in self.tokenizer.eos_token_ids:",
        ),
    ),
    Mutant(
        "2.6.5",
        "never counts",
        REQUEST,
        serving=("        if update_offset:\n            self.offset += 1\n", ""),
    ),
    Mutant(
        "2.6.5",
        "looks for stop strings from the second token on",
        REQUEST,
        serving=(
            "        if self.answer.stopped:",
            "        if self.answer.stopped and len(self.tokens) > 1:",
        ),
    ),
    Mutant(
        "2.6.5",
        "asks for the limit first: a stop string that ends there is called a length",
        REQUEST,
        serving=(LAST, LAST_EXCHANGED),
    ),
    Mutant(
        "2.6.5",
        "ends without releasing the cache",
        REQUEST,
        serving=(
            '            self.finish("stop")\n            return',
            '            self.finish_reason = "stop"\n            return',
        ),
    ),
    Mutant(
        "2.6.5",
        "takes the token of a step in which the request was aborted",
        REQUEST,
        serving=(
            "        if self.is_done:\n            return\n        if update_offset:",
            "        if update_offset:",
        ),
    ),
    Mutant(
        "2.6.6",
        "changes the reason of a request that has ended",
        REQUEST,
        serving=(ABORT, ABORT + '            self.finish_reason = "abort"\n'),
    ),
    Mutant(
        "2.6.6",
        "sets the reason and keeps the cache",
        REQUEST,
        serving=(
            ABORT,
            ABORT.replace('self.finish("abort")', 'self.finish_reason = self.finish_reason or "abort"'),
        ),
    ),
    Mutant(
        "2.6.6",
        "ends the request at once, also while the model is writing to its cache",
        REQUEST,
        serving=(ABORT, '        self.finish("abort")\n'),
    ),
    Mutant(
        "2.6.6",
        "forgets an abort that comes while the model computes the request",
        REQUEST,
        serving=("        self._is_aborted = True\n", ""),
    ),
    Mutant(
        "2.6.6",
        "sets the reason at once while the model computes the request, and lets the call end the rest",
        REQUEST,
        serving=(
            ABORT,
            ABORT + '        else:\n            self.finish_reason = self.finish_reason or "abort"\n',
        ),
    ),
    Mutant("2.6.6", "only marks the request, whether a call runs or not", REQUEST, serving=(ABORT, "")),
    Mutant(
        "2.6.7",
        "adds every request into slot 0, taken or not",
        BATCH,
        serving=(
            "        slot = self.slots.index(None)\n        for own",
            "        slot = 0\n        for own",
        ),
    ),
    Mutant(
        "2.6.7",
        "adds the caches of the first layer only",
        BATCH,
        serving=(
            "in zip(request.kv_cache, self.kv_cache, strict=True):",
            "in zip(request.kv_cache[:1], self.kv_cache[:1], strict=True):",
        ),
    ),
    Mutant(
        "2.6.7",
        "a request that is aborted after it has moved into its slot releases its caches again",
        REQUEST,
        serving=("released, self._kv_cache = self._kv_cache, []", "released = self._kv_cache"),
    ),
    Mutant(
        "2.6.7",
        "gives a slot to a request that ended with its first token",
        BATCH,
        serving=(
            '        if request.is_done:\n            self.emit("finish", request)\n            return\n',
            "        if request.is_done and not request.is_prefill_done:\n"
            '            self.emit("finish", request)\n'
            "            return\n",
        ),
    ),
    Mutant(
        "2.6.7", "prefills a request that was aborted or refused before", BATCH, serving=(BEGIN, BEGIN_ALWAYS)
    ),
    Mutant(
        "2.6.7",
        "does not look again after its listener has heard of the prefill",
        BATCH,
        serving=(
            '            self.emit("prefill", request)\n        if not request.is_done:\n',
            '            self.emit("prefill", request)\n',
        ),
    ),
    Mutant(
        "2.6.8",
        "runs the model outside of `model_call`: nobody waits for its end",
        BATCH,
        serving=(DECODE, DECODE.replace("        with model_call(*requests):\n    ", "")),
    ),
    Mutant(
        "2.6.8",
        "gives the tokens to slots 0, 1, 2 …, also when one of them is idle",
        BATCH,
        serving=(
            TAKE,
            "        for slot, token in enumerate(token for token in chosen if token is not None):\n"
            "            if self.slots[slot]:\n"
            "                self.slots[slot].decode_done(token)\n",
        ),
    ),
    Mutant(
        "2.6.8",
        "leaves idle slots out, so that entry i is no longer slot i",
        BATCH,
        serving=(TOKENS, "tokens = [request.next_token for request in requests]"),
    ),
    Mutant(
        "2.6.8",
        "the position of the longest request for all",
        BATCH,
        serving=(
            "offsets = [request.offset if request else 0 for request in self.slots]",
            "offsets = [max(r.offset for r in self.slots if r) if request else 0 for request in self.slots]",
        ),
    ),
    Mutant(
        "2.6.9",
        "slots as long as the model's context, whatever was asked",
        GENERATE,
        serving=("Batch(model, batch_size, max_seq_len,", "Batch(model, batch_size, model.max_model_len,"),
    ),
    Mutant(
        "2.6.9",
        "a slot for every prompt, whatever was asked",
        GENERATE,
        serving=("Batch(model, batch_size, max_seq_len,", "Batch(model, len(prompts) or 1, max_seq_len,"),
    ),
    Mutant(
        "2.6.9",
        "waits for the whole batch to end before it lets others in (static batching)",
        GENERATE,
        serving=(
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
    ),
    Mutant(
        "2.6.9",
        "one request at a time, whatever the number of slots",
        GENERATE,
        serving=("if waiting and batch.free_slot is not None:", "if waiting and not batch.running:"),
    ),
    Mutant(
        "2.6.9",
        "the last prompt first",
        GENERATE,
        serving=("batch.prefill_and_place(waiting.popleft())", "batch.prefill_and_place(waiting.pop())"),
    ),
    Mutant(
        "2.6.9",
        "a finished request keeps its slot for one more step",
        GENERATE,
        serving=(
            LOOP,
            LOOP.replace(
                "            batch.remove_ended()\n            if",
                "            ended = [slot for slot in batch.running if batch.slots[slot].is_done]\n            if",
            ).replace(
                "                batch.decode()\n            batch.remove_ended()\n",
                "                batch.decode()\n"
                "            batch.remove_ended() if ended or not waiting else None\n",
            ),
        ),
    ),
    Mutant(
        "2.6.9",
        "one bad prompt ends the whole call",
        GENERATE,
        serving=(
            "    waiting = deque(requests)\n",
            "    if any(request.is_done for request in requests):\n"
            '        return [Completion(i, "", "error") for i, _ in enumerate(requests)]\n'
            "    waiting = deque(requests)\n",
        ),
    ),
    Mutant(
        "2.6.9",
        "never releases the caches of the batch",
        GENERATE,
        serving=(
            "        batch.close()\n        for request in requests:\n            request.abort()\n",
            "        for request in requests:\n            request.abort()\n",
        ),
    ),
]

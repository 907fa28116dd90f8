"""Wrong solutions of Week 2 Day 7: the policy of chunks, of a request, of the scheduler and of pausing."""

from authors.mutants import Mutant

CHUNK, REQUEST, SCHEDULER = (
    "chunked_prefill/chunk.py",
    "chunked_prefill/request.py",
    "chunked_prefill/chunked_prefill_scheduler.py",
)
GENERATE, PAUSED, TURNS = (
    "chunked_prefill/chunked_prefill.py",
    "chunked_prefill/paused_prefills.py",
    "chunked_prefill/turns.py",
)
CUT = "return Chunk(offset, min(max_step, prompt_len - offset), prompt_len)"
PIECE = "self.prompt_tokens[chunk.start : chunk.stop],"
CALL = """        with model_call(self):
            token = self.model.prefill(
"""
PREFILL = CALL + "                self.prompt_tokens[chunk"
FIRST = "            self.decode_done(token, update_offset=False)\n"
BY_HAND = """            self.next_token = token
            if token not in self.tokenizer.eos_token_ids:
                self.answer.add(token)
"""
STOPS = """            if token in self.tokenizer.eos_token_ids or self.answer.stopped:
                self.finish("stop")
"""
TOOK = "        self.offset = chunk.stop\n"
PHASES = """        prefilled = self.handle_prefill_phase()
        moved = self.move_prefill_to_decode()
        return self.handle_decode_phase() or prefilled or moved
"""
PENDING = """        if self.pending is None or self.pending.is_prefill_done:
            return False
"""
COMPUTE = """        if step:
            self.compute_chunk(self.pending, step)
"""
WORK = "return bool(self.pending or len(self.turns) or self.batch.running)"
NO_SLOT = """            if self.batch.free_slot is None:
                return False
"""
MOVE = """        if not request.is_done:
            if self.batch.free_slot is None:
                return False
            self.batch.take_slot(request)
        self.leave(request)
        return True
"""
DECODE = """        self.batch.remove_ended()
        if not self.batch.running:
            return False
        self.batch.decode()
        self.batch.remove_ended()
        return True
"""
LOOP = """        while scheduler.has_work_remaining():
            scheduler.step()
"""
FINALLY = """    finally:
        scheduler.close()
        for request in requests:
            request.abort()
"""
COUNT = """        for waiting in self.requests:
            self._made_room[waiting] = self._made_room.get(waiting, 0) + 1
"""

MUTANTS = [
    Mutant(
        "2.7.1",
        "every chunk is a whole step: the last one goes past the end",
        CHUNK,
        serving=(CUT, "return Chunk(offset, max_step, prompt_len)"),
    ),
    Mutant(
        "2.7.1",
        "the rest is added to the last whole chunk",
        CHUNK,
        serving=(
            CUT,
            "left = prompt_len - offset\n"
            "    return Chunk(offset, left if left < 2 * max_step else max_step, prompt_len)",
        ),
    ),
    Mutant(
        "2.7.1",
        "cuts at multiples of the step, wherever the last chunk has ended",
        CHUNK,
        serving=(
            CUT,
            "return Chunk(offset, min(max_step - offset % max_step, prompt_len - offset), prompt_len)",
        ),
    ),
    Mutant(
        "2.7.1",
        "makes an empty chunk at the end of the prompt",
        CHUNK,
        serving=("if not 0 <= offset < prompt_len:", "if not 0 <= offset <= prompt_len:"),
    ),
    Mutant(
        "2.7.1",
        "lets an offset from before the prompt pass",
        CHUNK,
        serving=("if not 0 <= offset < prompt_len:", "if offset >= prompt_len:"),
    ),
    Mutant(
        "2.7.1",
        "takes a step of 0 as one token",
        CHUNK,
        serving=(
            '    if max_step < 1:\n        raise ValueError(f"max_step is {max_step}: a chunk has at least 1 token")\n',
            "    max_step = max(max_step, 1)\n",
        ),
    ),
    Mutant(
        "2.7.2",
        "feeds the first chunk's tokens again",
        REQUEST,
        serving=(PIECE, "self.prompt_tokens[: chunk.size],"),
    ),
    Mutant(
        "2.7.2",
        "positions restart at 0 in every chunk",
        REQUEST,
        serving=("                chunk.start,\n", "                0,\n"),
    ),
    Mutant(
        "2.7.2",
        "positions are one too far from the second chunk on",
        REQUEST,
        serving=("                chunk.start,\n", "                chunk.start + (chunk.start > 0),\n"),
    ),
    Mutant(
        "2.7.2",
        "a new cache for every chunk: the chunks before it are forgotten",
        REQUEST,
        serving=(
            PREFILL,
            "        self._kv_cache = []\n" + PREFILL,
        ),
    ),
    Mutant(
        "2.7.2",
        "samples every chunk, and keeps the last one's token",
        REQUEST,
        serving=("sample=chunk.is_last", "sample=True"),
    ),
    Mutant(
        "2.7.2",
        "ignores the step: the whole prompt at once",
        REQUEST,
        serving=("len(self.prompt_tokens), self.prefill_max_step)", "len(self.prompt_tokens), 10**6)"),
    ),
    Mutant(
        "2.7.2",
        "counts the chunk twice: its tokens, and one for the new token",
        REQUEST,
        serving=("self.decode_done(token, update_offset=False)", "self.decode_done(token)"),
        inside="Request.try_prefill",
    ),
    Mutant(
        "2.7.2",
        "takes the first token by hand, and does not count it: the answer is one token too long",
        REQUEST,
        serving=(FIRST, BY_HAND + STOPS),
        inside="Request.try_prefill",
    ),
    Mutant(
        "2.7.2",
        "takes the first token by hand, and asks for no limit",
        REQUEST,
        serving=(FIRST, BY_HAND + "            self.tokens.append(token)\n" + STOPS),
        inside="Request.try_prefill",
    ),
    Mutant(
        "2.7.2",
        "takes the first token by hand, and looks for no stop string in it",
        REQUEST,
        serving=(
            FIRST,
            BY_HAND
            + "            self.tokens.append(token)\n"
            + STOPS.replace(" or self.answer.stopped", "")
            + "            elif len(self.tokens) >= self.max_new_tokens:\n"
            + '                self.finish("length")\n',
        ),
        inside="Request.try_prefill",
    ),
    Mutant(
        "2.7.2",
        "a stop string in the first token counts from the second token on",
        REQUEST,
        serving=(
            FIRST,
            FIRST + '            if self.answer.stopped and self.finish_reason == "stop":\n'
            "                self.finish_reason = None\n",
        ),
        inside="Request.try_prefill",
    ),
    Mutant(
        "2.7.2",
        "returns the offset and not the tokens of this chunk",
        REQUEST,
        serving=("        return chunk.size\n", "        return chunk.stop\n"),
    ),
    Mutant(
        "2.7.2",
        "runs the last token again when it is called after the end",
        REQUEST,
        serving=(
            "        if self.is_prefill_done or self.is_done:\n            raise ValueError(",
            "        if self.is_prefill_done or self.prompt_left == 0:\n            return 0\n"
            "        if self.is_done:\n            raise ValueError(",
        ),
    ),
    Mutant(
        "2.7.2",
        "goes on after an abort",
        REQUEST,
        serving=(
            "if self.is_prefill_done or self.is_done:\n            raise",
            "if self.is_prefill_done:\n            raise",
        ),
    ),
    Mutant(
        "2.7.2",
        "says that the prefill is done with the first chunk",
        REQUEST,
        serving=(TOOK, TOOK + "        self.is_prefill_done = True\n"),
    ),
    Mutant(
        "2.7.2",
        "counts before the step, so that a step that fails was counted, too",
        REQUEST,
        serving=(
            PREFILL,
            "        self.offset = chunk.stop\n" + PREFILL,
        ),
    ),
    Mutant(
        "2.7.2",
        "runs the model outside of `model_call`: an abort takes the cache away while it is written to",
        REQUEST,
        serving=(CALL, CALL.replace("with model_call(self):", "if True:")),
        inside="Request.try_prefill",
    ),
    Mutant(
        "2.7.2",
        "protects only the chunk that ends the prompt",
        REQUEST,
        serving=(CALL, CALL.replace("model_call(self)", "model_call(*[self] * chunk.is_last)")),
        inside="Request.try_prefill",
    ),
    Mutant(
        "2.7.3",
        "drains first: computes the whole prompt before anyone decodes",
        SCHEDULER,
        serving=(
            COMPUTE,
            "        while step and not (self.pending.is_prefill_done or self.pending.is_done):\n"
            "            self.compute_chunk(self.pending, step)\n",
        ),
    ),
    Mutant(
        "2.7.3",
        "prompts first: nobody decodes in a step that has computed a chunk",
        SCHEDULER,
        serving=(
            PHASES,
            PHASES.replace(
                "self.handle_decode_phase() or prefilled or moved",
                "prefilled or moved or self.handle_decode_phase()",
            ),
        ),
    ),
    Mutant(
        "2.7.3",
        "decodes first: a prompt is computed only when nobody decodes",
        SCHEDULER,
        serving=(
            PHASES,
            PHASES.replace(
                "self.handle_prefill_phase()", "not self.batch.running and self.handle_prefill_phase()"
            ),
        ),
    ),
    Mutant(
        "2.7.3",
        "a chunk of every prompt that waits in one step: the step bounds each of them, and not their sum",
        SCHEDULER,
        serving=(
            PHASES,
            PHASES.replace(
                "        moved = self.move_prefill_to_decode()\n",
                "        moved = self.move_prefill_to_decode()\n"
                "        while moved and self.handle_prefill_phase():\n"
                "            moved = self.move_prefill_to_decode()\n",
            ),
        ),
    ),
    Mutant(
        "2.7.3",
        "stops when the queue and the slots are empty, and loses the pending prompt",
        SCHEDULER,
        serving=(WORK, "return bool(len(self.turns) or self.batch.running)"),
    ),
    Mutant(
        "2.7.3",
        "stops when no prompt waits, and forgets those that run",
        SCHEDULER,
        serving=(WORK, "return bool(self.pending or len(self.turns))"),
    ),
    Mutant(
        "2.7.3",
        "drops a finished prompt when no slot is free",
        SCHEDULER,
        serving=(
            NO_SLOT,
            "            if self.batch.free_slot is None:\n"
            "                self.pending = None\n"
            "                return False\n",
        ),
    ),
    Mutant(
        "2.7.3",
        "puts a finished prompt that finds no slot back into the queue, to be asked again",
        SCHEDULER,
        serving=(
            NO_SLOT,
            "            if self.batch.free_slot is None:\n"
            "                self.turns.queue.add(request)\n"
            "                self.pending = None\n"
            "                return False\n",
        ),
    ),
    Mutant(
        "2.7.3",
        "looks for a slot before the chunk: the last slot stays empty",
        SCHEDULER,
        serving=(
            NO_SLOT,
            "            if len(self.batch.running) >= max(len(self.batch.slots) - 1, 1):\n"
            "                return False\n",
        ),
    ),
    Mutant(
        "2.7.3",
        "moves a prompt into its slot after the decode phase: it decodes one step late",
        SCHEDULER,
        serving=(
            PHASES,
            "        prefilled = self.handle_prefill_phase()\n"
            "        decoded = self.handle_decode_phase()\n"
            "        return self.move_prefill_to_decode() or decoded or prefilled\n",
        ),
    ),
    Mutant(
        "2.7.3",
        "gives a slot to a request that ended with its first token",
        SCHEDULER,
        serving=(
            MOVE,
            "        if self.batch.free_slot is None:\n"
            "            return False\n"
            "        self.batch.take_slot(request)\n"
            "        self.leave(request)\n"
            "        return True\n",
        ),
    ),
    Mutant(
        "2.7.3",
        "lets one that ended with its first token wait for a slot, too",
        SCHEDULER,
        serving=(
            MOVE,
            MOVE.replace(
                "if not request.is_done:\n            if self.batch.free_slot is None:\n                return False\n",
                "if self.batch.free_slot is None:\n            return False\n        if not request.is_done:\n",
            ),
        ),
    ),
    Mutant(
        "2.7.3",
        "keeps the slot of a request that has ended until the next step",
        SCHEDULER,
        serving=(
            DECODE,
            DECODE.replace(
                "        self.batch.decode()\n        self.batch.remove_ended()\n",
                "        self.batch.decode()\n",
            ),
        ),
    ),
    Mutant(
        "2.7.3",
        "looks for ended requests only after the step: one that was aborted a moment ago is computed once more",
        SCHEDULER,
        serving=(DECODE, DECODE.removeprefix("        self.batch.remove_ended()\n")),
    ),
    Mutant(
        "2.7.3",
        "says that nothing was done when it has only computed a chunk",
        SCHEDULER,
        serving=(PHASES, PHASES.replace(" or prefilled or moved", "")),
    ),
    Mutant(
        "2.7.3",
        "a step says whether work is left, and not whether it did any",
        SCHEDULER,
        serving=(
            PHASES,
            PHASES.replace(
                "return self.handle_decode_phase() or prefilled or moved",
                "self.handle_decode_phase()\n        return prefilled or moved or self.has_work_remaining()",
            ),
        ),
    ),
    Mutant(
        "2.7.3",
        "a step always says that it did something: a loop on it never ends",
        SCHEDULER,
        serving=(
            PHASES,
            PHASES.replace(
                "return self.handle_decode_phase() or prefilled or moved",
                "self.handle_decode_phase()\n        return True",
            ),
        ),
    ),
    Mutant(
        "2.7.3",
        "says that a chunk was computed while a finished prompt waits for its slot",
        SCHEDULER,
        serving=(PENDING, PENDING.replace("return False", "return self.pending is not None")),
    ),
    Mutant(
        "2.7.3",
        "says that a chunk was computed only if it ended its prompt",
        SCHEDULER,
        serving=("        return step > 0\n", "        return step > 0 and self.pending.is_prefill_done\n"),
    ),
    Mutant(
        "2.7.3",
        "says that a prompt has moved although no slot was free",
        SCHEDULER,
        serving=(NO_SLOT, NO_SLOT.replace("return False", "return True")),
    ),
    Mutant(
        "2.7.3",
        "says that nobody has left when a prompt has moved into its slot",
        SCHEDULER,
        serving=(MOVE, MOVE.replace("return True", "return request.is_done")),
    ),
    Mutant(
        "2.7.3",
        "says that nobody ran in the step in which the last one ends",
        SCHEDULER,
        serving=(DECODE, DECODE.replace("return True", "return bool(self.batch.running)")),
    ),
    Mutant(
        "2.7.3",
        "hands out what it has found, and no yes or no",
        SCHEDULER,
        serving=(WORK, "return self.pending or len(self.turns) or self.batch.running"),
    ),
    Mutant(
        "2.7.3",
        "gives every result again in the next call",
        SCHEDULER,
        serving=(
            "        self._requests = [request for request in self._requests if not request.is_done]\n",
            "",
        ),
    ),
    Mutant(
        "2.7.3",
        "gives the results in the order in which the requests were added",
        SCHEDULER,
        serving=(
            "return sorted(map(Completion.of, ended), key=lambda completion: completion.prompt_idx)",
            "return list(map(Completion.of, ended))",
        ),
    ),
    Mutant(
        "2.7.3",
        "a driver that stops early leaves those that wait without an end",
        SCHEDULER,
        serving=(
            "        for request in self._requests:\n            request.abort()",
            "        for request in self._requests:\n            request.abort() if request.offset else None",
        ),
    ),
    Mutant(
        "2.7.3",
        "a driver that stops early leaves the pending prompt and its cache behind",
        SCHEDULER,
        serving=(
            "        for request in self._requests:\n            request.abort()",
            "        for request in self._requests:\n"
            "            request.abort() if request is not self.pending else None",
        ),
    ),
    Mutant(
        "2.7.3",
        "always a chunk of 128, whatever the step",
        SCHEDULER,
        serving=(COMPUTE, COMPUTE.replace("self.pending, step)", "self.pending, 128)")),
    ),
    Mutant(
        "2.7.3",
        "ends the loop at the first step in which nobody gets a token",
        GENERATE,
        serving=(LOOP, "        while scheduler.step() and scheduler.batch.running:\n            pass\n"),
    ),
    Mutant(
        "2.7.3",
        "closes the scheduler at the end, and not on the way out of an exception",
        GENERATE,
        serving=(
            FINALLY,
            "    except BaseException:\n"
            "        for request in requests:\n"
            "            request.abort()\n"
            "        raise\n",
        ),
    ),
    Mutant(
        "2.7.3",
        "closes it on errors, and not on Ctrl-C",
        GENERATE,
        serving=(FINALLY, FINALLY.replace("    finally:", "    except Exception:") + "        raise\n"),
    ),
    Mutant(
        "2.7.9",
        "makes room for a prompt that is just as long",
        TURNS,
        serving=(
            "self.next_shorter(current.prompt_left, interactive_only",
            "self.next_shorter(current.prompt_left + 1, interactive_only",
        ),
    ),
    Mutant(
        "2.7.9",
        "compares with the whole prompt, and not with what is left of it",
        TURNS,
        serving=(
            "self.next_shorter(current.prompt_left, interactive_only",
            "self.next_shorter(len(current.prompt_tokens), interactive_only",
        ),
    ),
    Mutant(
        "2.7.9",
        "has no end of patience: short prompts starve a long one",
        PAUSED,
        serving=(
            "return all(self.has_patience(waiting) for waiting in [*self.requests, request])",
            "return True",
        ),
    ),
    Mutant(
        "2.7.9",
        "asks for the patience of the current prompt only",
        PAUSED,
        serving=(
            "return all(self.has_patience(waiting) for waiting in [*self.requests, request])",
            "return self.has_patience(request)",
        ),
    ),
    Mutant(
        "2.7.9",
        "counts a pause for the last prompt only",
        PAUSED,
        serving=(COUNT, "        self._made_room[request] = self._made_room.get(request, 0) + 1\n"),
    ),
    Mutant(
        "2.7.9",
        "a driver that stops early leaves the paused prompts and their caches behind",
        SCHEDULER,
        serving=(
            "        for request in self._requests:\n            request.abort()",
            "        for request in self._requests:\n"
            "            request.abort() if request not in self.turns.paused.requests else None",
        ),
    ),
    Mutant(
        "2.7.9",
        "resumes from the beginning of the prompt",
        PAUSED,
        serving=(
            "        self.requests.remove(request)\n        return request\n",
            "        self.requests.remove(request)\n"
            "        request.release()\n"
            "        request._kv_cache, request.offset = [], 0\n"
            "        return request\n",
        ),
    ),
    Mutant(
        "2.7.9",
        "resumes the oldest first",
        PAUSED,
        serving=("request = tired[0] if tired else self.requests[-1]", "request = self.requests[0]"),
    ),
    Mutant(
        "2.7.9",
        "resumes the shortest, also when another has no patience left",
        PAUSED,
        serving=("request = tired[0] if tired else self.requests[-1]", "request = self.requests[-1]"),
    ),
    Mutant(
        "2.7.9",
        "an interactive prompt makes room for a batch one",
        TURNS,
        serving=(
            'only = current.priority == "interactive" or self.keeps_slots([*running, current], slots)',
            "only = self.keeps_slots([*running, current], slots)",
        ),
    ),
    Mutant(
        "2.7.9",
        "a batch prompt makes room for one that may not have a slot",
        TURNS,
        serving=(
            'only = current.priority == "interactive" or self.keeps_slots([*running, current], slots)',
            'only = current.priority == "interactive"',
        ),
    ),
    Mutant(
        "2.7.9",
        "of batch prompts, those that are paused need no slot",
        TURNS,
        serving=(
            "for request in [*begun, *self.paused.requests])",
            "for request in begun)",
        ),
    ),
    Mutant(
        "2.7.9",
        "reserves one slot too few",
        TURNS,
        serving=("return taken >= slots", "return taken > slots"),
    ),
    Mutant(
        "2.7.9",
        "reserves one slot too many",
        TURNS,
        serving=("return taken >= slots", "return taken + 1 >= slots"),
    ),
    Mutant(
        "2.7.9",
        "when a prompt makes room, does not count that prompt itself: it will need a slot, too",
        TURNS,
        serving=("self.keeps_slots([*running, current], slots)", "self.keeps_slots(running, slots)"),
    ),
    Mutant(
        "2.7.9",
        "where slots are reserved, a batch request never runs",
        TURNS,
        serving=("return taken >= slots - self.reserved_decode_slots", "return taken >= 0"),
    ),
    Mutant(
        "2.7.9",
        "a batch request begins only when nobody runs",
        TURNS,
        serving=("interactive_only=self.keeps_slots(running, slots)", "interactive_only=bool(running)"),
    ),
    Mutant(
        "2.7.9",
        "counts interactive requests, too: they take the slots of batch ones",
        TURNS,
        serving=('sum(request.priority == "batch" for', "sum(True for"),
    ),
    Mutant(
        "2.7.9",
        "waits as long as the peak lasts",
        TURNS,
        serving=("self._waited < self.patience", "self._waited >= 0"),
    ),
    Mutant(
        "2.7.9",
        "waits once, and then never again",
        TURNS,
        serving=("self._waited = self._waited + 1 if waits else 0", "self._waited += waits"),
    ),
    Mutant(
        "2.7.9",
        "counts every step at peak load, also the one in which the prompt had its chunk",
        TURNS,
        serving=("self._waited + 1 if waits else 0", "self._waited + 1 if load >= self.peak_load else 0"),
    ),
    Mutant(
        "2.7.9",
        "short prompts wait, too",
        TURNS,
        serving=("and request.prompt_left > prefill_step", "and request.prompt_left > 0"),
    ),
    Mutant(
        "2.7.9",
        "takes any load for the peak",
        TURNS,
        serving=("load >= self.peak_load", "load > 0"),
    ),
    Mutant(
        "2.7.9",
        "the peak begins only above its own share",
        TURNS,
        serving=("load >= self.peak_load", "load > self.peak_load"),
    ),
    Mutant(
        "2.7.2",
        "takes the first token inside the call's context: a request that was aborted meanwhile has one more",
        REQUEST,
        inside="Request.try_prefill",
        serving=(
            "        self.offset = chunk.stop\n"
            "        if chunk.is_last:\n"
            "            self.is_prefill_done = True\n"
            "            assert token is not None  # `sample` has asked for one\n"
            "            self.decode_done(token, update_offset=False)\n",
            "            self.offset = chunk.stop\n"
            "            if chunk.is_last:\n"
            "                self.is_prefill_done = True\n"
            "                self.decode_done(token, update_offset=False)\n",
        ),
    ),
]

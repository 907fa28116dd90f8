"""Wrong solutions of Week 2 Day 7: the policy of chunks, of a request, of the scheduler and of pausing."""

from authors.mutants import Mutant, wrong

CHUNK, REQUEST, SCHEDULER = (
    "chunked_prefill/chunk.py",
    "chunked_prefill/request.py",
    "chunked_prefill/chunked_prefill_scheduler.py",
)
GENERATE, TURNS = "chunked_prefill/chunked_prefill.py", "chunked_prefill/turns.py"
CUT = "return Chunk(offset, min(max_step, prompt_len - offset), prompt_len)"
CALL = """        with model_call(self):
            token = self.model.prefill(
"""
PREFILL = CALL + "                self.prompt_tokens[chunk"
FIRST = "            self.decode_done(token, update_offset=False)\n"
MOVED = "return self.handle_decode_phase() or prefilled or moved"
WORK = "return bool(self.pending or len(self.turns) or self.batch.running)"
NO_SLOT = "            if self.batch.free_slot is None:\n"
MOVE = """        if not request.is_done:
            if self.batch.free_slot is None:
                return False
            self.batch.take_slot(request)
"""
FINALLY = """    finally:
        scheduler.close()
        for request in requests:
            request.abort()
"""

MUTANTS = [
    *wrong(
        "2.7.1",
        CHUNK,
        (
            "the rest is added to the last whole chunk",
            CUT,
            "left = prompt_len - offset\n"
            "    return Chunk(offset, left if left < 2 * max_step else max_step, prompt_len)",
        ),
        (
            "cuts at multiples of the step, wherever the last chunk has ended",
            CUT,
            "return Chunk(offset, min(max_step - offset % max_step, prompt_len - offset), prompt_len)",
        ),
        (
            "makes an empty chunk at the end of the prompt",
            "if not 0 <= offset < prompt_len:",
            "if not 0 <= offset <= prompt_len:",
        ),
        (
            "lets an offset from before the prompt pass",
            "if not 0 <= offset < prompt_len:",
            "if offset >= prompt_len:",
        ),
        (
            "takes a step of 0 as one token",
            '    if max_step < 1:\n        raise ValueError(f"max_step is {max_step}: a chunk has at least 1 token")\n',
            "    max_step = max(max_step, 1)\n",
        ),
        part="serving",
    ),
    *wrong(
        "2.7.2",
        REQUEST,
        (
            "counts the chunk twice: its tokens, and one for the new token",
            "self.decode_done(token, update_offset=False)",
            "self.decode_done(token)",
            "Request.try_prefill",
        ),
        (
            "a stop string in the first token counts from the second token on",
            FIRST,
            FIRST + '            if self.answer.stopped and self.finish_reason == "stop":\n'
            "                self.finish_reason = None\n",
            "Request.try_prefill",
        ),
        (
            "returns the offset and not the tokens of this chunk",
            "        return chunk.size\n",
            "        return chunk.stop\n",
        ),
        (
            "runs the last token again when it is called after the end",
            "        if self.is_prefill_done or self.is_done:\n            raise ValueError(",
            "        if self.is_prefill_done or self.prompt_left == 0:\n            return 0\n"
            "        if self.is_done:\n            raise ValueError(",
        ),
        (
            "counts before the step, so that a step that fails was counted, too",
            PREFILL,
            "        self.offset = chunk.stop\n" + PREFILL,
        ),
        (
            "takes the first token inside the call's context: a request that was aborted meanwhile has one more",
            "        self.offset = chunk.stop\n"
            "        if chunk.is_last:\n"
            "            self.is_prefill_done = True\n"
            "            assert token is not None  # `sample` has asked for one\n"
            "            self.decode_done(token, update_offset=False)\n",
            "            self.offset = chunk.stop\n"
            "            if chunk.is_last:\n"
            "                self.is_prefill_done = True\n"
            "                self.decode_done(token, update_offset=False)\n",
            "Request.try_prefill",
        ),
        part="serving",
    ),
    *wrong(
        "2.7.3",
        SCHEDULER,
        (
            "prompts first: nobody decodes in a step that has computed a chunk",
            MOVED,
            "return prefilled or moved or self.handle_decode_phase()",
        ),
        (
            "stops when the queue and the slots are empty, and loses the pending prompt",
            WORK,
            "return bool(len(self.turns) or self.batch.running)",
        ),
        (
            "stops when no prompt waits, and forgets those that run",
            WORK,
            "return bool(self.pending or len(self.turns))",
        ),
        (
            "drops a finished prompt when no slot is free",
            NO_SLOT,
            NO_SLOT + "                self.pending = None\n",
        ),
        (
            "gives a slot to a request that ended with its first token",
            MOVE,
            "        if self.batch.free_slot is None:\n"
            "            return False\n"
            "        self.batch.take_slot(request)\n",
        ),
        (
            "a step always says that it did something: a loop on it never ends",
            MOVED,
            "self.handle_decode_phase()\n        return True",
        ),
        (
            "a driver that stops early leaves those that wait without an end",
            "            request.abort()",
            "            request.abort() if request.offset else None",
        ),
        part="serving",
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
        "2.7.9",
        "a driver that stops early leaves the paused prompts and their caches behind",
        SCHEDULER,
        serving=(
            "            request.abort()",
            "            request.abort() if request not in self.turns.paused.requests else None",
        ),
    ),
    *wrong(
        "2.7.9",
        TURNS,
        (
            "resumes from the beginning of the prompt",
            "        self.requests.remove(request)\n        return request\n",
            "        self.requests.remove(request)\n"
            "        request.release()\n"
            "        request._kv_cache, request.offset = [], 0\n"
            "        return request\n",
        ),
        (
            "an interactive prompt makes room for a batch one",
            'only = current.priority == "interactive" or self.keeps_slots([*running, current], slots)',
            "only = self.keeps_slots([*running, current], slots)",
        ),
        (
            "of batch prompts, those that are paused need no slot",
            "for request in [*begun, *self.paused.requests])",
            "for request in begun)",
        ),
        part="serving",
    ),
]

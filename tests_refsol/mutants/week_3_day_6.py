"""Wrong solutions of Week 3 Day 6."""

from authors.mutants import Mutant, wrong

LOOP, STREAM = "loop/engine_loop.py", "loop/request_stream.py"
NEXT = """        while not self._unread:
            if self.is_done:
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
"""
ABORTS = """        for stream in abandoned:
            for request in stream.requests:
                request.abort()
"""

STOPPING = """        if self.state in ("starting", "ready"):
            self.state = "stopping"
"""

MUTANTS = [
    *wrong(
        "3.6.1",
        STREAM,
        (
            "the stream ends with the first answer that ends",
            "                self._open.discard(piece.index)\n",
            "                self._open.clear()\n",
        ),
        (
            "never clears the event",
            NEXT,
            "        if self.is_done and not self._unread:\n            raise StopAsyncIteration\n"
            "        await self._has_news.wait()\n",
        ),
        (
            "waits until every open answer has a piece",
            "while not self._unread:",
            "while not self._unread or len(self._unread) < len(self._open):",
        ),
        (
            "drops a piece without text, and its token",
            "        for piece in pieces:\n",
            "        for piece in pieces:\n            if not piece.text and piece.finish_reason is None:\n"
            "                continue\n",
        ),
        part="serving",
    ),
    *wrong(
        "3.6.2",
        LOOP,
        ("takes requests as long as it is not dead", 'if self.state != "ready":', 'if self.state == "dead":'),
        (
            "counts those that wait for the next turn, not those that run",
            "if self.num_open + answers",
            "if len(self._arrived) + answers",
        ),
        ("always says that a place is free in a second", "QueueFull(self.retry_after())", "QueueFull(1)"),
        (
            "adds the request to the engine at once, on the event loop's thread",
            "        return stream\n",
            "        self.engine.add(requests[0])\n        return stream\n",
        ),
        part="serving",
    ),
    *wrong(
        "3.6.3",
        LOOP,
        (
            "aborts only the first prompt of an abandoned request",
            ABORTS,
            ABORTS.replace("in stream.requests:", "in stream.requests[:1]:"),
        ),
        (
            "adds the first request of a stream",
            "            for request in stream.requests:\n                self.engine.add(request)\n",
            "            for request in stream.requests[:1]:\n                self.engine.add(request)\n",
        ),
        (
            "collects when a whole stream has ended",
            "if any(piece.finish_reason for _, pieces in news for piece in pieces):",
            "if any(stream.has_ended for stream, _ in news):",
        ),
        (
            "keeps a stream whose reader has left",
            "if not stream.has_ended]",
            "if not stream.has_ended or any(one.finish_reason == 'abort' for one in stream.sequences)]",
        ),
        part="serving",
    ),
    *wrong(
        "3.6.4",
        LOOP,
        ("counts all failures of its life", "        else:\n            self._failures = 0\n", ""),
        (
            "does not report the failure that it gives up at",
            "            self.on_failure(error)\n"
            "            if self._failures >= self.max_failures:\n                raise\n",
            "            if self._failures >= self.max_failures:\n                raise\n"
            "            self.on_failure(error)\n",
        ),
        (
            "takes Ctrl-C for a failure of the step",
            "except Exception as error:",
            "except BaseException as error:",
            "EngineLoop.try_step",
        ),
        part="serving",
    ),
    *wrong(
        "3.6.5",
        LOOP,
        (
            "takes arrivals when everybody has ended",
            "arrived, self._arrived = self._arrived, []",
            "arrived = [] if self._served else self._arrived\n"
            "                self._arrived = self._arrived[len(arrived):]",
        ),
        (
            "looks for work every 10 ms",
            "            while await self._work_comes():\n",
            '            while not (self.state == "stopping" and not self._open):\n'
            "                if not self._open:\n"
            "                    await asyncio.sleep(0.01)\n                    continue\n",
        ),
        (
            "aborts those that have left in every turn",
            "abandoned, self._abandoned = self._abandoned, []",
            "abandoned = self._abandoned",
        ),
        (
            "a cancelled loop leaves its readers waiting",
            "except BaseException as error:",
            "except Exception as error:",
            "EngineLoop.serve",
        ),
        (
            "lets the readers run before the next step",
            "                self._deliver(await self.on_worker(self.turn, arrived, abandoned))\n",
            "                self._deliver(await self.on_worker(self.turn, arrived, abandoned))\n"
            "                await asyncio.sleep(0)\n",
        ),
        part="serving",
    ),
    Mutant(
        "3.6.6",
        "of two readers that leave during a step, the first runs on",
        LOOP,
        serving=("self._abandoned.append(stream)", "self._abandoned = [stream]"),
    ),
    Mutant(
        "3.6.6",
        "goes on with the other answers when one has ended",
        STREAM,
        serving=(
            "if not self.is_done:\n            self._abandon",
            "if len(self._open) == len(self.sequences):\n            self._abandon",
        ),
    ),
    *wrong(
        "3.6.7",
        LOOP,
        ("aborts the first of the open requests", "list(self._open)", "list(self._open)[:1]"),
        (
            "looks every 30 ms whether the requests have ended",
            "            await asyncio.wait_for(self._is_over.wait(), seconds)\n",
            "            clock = asyncio.get_running_loop()\n            end = clock.time() + seconds\n"
            "            while self._open:\n                await asyncio.sleep(0.03)\n"
            "                if clock.time() >= end:\n                    raise asyncio.TimeoutError\n",
        ),
        ("wakes nobody", "        self._wake.set()\n        try:", "        try:"),
        ("a dead engine looks stopped", STOPPING, '        self.state = "stopping"\n'),
        (
            "gives up when the running step takes longer",
            "            await self._is_over.wait()\n",
            "            await asyncio.wait([asyncio.ensure_future(self._is_over.wait())], timeout=seconds)\n",
        ),
        part="serving",
    ),
]

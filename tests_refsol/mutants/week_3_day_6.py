"""Wrong solutions of Week 3 Day 6."""

from authors.mutants import Mutant

LOOP, STREAM = "loop/engine_loop.py", "loop/request_stream.py"
MERGED = "piece if unread is None else unread.followed_by(piece)"
NEXT = """        while not self._unread:
            if self.is_done:
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
"""
REFUSALS = """        if self.state != "ready":
            raise NotServing(self.state)
        if self.num_open + answers > self.max_open:
            raise QueueFull(self.retry_after())
"""
ABORTS = """        for stream in abandoned:
            for request in stream.requests:
                request.abort()
"""
TURN = (
    ABORTS
    + """        for stream in arrived:
            self._served.append(stream)
            for request in stream.requests:
                self.engine.add(request)
        self.try_step()
"""
)

STOPPING = """        if self.state in ("starting", "ready"):
            self.state = "stopping"
"""

MUTANTS = [
    Mutant(
        "3.6.1",
        "a slow reader loses all but the newest piece",
        STREAM,
        survives="a test whose reader waits for every piece",
        serving=(MERGED, "piece"),
    ),
    Mutant(
        "3.6.1",
        "a reader that comes late finds one piece per step",
        STREAM,
        survives="a test of the text that arrives: nothing limits what a slow reader lets pile up",
        serving=(
            f"            unread = self._unread.get(piece.index)\n            self._unread[piece.index] = {MERGED}\n",
            "            self._unread[len(self._unread)] = piece\n",
        ),
    ),
    Mutant(
        "3.6.1",
        "the stream ends with the first answer that ends",
        STREAM,
        survives="a test with one answer per request",
        serving=(
            "                self._open.discard(piece.index)\n",
            "                self._open.clear()\n",
        ),
    ),
    Mutant(
        "3.6.1",
        "looks at the end before what is unread",
        STREAM,
        survives="a test whose reader has read everything when the last piece comes",
        serving=(NEXT, "        if self.is_done:\n            raise StopAsyncIteration\n" + NEXT),
    ),
    Mutant(
        "3.6.1",
        "never clears the event",
        STREAM,
        survives="a test whose pieces are all there before they are read",
        serving=(
            NEXT,
            "        if self.is_done and not self._unread:\n            raise StopAsyncIteration\n"
            "        await self._has_news.wait()\n",
        ),
    ),
    Mutant(
        "3.6.1",
        "what was read stays",
        STREAM,
        survives="a test that reads one piece",
        serving=(
            "        self._unread.clear()\n",
            "        self._unread = dict(self._unread) if self.is_done else {}\n",
        ),
    ),
    Mutant(
        "3.6.1",
        "waits until every open answer has a piece",
        STREAM,
        survives="a test whose answers all run from the first step",
        serving=("while not self._unread:", "while not self._unread or len(self._unread) < len(self._open):"),
    ),
    Mutant(
        "3.6.2",
        "no limit: everybody may wait",
        LOOP,
        survives="a test without overload",
        serving=("if self.num_open + answers > self.max_open:", "if False:"),
    ),
    Mutant(
        "3.6.2",
        "counts requests, not their answers",
        LOOP,
        survives="a test with one answer per request",
        serving=("self.num_open + answers > self.max_open", "len(self._open) + 1 > self.max_open"),
    ),
    Mutant(
        "3.6.2",
        "takes requests as long as it is not dead",
        LOOP,
        survives="a test of a loop that is ready, and of one that is dead",
        serving=('if self.state != "ready":', 'if self.state == "dead":'),
    ),
    Mutant(
        "3.6.2",
        "counts those that wait for the next turn, not those that run",
        LOOP,
        survives="a test without a turn",
        serving=("if self.num_open + answers", "if len(self._arrived) + answers"),
    ),
    Mutant(
        "3.6.2",
        "a full server that stops asks the client to come back",
        LOOP,
        survives="a test of an empty loop that stops",
        serving=(REFUSALS, "".join(REFUSALS.splitlines(True)[2:] + REFUSALS.splitlines(True)[:2])),
    ),
    Mutant(
        "3.6.2",
        "always says that a place is free in a second",
        LOOP,
        survives="a test of a loop in which nothing has ended yet",
        serving=("QueueFull(self.retry_after())", "QueueFull(1)"),
    ),
    Mutant(
        "3.6.2",
        "opens the stream before it looks whether there is room",
        LOOP,
        survives="a test of the refusal alone: every refused request takes a place for ever",
        serving=(REFUSALS, "        self._open[RequestStream(requests, self.abandon)] = None\n" + REFUSALS),
        inside="EngineLoop.submit",
    ),
    Mutant(
        "3.6.2",
        "adds the request to the engine at once, on the event loop's thread",
        LOOP,
        survives="a test without threads: it works as long as no step is running",
        serving=(
            "        self._arrived.append(stream)\n        self._wake.set()\n        return stream\n",
            "        self._arrived.append(stream)\n        self._wake.set()\n"
            "        self.engine.add(requests[0])\n        return stream\n",
        ),
    ),
    Mutant(
        "3.6.3",
        "aborts only the first prompt of an abandoned request",
        LOOP,
        survives="a test with one prompt per request",
        serving=(ABORTS, ABORTS.replace("in stream.requests:", "in stream.requests[:1]:")),
    ),
    Mutant(
        "3.6.3",
        "aborts after the step",
        LOOP,
        survives="a test in which nobody waits for the blocks",
        serving=(TURN, TURN.removeprefix(ABORTS) + ABORTS),
    ),
    Mutant(
        "3.6.3",
        "tells an aborted request's reader nothing",
        LOOP,
        survives="a test of the engine's calls: the request stays open, and its place is lost",
        serving=(
            "[(stream, pieces) for stream in self._served if (pieces := stream.new_pieces())]",
            "[(stream, pieces) for stream in self._served\n"
            "                if stream not in abandoned and (pieces := stream.new_pieces())]",
        ),
    ),
    Mutant(
        "3.6.3",
        "asks ended requests for news for ever",
        LOOP,
        survives="a test of the answers: every step gets slower",
        serving=(
            "            self._served = [stream for stream in self._served if not stream.has_ended]\n",
            "",
        ),
    ),
    Mutant(
        "3.6.3",
        "looks for ended requests after every step",
        LOOP,
        survives="a test of the answers",
        serving=(
            "        if any(piece.finish_reason for _, pieces in news for piece in pieces):\n",
            "        if news:\n",
        ),
    ),
    Mutant(
        "3.6.4",
        "a failing step kills the engine",
        LOOP,
        survives="a test without failures",
        serving=("if self._failures >= self.max_failures:", "if self._failures:"),
    ),
    Mutant(
        "3.6.4",
        "counts all failures of its life",
        LOOP,
        survives="a test of failures in a row",
        serving=("        else:\n            self._failures = 0\n", ""),
    ),
    Mutant(
        "3.6.4",
        "tries for ever",
        LOOP,
        survives="a test of one failure: with a device that is gone, every request waits and fails",
        serving=(
            "            if self._failures >= self.max_failures:\n                raise\n",
            "",
        ),
    ),
    Mutant(
        "3.6.4",
        "tells nobody of a failure",
        LOOP,
        survives="a test of the requests: the operator learns of nothing",
        serving=("            self.on_failure(error)\n", ""),
    ),
    Mutant(
        "3.6.4",
        "does not report the failure that it gives up at",
        LOOP,
        survives="a test of failures from which it recovers",
        serving=(
            "            self.on_failure(error)\n"
            "            if self._failures >= self.max_failures:\n                raise\n",
            "            if self._failures >= self.max_failures:\n                raise\n"
            "            self.on_failure(error)\n",
        ),
    ),
    Mutant(
        "3.6.4",
        "takes Ctrl-C for a failure of the step",
        LOOP,
        survives="a test of ordinary exceptions",
        serving=("except Exception as error:", "except BaseException as error:"),
        inside="EngineLoop.try_step",
    ),
    Mutant(
        "3.6.5",
        "runs the step on the event loop's thread",
        LOOP,
        survives="a test in virtual time: every reader waits while a step runs",
        serving=(
            "self._deliver(await self.on_worker(self.turn, arrived, abandoned))",
            "self._deliver(self.turn(arrived, abandoned))\n                await asyncio.sleep(0)",
        ),
    ),
    Mutant(
        "3.6.5",
        "hands the same arrivals over again",
        LOOP,
        survives="a test of one step",
        serving=("arrived, self._arrived = self._arrived, []", "arrived = list(self._arrived)"),
    ),
    Mutant(
        "3.6.5",
        "takes arrivals when everybody has ended",
        LOOP,
        survives="a test whose requests are all there at the start",
        serving=(
            "arrived, self._arrived = self._arrived, []",
            "arrived = [] if self._served else self._arrived\n"
            "                self._arrived = self._arrived[len(arrived):]",
        ),
    ),
    Mutant(
        "3.6.5",
        "looks for work every 10 ms",
        LOOP,
        survives="a test of the answers: an idle server never sleeps",
        serving=(
            "            while await self._work_comes():\n",
            '            while not (self.state == "stopping" and not self._open):\n'
            "                if not self._open:\n"
            "                    await asyncio.sleep(0.01)\n                    continue\n",
        ),
    ),
    Mutant(
        "3.6.5",
        "a dead engine leaves its readers waiting",
        LOOP,
        survives="a test of what `serve` raises",
        serving=(
            "            self._die(error)\n            raise\n        self.state",
            '            self.state = "dead"\n            raise\n        self.state',
        ),
    ),
    Mutant(
        "3.6.5",
        "a cancelled loop leaves its readers waiting",
        LOOP,
        survives="a test of engines that fail: CancelledError is no Exception",
        serving=("except BaseException as error:", "except Exception as error:"),
        inside="EngineLoop.serve",
    ),
    Mutant(
        "3.6.5",
        "lets the readers run before the next step",
        LOOP,
        survives="a test of the answers: the device waits for the readers after every step",
        serving=(
            "                self._deliver(await self.on_worker(self.turn, arrived, abandoned))\n",
            "                self._deliver(await self.on_worker(self.turn, arrived, abandoned))\n"
            "                await asyncio.sleep(0)\n",
        ),
    ),
    Mutant(
        "3.6.6",
        "aborts at once, while a step writes into the blocks",
        LOOP,
        survives="a test whose reader leaves between two steps",
        serving=(
            "            self._abandoned.append(stream)\n",
            "            self._abandoned.append(stream)\n"
            "            for request in stream.requests:\n                request.abort()\n",
        ),
    ),
    Mutant(
        "3.6.6",
        "forgets the request, which runs to its end for nobody",
        LOOP,
        survives="a test of what the other readers get",
        serving=("            self._abandoned.append(stream)\n", "            self._abandoned = []\n"),
    ),
    Mutant(
        "3.6.6",
        "a request that has ended is abandoned too",
        STREAM,
        survives="a test of readers that leave early",
        serving=(
            "        if not self.is_done:\n            self._abandon(self)\n",
            "        self._abandon(self)\n",
        ),
    ),
    Mutant(
        "3.6.6",
        "of two readers that leave during a step, the first runs on",
        LOOP,
        survives="a test of one reader that leaves",
        serving=("self._abandoned.append(stream)", "self._abandoned = [stream]"),
    ),
    Mutant(
        "3.6.6",
        "goes on with the other answers when one has ended",
        STREAM,
        survives="a test with one answer per request",
        serving=(
            "if not self.is_done:\n            self._abandon",
            "if len(self._open) == len(self.sequences):\n            self._abandon",
        ),
    ),
    Mutant(
        "3.6.6",
        "its place is free before its blocks are",
        LOOP,
        survives="a test of the aborts: more requests are open than the loop takes",
        serving=(
            "            self._abandoned.append(stream)\n",
            "            self._abandoned.append(stream)\n            del self._open[stream]\n",
        ),
    ),
    Mutant(
        "3.6.7",
        "stops without waiting for the open requests",
        LOOP,
        survives="a test of an idle loop",
        serving=("await asyncio.wait_for(self._is_over.wait(), seconds)", "raise asyncio.TimeoutError"),
    ),
    Mutant(
        "3.6.7",
        "waits for the open requests as long as they take",
        LOOP,
        survives="a test of short requests",
        serving=(
            "asyncio.wait_for(self._is_over.wait(), seconds)",
            "asyncio.wait_for(self._is_over.wait(), None)",
        ),
    ),
    Mutant(
        "3.6.7",
        "aborts the first of the open requests",
        LOOP,
        survives="a test of one request",
        serving=("list(self._open)", "list(self._open)[:1]"),
    ),
    Mutant(
        "3.6.7",
        "closes the engine before the aborts",
        LOOP,
        survives="a test of the answers: the engine's thread has ended, and a turn follows",
        serving=(
            "                self.abandon(stream)\n            await self._is_over.wait()\n",
            "                self.abandon(stream)\n",
        ),
    ),
    Mutant(
        "3.6.7",
        "looks every 30 ms whether the requests have ended",
        LOOP,
        survives="a test of the answers",
        serving=(
            "            await asyncio.wait_for(self._is_over.wait(), seconds)\n",
            "            clock = asyncio.get_running_loop()\n            end = clock.time() + seconds\n"
            "            while self._open:\n                await asyncio.sleep(0.03)\n"
            "                if clock.time() >= end:\n                    raise asyncio.TimeoutError\n",
        ),
    ),
    Mutant(
        "3.6.7",
        "wakes nobody",
        LOOP,
        survives="a test with an open request",
        serving=("        self._wake.set()\n        try:", "        try:"),
    ),
    Mutant(
        "3.6.7",
        "takes requests while it stops",
        LOOP,
        survives="a test of what was open before",
        serving=(
            STOPPING + "        self._wake",
            "        later = asyncio.get_running_loop().call_later\n"
            '        later(1, lambda: setattr(self, "state", "stopping"))\n        self._wake',
        ),
    ),
    Mutant(
        "3.6.7",
        "a dead engine looks stopped",
        LOOP,
        survives="a test of a loop that is ready",
        serving=(
            STOPPING,
            '        self.state = "stopping"\n',
        ),
    ),
    Mutant(
        "3.6.1",
        "drops a piece without text, and its token",
        STREAM,
        survives="a test whose tokens are letters",
        serving=(
            "        for piece in pieces:\n",
            "        for piece in pieces:\n            if not piece.text and piece.finish_reason is None:\n"
            "                continue\n",
        ),
    ),
    Mutant(
        "3.6.3",
        "adds the first request of a stream",
        LOOP,
        survives="a test with one prompt per reader",
        serving=(
            "            for request in stream.requests:\n                self.engine.add(request)\n",
            "            for request in stream.requests[:1]:\n                self.engine.add(request)\n",
        ),
    ),
    Mutant(
        "3.6.3",
        "collects when a whole stream has ended",
        LOOP,
        survives="a test with one answer per stream",
        serving=(
            "if any(piece.finish_reason for _, pieces in news for piece in pieces):",
            "if any(stream.has_ended for stream, _ in news):",
        ),
    ),
]

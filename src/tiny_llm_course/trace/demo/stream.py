"""The second demo: requests arrive over time, one task steps the scheduler, and each client reads its own stream."""

import asyncio
from collections.abc import AsyncIterator, Callable

from tiny_llm_engine.solutions.solution_types import Event

from ..serve import Listener
from .runs import Demo, DemoPolicy, PolicyRun

IDLE = 0.002  # seconds between two polls when idle


class Streams:
    """A listener that holds the texts of `count` requests, piece by piece as they come."""

    def __init__(self, count: int):
        self._pieces = [asyncio.Queue() for _ in range(count)]
        self._given = [0] * count  # characters of each text

    def __call__(self, event: Event) -> None:
        if event.kind in ("token", "finish"):
            index, text = event.request.prompt_idx, event.request.text
            self._pieces[index].put_nowait(text[self._given[index] :])
            self._given[index] = len(text)
        if event.kind == "finish":
            self._pieces[event.request.prompt_idx].put_nowait(None)

    async def of(self, index: int) -> AsyncIterator[str]:
        """The pieces of one text, until its end."""
        while (piece := await self._pieces[index].get()) is not None:
            if piece:
                yield piece


async def others_run() -> None:
    """Let every due task run: one turn for its timer, one to wake it, one to run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def serve_async(
    demo: Demo,
    policy: DemoPolicy,
    on_event: Listener,
    check_interrupt: Callable[[], None],
    gap: float,
    on_piece: Callable[[int, str], object] = lambda number, piece: None,
    on_end: Callable[[int], object] = lambda number: None,
) -> PolicyRun:
    """Serve all requests under one policy; they are sent `gap` seconds apart.

    A step blocks the loop, as it blocks a server. A request sent during a step is received after it, but waits
    from the moment at which it was sent.

    Raises:
        KeyboardInterrupt: from `check_interrupt`, between two steps; every task has ended and every cache is released.
    """
    streams = Streams(len(demo.specs))

    def emit(event: Event) -> None:
        streams(event)
        on_event(event)

    async def client(number: int) -> None:
        await asyncio.sleep(began + number * gap - loop.time())
        service.send(number, start + number * gap)
        async for piece in streams.of(number):
            on_piece(number, piece)
        on_end(number)

    with demo.service(policy, emit) as service:
        loop = asyncio.get_running_loop()
        began, start = loop.time(), service.serving.clock()
        clients = [loop.create_task(client(number)) for number in range(len(demo.specs))]
        try:
            for _ in service.steps(check_interrupt, lambda: not all(task.done() for task in clients)):
                await others_run()
                if not service.scheduler.has_work_remaining():
                    await asyncio.sleep(IDLE)
        finally:
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
    for task in clients:
        task.result()  # a client that failed says so
    return PolicyRun(policy, demo.specs, service.requests, service.trace())

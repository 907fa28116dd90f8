"""Asyncio in virtual time: the clock jumps to the next timer, and the worker thread is simulated."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
LONG = 1000.0  # virtual seconds
MOST = 20_000  # rounds of the event loop, far more than a test needs


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as no task can run."""

    def __init__(self):
        super().__init__()
        self.now, self.rounds = 0.0, 0
        selector = vars(self)["_selector"]  # asyncio has no public name for it
        self._really_select, selector.select = selector.select, self._select

    def _select(self, timeout: float | None = None) -> list:
        self.rounds += 1
        if self.rounds > MOST:
            raise AssertionError("the event loop never rests: a task polls, or waits in a loop")
        if timeout is not None and timeout > 0:
            self.now += timeout
            timeout = 0
        return self._really_select(timeout)

    def time(self) -> float:
        return self.now


class SlowExecutor(Executor):
    """An executor whose calls take virtual seconds each, like a worker thread that computes.

    The event loop runs meanwhile.
    """

    def __init__(self, seconds: float = 1):
        self.seconds = seconds

    def submit(self, fn: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # as in a thread: what has begun cannot be cancelled
        asyncio.get_running_loop().call_later(self.seconds, future.set_result, fn(*arguments, **options))
        return future


def run_virtually(main: Callable[[VirtualTimeLoop], Coroutine[object, object, T]]) -> T:
    """Run a coroutine in virtual time.

    Raises:
        AssertionError: it waits for something that never comes.
    """
    loop, tasks = VirtualTimeLoop(), []

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task:
        tasks.append(asyncio.Task(coroutine, loop=loop, **options))
        return tasks[-1]

    loop.set_task_factory(factory)
    # A blank task makes the test fail by name. The traceback of its abandoned coroutine would bury that name.
    loop.set_exception_handler(lambda loop, context: None)

    async def limited() -> T:
        try:
            return await asyncio.wait_for(main(loop), LONG)
        except asyncio.TimeoutError:
            for task in tasks:  # a blank task may be why
                if task.done() and not task.cancelled() and isinstance(task.exception(), NotImplementedError):
                    raise task.exception() from None
            raise AssertionError("a task waits for ever: nothing will wake it") from None

    try:
        return loop.run_until_complete(limited())
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

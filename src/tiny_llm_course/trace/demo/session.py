"""The demo from beginning to end: every policy in turn, each shown while it runs."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console

from tiny_llm_engine.llm_engine import interrupts_kept
from tiny_llm_engine.machine.ram import resident_bytes
from tiny_llm_engine.solutions.solution_types import Event

from .device_watch import DeviceWatch
from .runs import POLICIES, Demo, DemoPolicy, PolicyRun
from .stream import serve_async
from .view import Pieces, choose_view


def serve_policies(
    demo: Demo,
    console: Console,
    gap: float | None = None,
    moves: bool = False,
    used_bytes: Callable[[], int | None] = resident_bytes,
) -> tuple[list[PolicyRun], bool]:
    """Serve under each policy; return the finished runs, and whether Ctrl-C was pressed.

    Args:
        gap: seconds between two requests, whose texts are then streamed; None sends all at the start.
        moves: whether a table is drawn below the lines.
        used_bytes: see `DeviceWatch`.
    """
    runs = []
    try:
        with interrupts_kept() as check:
            console.print("warming up: the longest prompt once")
            demo.warm_up()
            check()
            for number, policy in enumerate(POLICIES, 1):
                console.print(f"\n{number} of {len(POLICIES)}, {policy.name}: {policy.says}", style="bold")
                watch = DeviceWatch(used_bytes)
                run = _serve(demo, policy, console, gap, moves, check, watch)
                runs.append(replace(run, use=watch.use))
    except KeyboardInterrupt:
        return runs, True
    return runs, False


def _serve(
    demo: Demo,
    policy: DemoPolicy,
    console: Console,
    gap: float | None,
    moves: bool,
    check: Callable[[], None],
    watch: DeviceWatch,
) -> PolicyRun:
    with choose_view(console, demo.specs, moves) as view, watch:

        def listen(event: Event) -> None:
            view(event)
            watch(event)

        if gap is None:
            return demo.serve(policy, listen, check)
        pieces = Pieces(console, demo.specs)
        return asyncio.run(serve_async(demo, policy, listen, check, gap, pieces, pieces.flush))


def serve_silently(demo: Demo, policy: DemoPolicy) -> PolicyRun | None:
    """Serve the requests under one policy, and show nothing meanwhile; None if Ctrl-C was pressed."""
    try:
        with interrupts_kept() as check:
            return demo.serve(policy, lambda event: None, check)
    except KeyboardInterrupt:
        return None

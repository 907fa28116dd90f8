"""The demo from beginning to end: every policy in turn, each shown while it runs."""

import asyncio
from collections.abc import Callable

from rich.console import Console

from ...terminal import interrupts_kept
from .runs import POLICIES, Demo, DemoPolicy, PolicyRun
from .stream import serve_async
from .view import Pieces, choose_view


def serve_policies(
    demo: Demo, console: Console, gap: float | None = None, moves: bool = False
) -> tuple[list[PolicyRun], bool]:
    """Serve under each policy; return the finished runs, and whether Ctrl-C was pressed.

    Args:
        gap: seconds between two requests, whose texts are then streamed; None sends all at the start.
        moves: whether a table is drawn below the lines.
    """
    runs = []
    try:
        with interrupts_kept() as check:
            console.print("warming up: the longest prompt once")
            demo.warm_up()
            check()
            for number, policy in enumerate(POLICIES, 1):
                console.print(f"\n{number} of {len(POLICIES)}, {policy.name}: {policy.says}", style="bold")
                runs.append(_serve(demo, policy, console, gap, moves, check))
    except KeyboardInterrupt:
        return runs, True
    return runs, False


def _serve(
    demo: Demo, policy: DemoPolicy, console: Console, gap: float | None, moves: bool, check: Callable
) -> PolicyRun:
    with choose_view(console, demo.specs, moves) as view:
        if gap is None:
            return demo.serve(policy, view, check)
        pieces = Pieces(console, demo.specs)
        return asyncio.run(serve_async(demo, policy, view, check, gap, pieces, pieces.flush))

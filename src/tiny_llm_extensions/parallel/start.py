"""Makes this process rank 0 of several: starts the others, or joins those that torchrun or mlx.launch has started."""

import os
import sys
from contextlib import ExitStack

from tiny_llm_engine.solutions.port import Port

from ..given import given_of
from ..job import Job
from .follower import follow
from .groups import Group
from .meeting_point import KEY_LENGTH, Contact, MeetingPoint, start_process
from .other_ranks import OtherRanks
from .ranks import PATIENCE_SECONDS, Ranks, share_threads
from .timed_group import timed

# One of these is in the environment of a process that torchrun or mlx.launch has started.
LAUNCHED_BY = {"RANK", "MLX_RANK"}


def ranks_of(port: Port, job: Job) -> OtherRanks:
    """The other ranks that the job's options ask for, which have joined this process.

    Under torchrun or mlx.launch this returns in rank 0 alone: the other processes follow it, and end with it.

    Raises:
        RankError: a rank cannot start.
        ValueError: another number of ranks was started.
        RuntimeError: this process is in a group of ranks already.
    """
    size = job.options.num_ranks
    if size == 1:
        return OtherRanks()
    place = given_of(port).launched()
    if place is None:
        return started_ranks(port, job, size)
    if place.size != size:
        raise ValueError(
            f"{place.size} ranks were started, and the engine is for {size}: give as many by tensor_parallel_size or "
            "pipeline_parallel_size"
        )
    ranks = launched_ranks(port, place.host)
    ranks.has_stages = job.options.has_stages
    ranks.group = timed(port, ranks.group, ranks.has_stages)
    ranks.send(job.message())
    return ranks


def follow_if_launched(solution: str, backend: str, size: int) -> None:
    """Makes a process that torchrun or mlx.launch has started follow rank 0, before it opens an address or a file.

    Returns in rank 0, and in a process that was started alone.

    Args:
        size: number of ranks that the options ask for.
    """
    if size == 1 or not LAUNCHED_BY.intersection(os.environ):
        return  # found without a port, for that imports an array library
    port = Port(solution, backend)
    place = given_of(port).launched()
    if place is not None and place.rank > 0:
        launched_ranks(port, place.host)


def started_ranks(port: Port, job: Job, size: int) -> Ranks:
    """Starts the other ranks on this machine."""
    with ExitStack() as undo, ExitStack() as at_the_end:
        meeting, point = given_of(port).Meeting(size), MeetingPoint()
        at_the_end.callback(meeting.close)
        at_the_end.callback(point.close)
        processes = {}
        for rank in range(1, size):
            places = meeting.environment(rank) | point.environment(rank)
            processes[rank] = start_process({**os.environ, **places})
            undo.callback(processes[rank].kill)
        channels = point.accept(size, processes, PATIENCE_SECONDS)
        ranks = Ranks(channels, processes, job.options.has_stages)
        undo.callback(ranks.close)
        ranks.send(job.message())
        ranks.wait_until_ready()
        ranks.group = timed(port, meeting.join(port.device), ranks.has_stages)
        share_threads(port, size)
        undo.pop_all()  # nothing has failed
    return ranks


def launched_ranks(port: Port, host: str) -> Ranks:
    """Joins the ranks that were started beside this process. In another rank than 0 this never returns.

    Args:
        host: name or address of the machine of rank 0.
    """
    group = given_of(port).join_launched(port.device)
    point = MeetingPoint(host) if group.rank == 0 else None
    door = point and point.contact(0)
    contact = Contact(group.rank, host, *shared_door(port, group, door))
    if point is None:
        sys.exit(follow(contact.connect(), group))
    ranks = Ranks(point.accept(group.size, {}, PATIENCE_SECONDS), {})
    point.close()
    ranks.group = group
    share_threads(port, group.size)
    return ranks


def shared_door(port: Port, group: Group, own: Contact | None) -> tuple[int, str]:
    """Rank 0's port and key on every rank: the first row of what all ranks gather; the others' rows are blank.

    Arrays are all that a group carries before there are channels, so the text goes as the numbers of its characters.
    """
    text = f"{own.port:5}{own.key}" if own else " " * (5 + KEY_LENGTH)
    rows = port.numpy(group.all_gather(port.array([*text.encode()], "float32")))
    text = bytes(map(int, rows[0])).decode()
    return int(text[:5]), text[5:]

"""Ranks as processes of their own, by torch.distributed: gloo on a CPU, NCCL on CUDA, HCCL on an HPU.

Each rank has one device. torchrun starts ranks, and so does the engine; both name a rank's place in the environment.
Only gloo was run by us.
"""

import os
import socket
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tiny_llm_engine.arrays.torch import hpu

from ..groups import RankPlace

LIBRARIES = {"cpu": "gloo", "cuda": "nccl", "hpu": "hccl"}
# Ranks may wait for each other as long as one of them compiles. That they are alive is seen by their heartbeats.
PATIENCE = timedelta(days=1)


class ProcessGroup:
    """A `Group` whose ranks are processes. Made by `Meeting.join` or `join_launched`."""

    def __init__(self, group: Any):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self._sending: list[tuple[Any, torch.Tensor]] = []  # an array must live until it has been sent

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """See `Group.all_reduce`."""
        _end_graph(x)
        dist.all_reduce(x, group=self.group)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """See `Group.all_gather`. Gathered along the first axis: a stack of arrays breaks HPU graphs."""
        x = x.contiguous()
        out = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        _end_graph(x)
        with warnings.catch_warnings():
            # Its successor is missing in Intel's builds of torch.
            warnings.filterwarnings("ignore", "`torch.distributed.all_gather_into_tensor`")
            dist.all_gather_into_tensor(out, x, group=self.group)
        return out.reshape(self.size, *x.shape)

    def all_to_all(self, x: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        """See `Group.all_to_all`."""
        out = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), list(received), list(sent), group=self.group)
        return out

    def send(self, x: torch.Tensor, rank: int) -> None:
        """See `Group.send`."""
        self._sending = [(work, array) for work, array in self._sending if not work.is_completed()]
        x = x.contiguous()
        self._sending.append((dist.isend(x, rank, group=self.group), x))

    def receive(self, shape: tuple[int, ...], like: torch.Tensor, rank: int) -> torch.Tensor:
        """See `Group.receive`."""
        out = like.new_empty(shape)
        dist.recv(out, rank, group=self.group)
        return out

    def leave(self) -> None:
        """Closes the connections to the other ranks."""
        dist.destroy_process_group()


def _end_graph(x: torch.Tensor) -> None:
    """Before a collective call in a Gaudi's lazy mode: what x depends on must be on its way."""
    if x.device.type == "hpu":
        hpu.mark_step()


class Meeting:
    """Where ranks that this process starts find each other: a key-value store on a free port of this machine.

    Args:
        size: number of ranks; this process is rank 0.
    """

    def __init__(self, size: int):
        self.size = size
        listener = socket.create_server(("127.0.0.1", 0))  # a store of its own would listen on every address
        host, port = listener.getsockname()
        self.store = dist.TCPStore(
            host, port, size, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    def environment(self, rank: int) -> dict[str, str]:
        """What another rank's process finds in its environment; `join_launched` reads it."""
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            **hpu.card_of_rank(rank),
        }

    def join(self, device: str) -> ProcessGroup:
        """This process joins as rank 0, and waits for the others.

        Raises:
            RuntimeError: they do not come, or this process is in a group already.
        """
        os.environ.update(hpu.card_of_rank(0))  # before the first array is on the card
        store = dist.PrefixStore("default_pg", self.store)  # as torch does where it reads the environment
        return _join(device, store=store, rank=0, world_size=self.size)

    def close(self) -> None:
        """Frees what the ranks needed to meet."""


def launched(environment: Mapping[str, str] = os.environ) -> RankPlace | None:
    """This process's place, if torchrun or the engine has started it as one of several ranks."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        return None
    return RankPlace(int(environment["RANK"]), int(environment["WORLD_SIZE"]), environment["MASTER_ADDR"])


def join_launched(device: str) -> ProcessGroup:
    """This process joins the ranks with which it was started, and waits for them.

    Raises:
        RuntimeError: they do not come.
    """
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return _join(device)


def _join(device: str, **place: Any) -> ProcessGroup:
    if dist.is_initialized():
        raise RuntimeError("this process is in a group of ranks already: close the LLM that uses it first")
    hpu.load_collectives(device)
    if device == "cpu" and os.environ.get("MASTER_ADDR", "127.0.0.1") == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    dist.init_process_group(LIBRARIES[device], timeout=PATIENCE, **place)
    return ProcessGroup(dist.group.WORLD)


def _loopback() -> str:
    """The name of the network interface that leads to this machine alone."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")

"""Prompts on devices of their own, in virtual time: some devices compute them, links carry them, others decode.

The schedulers are the solution's. A device for prompts serves requests that end with their first token. What one of its
steps has computed is sent while it computes the next one. A device for decodes gets a request when keys and values of
all tokens but the prompt's last one have arrived; it computes that one itself, and so chooses the first token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiny_llm_course.trace.simulation.prompts_elsewhere import computed_of, table_of_arrived
from tiny_llm_course.trace.simulation.simulator import Simulation
from tiny_llm_course.trace.workload import RequestSpec
from tiny_llm_engine.solutions.solution_types import AnswerSequence, Event, ServingPackage
from tiny_llm_extensions.kv_transfer.transfers import Computed

from ..latency_recorder import Latencies, LatencyRecorder
from .hardware import Hardware
from .served import SEQS, simulation_on

PROMPT_BUDGET = 2048  # tokens of a step where nothing decodes
DECODE_BUDGET = 512  # of a step of decodes: for requests that were preempted, whose text is computed again


@dataclass(frozen=True)
class Split:
    """How many devices compute prompts, and how many decode. Requests go to each kind in turn."""

    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.prefill}:{self.decode}"

    def ends(self, number: int) -> tuple[str, str]:
        """The devices of a request."""
        return f"P{number % self.prefill}", f"D{number % self.decode}"


class DoorRecorder(LatencyRecorder):
    """Records latencies since requests came to the door, however long ago that was; `specs` are all of them."""

    def __init__(self, specs: Sequence[RequestSpec]):
        super().__init__()
        self._specs = specs

    def arrive(self, sequence: AnswerSequence, time: float) -> None:
        super().arrive(sequence, self._specs[sequence.request_id].time)


@dataclass(frozen=True)
class Load:
    """Requests for several devices, which get them in turn.

    Args:
        hardware: each of the devices.
        names: the module `serving` of a solution.
        specs: the requests, in the order of their arrival.
        longest: tokens of a prompt and its answer, at most.
    """

    hardware: Hardware
    names: ServingPackage
    specs: Sequence[RequestSpec]
    longest: int

    def _device(self, budget: int, recorder: LatencyRecorder, **options: Any) -> Simulation:
        sizes = {"max_num_batched_tokens": budget, "max_num_seqs": SEQS}
        return simulation_on(self.hardware, self.names, recorder, self.longest, **sizes, **options)

    def computed(self, split: Split) -> list[Computed]:
        """What the devices for prompts compute, in the order of time."""
        events: list[Event] = []
        for first in range(split.prefill):
            device = self._device(PROMPT_BUDGET, LatencyRecorder(), on_event=events.append)
            for number in range(first, len(self.specs), split.prefill):
                device.send(replace(self.specs[number], answer=1), number)
            device.run()
        return sorted(computed_of(events, split.ends))

    def decoded(self, arrived: Mapping[int, float], devices: int) -> Latencies:
        """Latencies of the requests on one of the devices that decode; the others are like it.

        Args:
            arrived: when the prompt of a request has arrived, by number.
            devices: how many decode.
        """
        device = self._device(DECODE_BUDGET, DoorRecorder(self.specs))
        device.loop.scheduler.new_table = table_of_arrived(self.names)
        for number in range(0, len(self.specs), devices):
            device.send(replace(self.specs[number], time=arrived[number]), number)
        return device.run().recorder.latencies()

    def in_chunks(self, budget: int, devices: int) -> Latencies:
        """Latencies of the requests on one of several devices that compute chunks beside decodes."""
        device = self._device(budget, LatencyRecorder())
        device.send_all(self.specs[::devices])
        return device.run().recorder.latencies()

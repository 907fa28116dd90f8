"""Incident 16 of the starvation corpus: two replicas, and all requests at one of them.

It is apart from the others, because it is about a router and not about a scheduler. Every replica is an engine as in
the rest of the corpus: 10 ms for a step, 0.1 ms for each token of a prompt in it, 512 tokens in a step.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tiny_llm_course.trace.incidents.incident_run import BUDGET, SEQS
from tiny_llm_course.trace.simulation.simulated_model import SimulatedPackedModel
from tiny_llm_course.trace.simulation.simulator import Simulation
from tiny_llm_course.trace.simulation.step_cost import INCIDENTS
from tiny_llm_course.trace.workload import SHORT, RequestSpec
from tiny_llm_engine.solutions.solution_types import Event, ServingPackage

THREADS = ("sgl-project/sglang#27547", "vllm-project/tpu-inference#3307")
MOST = 0.6  # of the time that one replica takes; 0.5 would be an even division
BLOCK = 16  # tokens
VOCABULARY = 2**10


class Router(Protocol):
    """Chooses replicas; `ReplicaLoads` of a solution is one, with `started` besides."""

    def set_replicas(self, names: Iterable[str]) -> None:
        """Set which replicas run."""

    def send(self, request: Hashable, prompt: list[int], max_tokens: int | None) -> str:
        """The replica of a request, by name."""
        ...

    def finish(self, request: Hashable) -> None:
        """A request has ended."""


@dataclass(frozen=True)
class RoutedCase:
    """Requests for two replicas that must not take longer than `MOST` of what one replica takes for them.

    Args:
        title: what distinguishes the case.
        lengths: tokens of each prompt, by arrival.
        every: ms between two arrivals.
        shared: tokens at the front that all prompts have in common.
        answer: tokens of each answer.
    """

    title: str
    lengths: tuple[int, ...]
    every: float
    shared: int = 0
    answer: int = 1

    def requests(self) -> list[RequestSpec]:
        """The requests, each with its own token ids after those that all share."""
        return [
            RequestSpec(
                SHORT,
                length,
                self.answer,
                time=self.every * number / 1000,
                prompt=(1,) * self.shared + (number + 2,) * (length - self.shared),
            )
            for number, length in enumerate(self.lengths)
        ]


ROUTED_CASES = (
    RoutedCase("long prompts, answers of one token", (8192,) * 16, every=50),
    RoutedCase("all prompts share one block", (8192,) * 16, every=50, shared=256),
    RoutedCase("everybody shares one system prompt", (4608,) * 64, every=10, shared=4096, answer=4),
    RoutedCase("every other prompt is long", (8192, 128) * 8, every=50),
)


class RoutedRun:
    """Requests on several replicas in virtual time. The router learns of each end when it happens.

    Args:
        names: `serving` of a solution.
        case: the requests.
        router: chooses the replica of each request as it arrives. Where it has `started`, this is called with a
            request when its answer has begun.
        replicas: how many there are.
    """

    def __init__(self, names: ServingPackage, case: RoutedCase, router: Router, replicas: int = 2):
        self.router, self.chosen = router, []
        self._on_start: Callable[[Hashable], object] | None = getattr(router, "started", None)
        self._longest = max(case.lengths) + case.answer
        self._news: list[tuple[float, Callable[[Hashable], object], int]] = []
        self._ends: dict[int, float] = {}
        self.replicas = {f"replica-{i}": self._replica(names) for i in range(replicas)}
        router.set_replicas(self.replicas)
        for number, spec in enumerate(case.requests()):
            self._arrive(number, spec)
        for replica in self.replicas.values():
            replica.run()

    @property
    def makespan(self) -> float:
        """Seconds from the first arrival until the last request has ended."""
        return max(self._ends.values())

    def _replica(self, names: ServingPackage) -> Simulation:
        model = SimulatedPackedModel(names.Sampled, INCIDENTS, self._longest)
        model.vocab_size = VOCABULARY
        return Simulation(
            names,
            model=model,
            on_event=self._on_event,
            enable_prefix_caching=True,
            block_size=BLOCK,
            max_num_batched_tokens=BUDGET,
            max_num_seqs=SEQS,
        )

    def _arrive(self, number: int, spec: RequestSpec) -> None:
        """Send a request at its time, when every replica is at that time and the router knows what has ended."""
        for replica in self.replicas.values():
            replica.run(spec.time)
        self._report_news(spec.time)
        name = self.router.send(number, list(spec.prompt), spec.answer)
        self.chosen.append(name)
        self.replicas[name].send(spec, number)

    def _on_event(self, event: Event) -> None:
        if event.kind == "finish":
            self._ends[event.request.request_id] = event.time
            self._news.append((event.time, self.router.finish, event.request.request_id))
        elif event.kind == "token" and self._on_start is not None:
            self._news.append((event.time, self._on_start, event.request.request_id))

    def _report_news(self, now: float) -> None:
        """Report to the router what has happened by now; a step that began before may end after."""
        due = sorted((one for one in self._news if one[0] <= now), key=lambda one: one[0])
        self._news = [one for one in self._news if one[0] > now]
        for _, method, number in due:
            method(number)


def share_of_one(names: ServingPackage, case: RoutedCase, router: Callable[[], Router]) -> float:
    """Time of two replicas as a share of the time of one; 0.5 is an even division."""
    one, two = (RoutedRun(names, case, router(), replicas) for replicas in (1, 2))
    return two.makespan / one.makespan

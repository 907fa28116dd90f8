"""A workload on Week 3's engine: requests present at the start, and arrivals between its steps."""

from collections import deque

from tiny_llm_kit.engine.llm_engine import LLMEngine
from tiny_llm_kit.solution_types import Event
from tiny_llm_kit.trace.workload import Workload


class EngineLoad:
    """The requests of one run. A listener for the engine's events.

    `arrives` of a request counts the calls of the model that decode. Every policy and every budget has the same number
    of them, so a prompt meets the same batch under all.

    Args:
        engine: the engine that serves them.
        workload: the requests and their arrivals.
    """

    def __init__(self, engine: LLMEngine, workload: Workload):
        self._engine, self._decodes = engine, 0
        vocabulary, params = engine.runner.vocab_size, engine.names.SamplingParams
        self.requests = [
            engine.request(
                None, spec.ids(vocabulary, number), params(max_tokens=spec.answer, ignore_eos=True)
            )
            for number, spec in enumerate(workload.requests)
        ]
        pairs = list(zip(self.requests, workload.requests, strict=True))
        self._first = [request for request, spec in pairs if spec.arrives is None]
        late = [(spec.arrives, request) for request, spec in pairs if spec.arrives is not None]
        self._late = deque(sorted(late, key=lambda pair: pair[0]))

    def __call__(self, event: Event) -> None:
        self._decodes += any(part.kind == "decode" for part in event.parts)

    def run(self) -> None:
        """Serve every request to its end; without work, the next one arrives at once.

        Raises:
            ValueError: a request failed.
        """
        with self._engine.heard_by(self):
            self._engine.run(self._first, self._send_due)
            while self._late:
                self._engine.run([self._late.popleft()[1]], self._send_due)
        for request in self.requests:
            if (error := request.output().error) is not None:
                raise ValueError(f"request {request.request_id}: {error}")

    def _send_due(self) -> None:
        while self._late and self._late[0][0] <= self._decodes:
            self._engine.add(self._late.popleft()[1])

"""Puts a KV connector on a loop: requests wait for what comes from elsewhere, and steps are saved for others."""

import time
from collections.abc import Sequence

from tiny_llm_engine.admission import ServingState
from tiny_llm_engine.packed_model import Sampled
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.step_loop import StepLoop

from ..held_requests import HeldRequests, Served
from .protocol import KVConnector

COPY_SECONDS = 0.005  # of copies that a step with other requests waits for
WAIT_SECONDS = 0.01


class ConnectedLoop(HeldRequests[Served, int]):
    """What a connector has of a loop: an `AdmissionHook`, a `RequestHook` and a `CommitHook`.

    Args:
        connector: loads and saves.
        state: of the loop; "finish" is the event of a request that ended while it waited. As many requests wait as may
            run, because each of them holds its blocks.
    """

    def __init__(self, connector: KVConnector, state: ServingState[Served]):
        super().__init__(state)
        self.connector, self.most = connector, state.limits.max_num_seqs

    @classmethod
    def put_on(cls, loop: StepLoop[Served], connector: KVConnector) -> "ConnectedLoop[Served]":
        """Lets a loop load and save by a connector."""
        made = cls(connector, loop.state)
        loop.hooks.request.append(connector.on_new_request)
        loop.hooks.admission.append(made)
        loop.hooks.commit.append(made)
        return made

    # As an `AdmissionHook`.

    def refuses(self, sequence: Served) -> bool:
        """See `AdmissionHook`."""
        return len(self) >= self.most and bool(self.connector.get_num_new_matched_tokens(sequence))

    def takes(self, sequence: Served) -> bool:
        """See `AdmissionHook`."""
        if count := self.connector.get_num_new_matched_tokens(sequence):
            self.connector.update_state_after_alloc(sequence, count)
            self.coming[sequence] = count
        return bool(count)

    def advance(self, is_idle: bool) -> bool:
        """See `AdmissionHook`. Copies what has come, for some milliseconds if others wait for the step."""
        if not len(self):
            return False
        has_lost, end = self.drop_ended(), time.perf_counter() + COPY_SECONDS
        for load in self.connector.build_connector_meta():
            if (sequence := load.sequence) in self.coming:  # else its blocks were taken away
                self.connector.start_load_kv(load)
                sequence.num_computed = load.tokens.stop
                sequence.block_table.register(sequence.known_tokens, load.tokens.stop)
            if not is_idle and time.perf_counter() > end:
                break
        finished = set(self.connector.get_finished())
        for sequence in [each for each in self.coming if each in finished]:
            del self.coming[sequence]
            self.ready.append(sequence)
        return has_lost

    def wait(self) -> None:
        """See `AdmissionHook`."""
        if self.coming:
            self.connector.wait(WAIT_SECONDS)

    # As a `CommitHook`.

    def first_draws(self, call: Sequence[Scheduled], sampled: Sequence[Sampled]) -> Sequence[Sampled]:
        """Saves what a call has computed. Later a request may have ended, and its blocks be free."""
        for entry in call:
            self.connector.save_kv(entry.sequence, entry.stop)
        return sampled

    def committed(self, call: Sequence[Scheduled]) -> None:
        """See `CommitHook`."""

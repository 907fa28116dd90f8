"""Ray's request router with the policy of the solution: fewest outstanding tokens, cached prefixes deducted."""

from collections.abc import Collection

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from tiny_llm_engine.solutions.solution import resolve_serving

from ..openai_api.service_contract import ServiceRequest


class TokenRouter(RequestRouter):
    """Chooses with `ReplicaLoads`, which counts a request when it is sent.

    It runs in the process that sends, so several HTTP sides would each know their own requests alone.
    """

    def initialize_state(self, solution: str = "ref", **options: int) -> None:
        """Called by Ray with `request_router_kwargs`; `options` are those of `ReplicaLoads`."""
        self._loads = resolve_serving(solution).ReplicaLoads(**options)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The chosen replica first, all others after it: Ray takes those if the first one is full."""
        request = pending_request and pending_request.args and pending_request.args[0]
        if pending_request is None or not isinstance(request, ServiceRequest):  # it asks for facts
            return [candidate_replicas]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        chosen = by_name[self._send(pending_request.metadata.internal_request_id, request, by_name)]
        return [[chosen], [replica for replica in candidate_replicas if replica is not chosen]]

    def _send(self, number: str, request: ServiceRequest, among: Collection[str]) -> str:
        """Choose by the first prompt; what follows it, further prompts and all answers, no cache shortens."""
        first, *others = request.prompts
        after = sum(map(len, others)) + request.answer_tokens(self._loads.answer_estimate)
        self._loads.set_replicas(among)
        return self._loads.send(number, first, after)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Ray when a request has ended, was cancelled or has lost its replica.

        One that was sent again after that is not ended by it.
        """
        if self._loads.replica_of(internal_request_id) == replica_id.unique_id:
            self._loads.finish(internal_request_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Called by Ray before its controller knows: the replica's requests leave the count."""
        super().on_replica_actor_died(replica_id)
        self._loads.set_replicas(replica.unique_id for replica in self.curr_replicas)

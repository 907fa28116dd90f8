"""The token budget of a step, which a page may change while it is open."""

from ...engine.llm_engine import LLMEngine
from .errors import ApiError


class StepBudget:
    """Changes the budget of one engine, and restores it when the page that changed it is closed.

    Every method runs on the engine's thread.

    Args:
        engine: whose scheduler has the budget.
    """

    def __init__(self, engine: LLMEngine):
        self._engine = engine
        self._page: int | None = None  # that has changed it last

    def change(self, tokens: int, page: int | None) -> None:
        """Set the budget between two steps.

        Args:
            tokens: of a step.
            page: number of the page that asks; None for a client without one, whose budget stays.

        Raises:
            ApiError: 400, the budget is out of range, or there are no chunks.
        """
        engine = self._engine
        least, most = engine.options.max_num_seqs, engine.max_num_batched_tokens
        if not engine.options.enable_chunked_prefill:
            raise ApiError(400, "this server runs whole prompts: start it with chunked prefill")
        if not least <= tokens <= most:
            raise ApiError(400, f"max_num_batched_tokens is {tokens}: give {least} to {most}")
        engine.scheduler.max_num_batched_tokens, self._page = tokens, page

    def leave(self, page: int) -> None:
        """Restore the budget if this page has changed it last."""
        if page == self._page and not self._engine.is_closed:
            self._engine.scheduler.max_num_batched_tokens = self._engine.max_num_batched_tokens
            self._page = None

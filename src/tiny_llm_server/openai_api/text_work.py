"""Work with texts beside the event loop: the tokenizer on one thread, chat templates in another process."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tiny_llm_engine.models.chat_template import ChatTemplate
from tiny_llm_engine.models.template_process import TemplateProcess
from tiny_llm_engine.models.tokenization import LONG_TEXT

T = TypeVar("T")


class TextWork:
    """One thread for the tokenizer, and one that waits for the process that renders chat templates."""

    def __init__(self):
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._rendering = ThreadPoolExecutor(1, thread_name_prefix="chat-template")
        self._templates = TemplateProcess()

    async def run(self, characters: int, work: Callable[[], T]) -> T:
        """Run work with the tokenizer: that with long texts on its thread, one at a time."""
        if characters < LONG_TEXT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work)

    async def render(self, template: ChatTemplate, most: int, *asked: object) -> str:
        """The prompt for a conversation; see `TemplateProcess.render`."""
        loop, render = asyncio.get_running_loop(), self._templates.render
        return await loop.run_in_executor(self._rendering, render, template, most, *asked)

    def close(self) -> None:
        """End the threads and the process. What runs on them raises or ends."""
        for thread in (self._tokenizing, self._rendering):
            thread.shutdown(wait=False)
        self._templates.close()

"""What is put on the engine from outside; without it the same engine runs, slower or with less.

`open_engine` is the one place that assembles: a list that one reads. `LLM` stands above it.
"""

from tiny_llm_engine.models.formats import FORMATS

from .gguf import open_gguf_model

FORMATS[".gguf"] = open_gguf_model

"""The serving engine of the course: one package per port, and `serving`, the policy that both share."""


def __getattr__(name: str):
    """`LLM` of this solution, and what it takes and returns, imported at their first use: a port needs none of them."""
    if name == "LLM":
        from tiny_llm_engine.solutions.solution import llm_class

        return llm_class(__name__)
    if name in ("SamplingParams", "StructuredOutputsParams"):
        from . import serving

        return getattr(serving, name)
    if name in ("RequestOutput", "TextPrompt", "TokensPrompt"):
        from tiny_llm_engine import outputs

        return getattr(outputs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

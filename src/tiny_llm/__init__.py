"""The serving engine of the course: one package per port, and `serving`, the policy that both share."""


def __getattr__(name: str):
    """`LLM` of this solution and its `SamplingParams`, imported at their first use: a port needs neither."""
    if name == "LLM":
        from tiny_llm_kit.course.capabilities import llm_class

        return llm_class(__name__)
    if name == "SamplingParams":
        from .serving import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Public incidents of serving engines, and which policy fails in which of them."""

from tiny_llm_course.trace.incidents.corpus import CORPUS
from tiny_llm_course.trace.incidents.table import heads, marks

from .served import StudyPlan
from .study import Study


def run(plan: StudyPlan) -> Study:
    """Run every policy through every incident: a row per incident, ✓ where every bound holds."""
    policies = list(plan.names.POLICIES)
    rows = [[one.number, one.title, *marks(plan.names, policies, one)] for one in CORPUS]
    return Study(
        "incidents",
        "Incidents of serving engines\na step costs 10 ms and 0.1 ms per token of a prompt; ✗ breaks a bound",
        ("", "incident", *(head[:4] for head in heads(policies))),
        rows,
        (
            f"Policies: {', '.join(policies)}.",
            "16 is about two replicas, a subject of Day 3.7. Links: tiny_llm_course/trace/incidents/corpus.py.",
        ),
    )

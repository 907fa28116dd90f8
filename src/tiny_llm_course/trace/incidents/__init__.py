"""The starvation corpus: public incidents of serving engines as small traces, each with a bound that must hold."""

from .corpus import CORPUS, incident
from .incident import Bound, Incident, IncidentCase, Sent, group
from .incident_run import IncidentRun, failures

__all__ = [
    "CORPUS",
    "Bound",
    "Incident",
    "IncidentCase",
    "IncidentRun",
    "Sent",
    "failures",
    "group",
    "incident",
]

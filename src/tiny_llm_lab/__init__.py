"""The scheduling lab: studies of the course's schedulers in virtual time."""

"""`pdm run doctor`: one small function per check (`checks`), a report of each array library (`probe`), and a table."""

"""`pdm run doctor`: one small function a check (`checks`), what an array library says of itself (`probe`), a table."""

"""What the engine asks of the machine that it runs on: its memory, libraries, terminal and folders."""

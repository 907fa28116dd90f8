"""Given code: everything around the course that nobody has to fill in.

Loading, tokenizer, commands, screens and the tooling of the course. Kit code never imports a solution;
it reaches one by name through `solution.resolve`.
"""

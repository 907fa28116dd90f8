"""What a request is, for every scheduler, all of it given.

Sampling parameters, the text of an answer and its stop strings, checks of a prompt, the two
priorities, the queues of requests that wait, and the events that schedulers emit.
"""

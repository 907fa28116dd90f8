"""What both solutions and the kit share: records, protocols, and plain Python that reads them.

The standard library alone. Nothing here imports a solution or the kit, and no task changes it, so a class is the same
one whichever solution runs: sampling parameters, events, batches, answers' texts, queues, and the names of a layer's
weights.
"""

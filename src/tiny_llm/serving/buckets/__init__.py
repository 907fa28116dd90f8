"""The batch of one call of the model, and the few sizes that it is padded to: Day 3.4.

A batch is what `pack` of Day 3.3 makes (`PackedBatch`), and a model takes `PackedInputs`. Bucket
sizes, the choice of a bucket, the warm-up list and the padding are the tasks of Day 3.4.
"""

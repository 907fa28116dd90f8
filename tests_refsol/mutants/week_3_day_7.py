"""Wrong solutions of Week 3 Day 7, many of them by somebody who has read the chapter and not its tests."""

from authors.mutants import Mutant, wrong

SHARDS = "parallel/shards.py"
PIPELINE, ROUTING = "parallel/fill_stages.py", "routing/choose_replica.py"
TENSOR, STAGE = "tensor_parallel.py", "pipeline_stage.py"
LOOKUP = "VocabParallelEmbedding.__call__"
HEAD = "    head = rank * num_kv_heads // size\n"
SUM = "    out = group.all_reduce(partial)\n"
AFTER_SUM = "    return out if bias is None else out + bias\n"
START = "    start = stage * share + min(stage, more)\n"
STOP = "    return range(start, start + share + (stage < more))\n"
SEND = "            self.group.send(x, (self.group.rank + 1) % self.group.size)\n"
FINISH = "else self.finish(x, inputs.sample_rows)"
WHILE = "    while len(pipeline.in_flight) < pipeline.stages.num_stages and (plan := pipeline.plan()):\n"
CALLS = "for call in pipeline.calls(plan):"
SUBMIT = "            pipeline.stages.submit(pipeline.packed(call))\n"
APPEND = "            pipeline.in_flight.append(InFlight.of(call, pipeline.now))\n"
COUNT = "                entry.sequence.num_in_flight += entry.size\n"
CHOICE = "key=lambda name: (outstanding[name] - cached[name], outstanding[name]))"
TORCH_MASKED = "self.group.all_reduce(torch.where(mine[..., None], rows, 0))"
MLX_MASKED = "self.group.all_reduce(mx.where(mine[..., None], rows, 0))"
TORCH_PAD = "    padded = torch.nn.functional.pad(logits, (0, share - logits.shape[-1]))\n"
MLX_PAD = "    padded = mx.pad(logits, [(0, 0)] * (logits.ndim - 1) + [(0, share - logits.shape[-1])])\n"

MUTANTS = [
    # kv_heads_of
    *wrong(
        "3.7.1",
        SHARDS,
        ("as many ranks share a head as there are heads", HEAD, "    head = rank // num_kv_heads\n"),
        (
            "a head for each rank until none is left, then the last one",
            HEAD,
            "    head = min(rank, num_kv_heads - 1)\n",
        ),
        (
            "every size-th head",
            "        return even_part(num_kv_heads, rank, size)\n",
            "        return range(rank, num_kv_heads, size)\n",
        ),
        part="serving",
    ),
    # shard_of
    *wrong(
        "3.7.2",
        SHARDS,
        (
            "the norms of queries and keys are divided",
            "    return Shard()\n",
            '    return Shard(rows=even_part(shape[0], rank, size)) if layer in ("q_norm", "k_norm") else Shard()\n',
        ),
        (
            "rows of a head from the size of its input",
            "shape[0] // num_kv_heads",
            "shape[-1] // num_kv_heads",
        ),
        (
            "only the matrices of keys and values go by heads, their biases evenly",
            '    if layer in ("k_proj", "v_proj"):\n',
            '    if layer in ("k_proj", "v_proj") and kind == "weight":\n',
        ),
        (
            "the only axis of a row-parallel bias counts as its columns",
            '    if layer in ROW_PARALLEL and kind == "weight":\n'
            "        return Shard(columns=even_part(shape[1], rank, size))\n",
            "    if layer in ROW_PARALLEL:\n        return Shard(columns=even_part(shape[-1], rank, size))\n",
        ),
        (
            "divides the number of outputs into columns",
            "columns=even_part(shape[1], rank, size)",
            "columns=even_part(shape[0], rank, size)",
        ),
        (
            "divides the vocabulary evenly, too",
            "rows=vocabulary_of(shape[0], rank, size)",
            "rows=even_part(shape[0], rank, size)",
        ),
        (
            "divides the embedding and leaves the head whole",
            "    if layer in VOCABULARY_PARALLEL:\n",
            '    if layer == "embed_tokens":\n',
        ),
        (
            "biases of column-parallel layers are whole like all biases",
            "    if layer in COLUMN_PARALLEL:\n",
            '    if layer in COLUMN_PARALLEL and kind == "weight":\n',
        ),
        part="serving",
    ),
    Mutant(
        "3.7.3",
        "sums in float32",
        TENSOR,
        torch=("all_reduce(partial)", "all_reduce(partial.float())"),
        mlx=("all_reduce(partial)", "all_reduce(partial.astype(mx.float32))"),
    ),
    *wrong(
        "3.7.3",
        TENSOR,
        (
            "a rank that is alone returns its part, without the bias",
            SUM,
            "    if group.size == 1:\n        return partial\n" + SUM,
        ),
    ),
    # VocabParallelEmbedding
    *wrong(
        "3.7.4",
        TENSOR,
        ("indexes the rows of the table", "self.embedding(", "(lambda ids: self.weight[ids])("),
        (
            "ids below the own ones add the first row",
            "xp.where(mine[..., None], rows, 0)",
            "xp.where((local < len(self.ids))[..., None], rows, 0)",
            LOOKUP,
        ),
        (
            "the first id of the next rank is mine too",
            "xp.where(mine[..., None], rows, 0)",
            "xp.where((mine | (local == len(self.ids)))[..., None], rows, 0)",
            LOOKUP,
        ),
    ),
    Mutant(
        "3.7.4",
        "multiplies by a mask of float32",
        TENSOR,
        torch=(TORCH_MASKED, "self.group.all_reduce(rows * mine[..., None].float())"),
        mlx=(MLX_MASKED, "self.group.all_reduce(rows * mine[..., None].astype(mx.float32))"),
    ),
    Mutant(
        "3.7.4",
        "needs no sum when it has all ids itself",
        TENSOR,
        torch=(
            "        return " + TORCH_MASKED,
            "        if bool(mine.all()):\n            return rows\n        return " + TORCH_MASKED,
        ),
        mlx=(
            "        return " + MLX_MASKED,
            "        if bool(mine.all()):\n            return rows\n        return " + MLX_MASKED,
        ),
    ),
    Mutant(
        "3.7.5",
        "gathers in float32",
        TENSOR,
        inside="gather_logits",
        mlx=("group.all_gather(padded)", "group.all_gather(padded.astype(mx.float32))"),
        torch=("group.all_gather(padded)", "group.all_gather(padded.float())"),
    ),
    Mutant(
        "3.7.5",
        "only the last rank pads",
        TENSOR,
        torch=(TORCH_PAD, "    padded = logits\n    if group.rank == group.size - 1:\n    " + TORCH_PAD),
        mlx=(MLX_PAD, "    padded = logits\n    if group.rank == group.size - 1:\n    " + MLX_PAD),
    ),
    *wrong(
        "3.7.6",
        SHARDS,
        (
            "every later stage begins after all that is left over",
            START,
            "    start = stage * share + (more if stage else 0)\n",
        ),
        (
            "rounds each border up, so long and short stages alternate",
            START + STOP,
            "    start, stop = (-(-i * num_layers // num_stages) for i in (stage, stage + 1))\n"
            "    return range(start, stop)\n",
        ),
        part="serving",
    ),
    # PipelineStage
    *wrong(
        "3.7.7",
        STAGE,
        (
            "every stage starts with the embedding",
            "x = self.receive(inputs)",
            "x = self.receive(inputs)\n"
            "        x = x if self.embedding is None else self.embedding(inputs.token_ids[None])",
            "PipelineStage.__call__",
        ),
        ("every stage sends to rank 0", SEND, "            self.group.send(x, 0)\n"),
    ),
    Mutant(
        "3.7.7",
        "computes the logits of all rows, and keeps those that are sampled",
        STAGE,
        torch=(FINISH, "else self.finish(x, torch.arange(x.shape[1], device=x.device))[inputs.sample_rows]"),
        mlx=(FINISH, "else self.finish(x, mx.arange(x.shape[1]))[inputs.sample_rows]"),
    ),
    # fill_stages
    *wrong(
        "3.7.8",
        PIPELINE,
        (
            "remembers all calls of a plan before it submits the first",
            "        for call in pipeline.calls(plan):\n"
            "            pipeline.in_flight.append(InFlight.of(call, pipeline.now))\n",
            "        calls = pipeline.calls(plan)\n"
            "        pipeline.in_flight.extend(InFlight.of(call, pipeline.now) for call in calls)\n"
            "        for call in calls:\n",
        ),
        ("remembers a micro-batch once it is submitted", APPEND + SUBMIT, SUBMIT + APPEND),
        (
            "leaves out calls of a plan for which no stage is free",
            CALLS,
            "for call in pipeline.calls(plan)[: pipeline.stages.num_stages - len(pipeline.in_flight)]:",
        ),
        (
            "plans first, and then looks whether a stage is free",
            WHILE,
            "    while (plan := pipeline.plan()) and len(pipeline.in_flight) < pipeline.stages.num_stages:\n",
        ),
        (
            "no more micro-batches than requests",
            WHILE,
            "    busy = min(pipeline.stages.num_stages, len(pipeline.loop.running) + len(pipeline.loop.waiting))\n"
            "    while len(pipeline.in_flight) < busy and (plan := pipeline.plan()):\n",
        ),
        (
            "a decode is one token in flight, whatever of its request is on its way",
            COUNT,
            "                counted = 0 if entry.is_decode else entry.sequence.num_in_flight\n"
            "                entry.sequence.num_in_flight = counted + entry.size\n",
        ),
        part="serving",
    ),
    *wrong(
        "3.7.9",
        ROUTING,
        (
            "the first of equals, whatever their queues",
            CHOICE,
            "key=lambda name: outstanding[name] - cached[name])",
        ),
        (
            "a discount is no larger than the queue",
            CHOICE,
            "key=lambda name: (max(0, outstanding[name] - cached[name]), outstanding[name]))",
        ),
        (
            "the first of equals by name",
            CHOICE,
            "key=lambda name: (outstanding[name] - cached[name], outstanding[name], name))",
        ),
        (
            "the warmest one unless its queue is longer than its discount",
            "    return min(outstanding, key",
            "    warm = max(outstanding, key=lambda name: cached[name])\n"
            "    if outstanding[warm] < cached[warm]:\n"
            "        return warm\n"
            "    return min(outstanding, key",
        ),
        part="serving",
    ),
    Mutant(
        "3.7.3",
        "each rank adds its share of the bias",
        "tensor_parallel.py",
        both=(
            SUM + AFTER_SUM,
            "    return group.all_reduce(partial if bias is None else partial + bias / group.size)\n",
        ),
    ),
]

"""Wrong solutions of Week 3 Day 7."""

from authors.mutants import Mutant

SHARDS, STAGES = "parallel/shards.py", "parallel/stages.py"
PIPELINE, ROUTING = "parallel/pipelined_scheduler.py", "routing/choose_replica.py"
TENSOR, STAGE = "tensor_parallel.py", "pipeline_stage.py"
FILL, SHARD_OF = "PipelinedScheduler.fill", "shard_of"
LOOKUP = "VocabParallelEmbedding.__call__"

MUTANTS = [
    # kv_heads_of
    Mutant(
        "3.7.1",
        "every other rank shares a head",
        SHARDS,
        serving=("head = rank * num_kv_heads // size", "head = rank % num_kv_heads"),
    ),
    Mutant(
        "3.7.1",
        "all ranks hold all heads when there are more ranks",
        SHARDS,
        serving=("    return range(head, head + 1)", "    return range(num_kv_heads)"),
    ),
    Mutant(
        "3.7.1",
        "ranks take heads in turns, as cards are dealt",
        SHARDS,
        serving=(
            "        return even_part(num_kv_heads, rank, size)",
            "        return range(rank, num_kv_heads, size)",
        ),
    ),
    # shard_of
    Mutant(
        "3.7.2",
        "keys are divided evenly, also inside of a head",
        SHARDS,
        serving=('    if layer in ("k_proj", "v_proj"):', '    if layer in ("kv_proj",):'),
    ),
    Mutant(
        "3.7.2",
        "only the keys go by heads",
        SHARDS,
        serving=('    if layer in ("k_proj", "v_proj"):', '    if layer in ("k_proj",):'),
    ),
    Mutant(
        "3.7.2",
        "the bias of a row-parallel layer is divided",
        SHARDS,
        serving=(
            'if layer in ROW_PARALLEL and kind == "weight":\n'
            "        return Shard(columns=even_part(shape[1], rank, size))",
            "if layer in ROW_PARALLEL:\n        return Shard(columns=even_part(shape[1], rank, size)) "
            'if kind == "weight" else Shard(rows=even_part(shape[0], rank, size))',
        ),
    ),
    Mutant(
        "3.7.2",
        "the bias of a column-parallel layer is whole",
        SHARDS,
        serving=("    if layer in COLUMN_PARALLEL:", '    if layer in COLUMN_PARALLEL and kind == "weight":'),
    ),
    Mutant(
        "3.7.2",
        "row-parallel layers are divided by rows",
        SHARDS,
        serving=(
            "Shard(columns=even_part(shape[1], rank, size))",
            "Shard(rows=even_part(shape[0], rank, size))",
        ),
    ),
    Mutant(
        "3.7.2",
        "columns go by the number of rows",
        SHARDS,
        serving=(
            "Shard(columns=even_part(shape[1], rank, size))",
            "Shard(columns=even_part(shape[0], rank, size))",
        ),
    ),
    Mutant(
        "3.7.2",
        "the vocabulary is divided evenly",
        SHARDS,
        serving=(
            "Shard(rows=vocabulary_of(shape[0], rank, size))",
            "Shard(rows=even_part(shape[0], rank, size))",
        ),
    ),
    Mutant(
        "3.7.2",
        "the head is whole on every rank",
        SHARDS,
        serving=("    if layer in VOCABULARY_PARALLEL:", '    if layer == "embed_tokens":'),
    ),
    Mutant(
        "3.7.2",
        "the norms of queries and keys are divided",
        SHARDS,
        serving=(
            "    return Shard()\n",
            '    return Shard(rows=even_part(shape[0], rank, size)) if layer in ("q_norm", "k_norm") else Shard()\n',
        ),
    ),
    Mutant(
        "3.7.2",
        "rows of a head from the size of its input",
        SHARDS,
        serving=("shape[0] // num_kv_heads", "shape[-1] // num_kv_heads"),
    ),
    # sum_over_ranks
    Mutant(
        "3.7.3",
        "the bias is added before the sum",
        TENSOR,
        both=(
            "    out = group.all_reduce(partial)\n    return out if bias is None else out + bias",
            "    return group.all_reduce(partial if bias is None else partial + bias)",
        ),
    ),
    Mutant(
        "3.7.3",
        "only rank 0 adds the bias",
        TENSOR,
        both=(
            "    return out if bias is None else out + bias",
            "    return out + bias if bias is not None and group.rank == 0 else out",
        ),
    ),
    Mutant(
        "3.7.3",
        "the mean in place of the sum",
        TENSOR,
        both=("out = group.all_reduce(partial)", "out = group.all_reduce(partial) / group.size"),
    ),
    Mutant(
        "3.7.3",
        "gathers all parts and adds them up",
        TENSOR,
        both=("out = group.all_reduce(partial)", "out = group.all_gather(partial).sum(0)"),
    ),
    Mutant(
        "3.7.3",
        "sums in float32",
        TENSOR,
        torch=("all_reduce(partial)", "all_reduce(partial.float())"),
        mlx=("all_reduce(partial)", "all_reduce(partial.astype(mx.float32))"),
    ),
    Mutant(
        "3.7.4",
        "indexes the rows of the table",
        TENSOR,
        both=("self.embedding(", "(lambda ids: self.weight[ids])("),
    ),
    Mutant(
        "3.7.8",
        "remembers all calls of a plan before it submits the first",
        PIPELINE,
        serving=(
            "            for call in self.calls(plan):\n"
            "                self.in_flight.append(InFlight.of(call, self.now))\n",
            "            calls = self.calls(plan)\n"
            "            self.in_flight.extend(InFlight.of(call, self.now) for call in calls)\n"
            "            for call in calls:\n",
        ),
    ),
    Mutant(
        "3.7.3",
        "sums a part of the bias over the ranks",
        TENSOR,
        both=(
            "    return out if bias is None else out + bias",
            "    return out if bias is None else out + group.all_reduce(bias / group.size)",
        ),
    ),
    Mutant(
        "3.7.3",
        "forgets the bias",
        TENSOR,
        both=("    return out if bias is None else out + bias", "    return out"),
    ),
    # VocabParallelEmbedding
    Mutant(
        "3.7.4",
        "ids below the own ones wrap round",
        TENSOR,
        inside=LOOKUP,
        mlx=("mine = (local >= 0) & (local < len(self.ids))", "mine = local < len(self.ids)"),
    ),
    Mutant(
        "3.7.4",
        "ids below the own ones add the first row",
        TENSOR,
        inside=LOOKUP,
        mlx=("mx.where(mine[..., None], rows, 0)", "mx.where((local < len(self.ids))[..., None], rows, 0)"),
        torch=(
            "torch.where(mine[..., None], rows, 0)",
            "torch.where((local < len(self.ids))[..., None], rows, 0)",
        ),
    ),
    Mutant(
        "3.7.4",
        "ids above the own ones add the first row",
        TENSOR,
        inside=LOOKUP,
        mlx=("mx.where(mine[..., None], rows, 0)", "mx.where((local >= 0)[..., None], rows, 0)"),
        torch=("torch.where(mine[..., None], rows, 0)", "torch.where((local >= 0)[..., None], rows, 0)"),
    ),
    Mutant(
        "3.7.4",
        "the first id of the next rank is mine too",
        TENSOR,
        inside=LOOKUP,
        mlx=(
            "mx.where(mine[..., None], rows, 0)",
            "mx.where((mine | (local == len(self.ids)))[..., None], rows, 0)",
        ),
        torch=(
            "torch.where(mine[..., None], rows, 0)",
            "torch.where((mine | (local == len(self.ids)))[..., None], rows, 0)",
        ),
    ),
    Mutant(
        "3.7.4",
        "the first own id is another rank's",
        TENSOR,
        inside=LOOKUP,
        both=("(local >= 0)", "(local > 0)"),
    ),
    Mutant(
        "3.7.4",
        "ids of other ranks add the first row",
        TENSOR,
        inside=LOOKUP,
        mlx=("self.group.all_reduce(mx.where(mine[..., None], rows, 0))", "self.group.all_reduce(rows)"),
        torch=("self.group.all_reduce(torch.where(mine[..., None], rows, 0))", "self.group.all_reduce(rows)"),
    ),
    Mutant(
        "3.7.4",
        "looks up the ids without the start of the part",
        TENSOR,
        inside=LOOKUP,
        mlx=(
            "rows = self.embedding(mx.where(mine, local, 0))",
            "rows = self.embedding(mx.where(mine, ids % len(self.ids), 0))",
        ),
        torch=(
            "rows = self.embedding(torch.where(mine, local, 0))",
            "rows = self.embedding(torch.where(mine, ids % len(self.ids), 0))",
        ),
    ),
    Mutant(
        "3.7.4",
        "does not take part when no id is here",
        TENSOR,
        inside=LOOKUP,
        mlx=(
            "        rows = self.embedding(",
            "        if not mine.any().item():\n"
            "            return mx.zeros((*ids.shape, self.weight.shape[1]))\n"
            "        rows = self.embedding(",
        ),
        torch=(
            "        rows = self.embedding(",
            "        if not mine.any():\n"
            "            return torch.zeros(*ids.shape, self.weight.shape[1])\n"
            "        rows = self.embedding(",
        ),
    ),
    Mutant(
        "3.7.4",
        "one all-gather and a sum",
        TENSOR,
        inside=LOOKUP,
        mlx=(
            "return self.group.all_reduce(mx.where(mine[..., None], rows, 0))",
            "return self.group.all_gather(mx.where(mine[..., None], rows, 0)).sum(0)",
        ),
        torch=(
            "return self.group.all_reduce(torch.where(mine[..., None], rows, 0))",
            "return self.group.all_gather(torch.where(mine[..., None], rows, 0)).sum(0)",
        ),
    ),
    # gather_logits
    Mutant(
        "3.7.5",
        "the padding stays in the result",
        TENSOR,
        inside="gather_logits",
        both=("[..., :vocab_size]", ""),
    ),
    Mutant(
        "3.7.5",
        "reshapes what was gathered without moving its axis",
        TENSOR,
        inside="gather_logits",
        mlx=("mx.flatten(mx.moveaxis(parts, 0, -2), -2)", "parts.reshape(*logits.shape[:-1], -1)"),
        torch=("parts.movedim(0, -2).flatten(-2)", "parts.reshape(*logits.shape[:-1], -1)"),
    ),
    Mutant(
        "3.7.5",
        "the parts are interleaved",
        TENSOR,
        inside="gather_logits",
        mlx=("mx.flatten(mx.moveaxis(parts, 0, -2), -2)", "mx.flatten(mx.moveaxis(parts, 0, -1), -2)"),
        torch=("parts.movedim(0, -2).flatten(-2)", "parts.movedim(0, -1).flatten(-2)"),
    ),
    Mutant(
        "3.7.5",
        "pads in front of the logits",
        TENSOR,
        inside="gather_logits",
        mlx=("[(0, share - logits.shape[-1])]", "[(share - logits.shape[-1], 0)]"),
        torch=("(0, share - logits.shape[-1])", "(share - logits.shape[-1], 0)"),
    ),
    Mutant(
        "3.7.5",
        "V / size rounded down",
        TENSOR,
        inside="gather_logits",
        mlx=(
            "share = -(-vocab_size // group.size)",
            "share = max(logits.shape[-1], vocab_size // group.size)",
        ),
        torch=(
            "share = -(-vocab_size // group.size)",
            "share = max(logits.shape[-1], vocab_size // group.size)",
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
    # stage_layers
    Mutant(
        "3.7.6",
        "the last stage takes what is left over",
        STAGES,
        serving=(
            "    start = stage * share + min(stage, more)\n    return range(start, start + share + (stage < more))",
            "    start = stage * share\n"
            "    return range(start, start + share + (more if stage == num_stages - 1 else 0))",
        ),
    ),
    Mutant(
        "3.7.6",
        "the later stages have one more",
        STAGES,
        serving=(
            "    start = stage * share + min(stage, more)\n    return range(start, start + share + (stage < more))",
            "    return range(stage * num_layers // num_stages, (stage + 1) * num_layers // num_stages)",
        ),
    ),
    Mutant(
        "3.7.6",
        "the first stages have the layers rounded up",
        STAGES,
        serving=(
            "    start = stage * share + min(stage, more)\n    return range(start, start + share + (stage < more))",
            "    size = share + (more > 0)\n    return range(stage * size, min((stage + 1) * size, num_layers))",
        ),
    ),
    # PipelineStage
    Mutant(
        "3.7.7",
        "every stage starts with the embedding",
        STAGE,
        inside="PipelineStage.__call__",
        both=(
            "x = self.receive(inputs)",
            "x = self.receive(inputs)\n"
            "        x = x if self.embedding is None else self.embedding(inputs.token_ids[None])",
        ),
    ),
    Mutant(
        "3.7.7",
        "sends to the stage before",
        STAGE,
        inside="PipelineStage.__call__",
        both=("(self.group.rank + 1) % self.group.size", "(self.group.rank - 1) % self.group.size"),
    ),
    Mutant(
        "3.7.7",
        "norm before it sends",
        STAGE,
        inside="PipelineStage.__call__",
        both=("self.group.send(x,", "self.group.send(self.norm(x),"),
    ),
    Mutant(
        "3.7.7",
        "leaves out its last layer",
        STAGE,
        inside="PipelineStage.__call__",
        both=(
            "for layer, pool in zip(self.layers, pools, strict=True):",
            "for layer, pool in zip(self.layers[: max(1, len(self.layers) - 1)], pools, strict=False):",
        ),
    ),
    Mutant(
        "3.7.7",
        "logits of all rows",
        STAGE,
        inside="PipelineStage.__call__",
        mlx=("self.finish(x, inputs.sample_rows)", "self.head(self.norm(x))[0]"),
        torch=("self.finish(x, inputs.sample_rows)", "self.head(self.norm(x))[0]"),
    ),
    Mutant(
        "3.7.7",
        "a stage returns what it has sent",
        STAGE,
        inside="PipelineStage.__call__",
        both=("            return None\n", "            return x\n"),
    ),
    Mutant(
        "3.7.7",
        "the last stage sends as well",
        STAGE,
        inside="PipelineStage.__call__",
        both=(
            "        if not self.is_last:\n            self.group.send(x, (self.group.rank + 1) % self.group.size)\n",
            "        self.group.send(x, (self.group.rank + 1) % self.group.size)\n        if not self.is_last:\n",
        ),
    ),
    # PipelinedScheduler.fill
    Mutant(
        "3.7.8",
        "one micro-batch in flight",
        PIPELINE,
        inside=FILL,
        serving=("len(self.in_flight) < self.stages.num_stages", "not self.in_flight"),
    ),
    Mutant(
        "3.7.8",
        "one micro-batch more than stages",
        PIPELINE,
        inside=FILL,
        serving=(
            "len(self.in_flight) < self.stages.num_stages",
            "len(self.in_flight) <= self.stages.num_stages",
        ),
    ),
    Mutant(
        "3.7.8",
        "plans before it looks for a free stage",
        PIPELINE,
        inside=FILL,
        serving=(
            "while len(self.in_flight) < self.stages.num_stages and (plan := self.plan(self.clock())):",
            "while (plan := self.plan(self.clock())) and len(self.in_flight) < self.stages.num_stages:",
        ),
    ),
    Mutant(
        "3.7.8",
        "fills one place in each step",
        PIPELINE,
        inside=FILL,
        serving=(
            "while len(self.in_flight) < self.stages.num_stages and (plan := self.plan(self.clock())):",
            "if len(self.in_flight) < self.stages.num_stages and (plan := self.plan(self.clock())):",
        ),
    ),
    Mutant(
        "3.7.8",
        "all plans have the time of the first",
        PIPELINE,
        inside=FILL,
        serving=(
            "        while len(self.in_flight) < self.stages.num_stages and (plan := self.plan(self.clock())):",
            "        now = self.clock()\n"
            "        while len(self.in_flight) < self.stages.num_stages and (plan := self.plan(now)):",
        ),
    ),
    Mutant(
        "3.7.8",
        "the time after the submission",
        PIPELINE,
        inside=FILL,
        serving=(
            "                self.in_flight.append(InFlight.of(call, self.now))\n"
            "                self.stages.submit(self.packed(call))\n",
            "                flying = InFlight.of(call, self.now)\n"
            "                self.stages.submit(self.packed(call))\n"
            "                flying = InFlight(flying.plan, flying.draws, flying.preemptions, self.clock())\n"
            "                self.in_flight.append(flying)\n",
        ),
    ),
    Mutant(
        "3.7.8",
        "remembers a micro-batch after it was submitted",
        PIPELINE,
        inside=FILL,
        serving=(
            "                self.in_flight.append(InFlight.of(call, self.now))\n"
            "                self.stages.submit(self.packed(call))\n",
            "                self.stages.submit(self.packed(call))\n"
            "                self.in_flight.append(InFlight.of(call, self.now))\n",
        ),
    ),
    Mutant(
        "3.7.8",
        "one entry for a plan of two calls",
        PIPELINE,
        inside=FILL,
        serving=(
            "                self.in_flight.append(InFlight.of(call, self.now))\n",
            "                if call == self.calls(plan)[0]:\n"
            "                    self.in_flight.append(InFlight.of(plan, self.now))\n",
        ),
    ),
    Mutant(
        "3.7.8",
        "only the first request of a call counts as computed",
        PIPELINE,
        inside=FILL,
        serving=("for entry in call:", "for entry in call[:1]:"),
    ),
    Mutant(
        "3.7.8",
        "everything that is known counts as computed",
        PIPELINE,
        inside=FILL,
        serving=(
            "entry.sequence.num_computed = entry.stop",
            "entry.sequence.num_computed = len(entry.sequence.known_tokens)",
        ),
    ),
    # choose_replica
    Mutant(
        "3.7.9",
        "ignores what is cached",
        ROUTING,
        serving=("(outstanding[name] - cached[name], outstanding[name])", "outstanding[name]"),
    ),
    Mutant(
        "3.7.9",
        "affinity always wins",
        ROUTING,
        serving=(
            "(outstanding[name] - cached[name], outstanding[name])",
            "(-cached[name], outstanding[name])",
        ),
    ),
    Mutant(
        "3.7.9",
        "cached tokens are added",
        ROUTING,
        serving=(
            "(outstanding[name] - cached[name], outstanding[name])",
            "(outstanding[name] + cached[name], outstanding[name])",
        ),
    ),
    Mutant(
        "3.7.9",
        "no less than nothing is left",
        ROUTING,
        serving=(
            "(outstanding[name] - cached[name], outstanding[name])",
            "(max(0, outstanding[name] - cached[name]), outstanding[name])",
        ),
    ),
    Mutant(
        "3.7.9",
        "among equals the warmer cache",
        ROUTING,
        serving=(
            "(outstanding[name] - cached[name], outstanding[name])",
            "(outstanding[name] - cached[name], -cached[name])",
        ),
    ),
    Mutant(
        "3.7.9",
        "among equals the first name in the alphabet",
        ROUTING,
        serving=(
            "(outstanding[name] - cached[name], outstanding[name])",
            "(outstanding[name] - cached[name], outstanding[name], name)",
        ),
    ),
    Mutant(
        "3.7.9",
        "among equals the last one",
        ROUTING,
        serving=("    return min(outstanding, key=", "    return min(reversed(list(outstanding)), key="),
    ),
]

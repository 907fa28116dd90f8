"""Wrong solutions of Week 2 Day 1."""

from authors.mutants import Mutant, wrong

CACHE, MODEL, GENERATE = "kv_cache.py", "qwen3_week2.py", "generate_with_kv_cache.py"
UPDATE = "TinyKvFullCache.update_and_fetch"
# The lines of the reference that mutants replace.
MLX_ROOM = "self.keys, self.values = with_room(self.keys, key), with_room(self.values, value)"
MLX_WRITE = """self.keys[:, :, start : self.offset] = key
        self.values[:, :, start : self.offset] = value
"""
MLX_OUT = "return self.keys[:, :, : self.offset], self.values[:, :, : self.offset], self.offset, mask"
TORCH_WRITE = """self.keys.index_copy_(2, positions, key)
        self.values.index_copy_(2, positions, value)
"""
TORCH_PROMPT = """if is_prompt:
            return key, value, self.offset, mask
"""
TORCH_OUT = "return self.keys[:, :, :S], self.values[:, :, :S], self.offset, mask"
ATTEND = "x = x + self.attention(self.input_layernorm(x), step, cache)"
NORM = "h = self.post_attention_layernorm(x)"
RUN = "return model(inputs[:, offset:], offset, cache, logits_to_keep=1)"


def _cache(idea: str, mlx, torch) -> Mutant:
    return Mutant("2.1.2", idea, CACHE, mlx=mlx, torch=torch, inside=UPDATE)


def _rewind(idea: str, old: str, new: str) -> Mutant:
    return Mutant("2.1.3", idea, CACHE, both=(old, new), inside="TinyKvFullCache.rewind")


def _attention(idea: str, old: str, new: str) -> Mutant:
    return Mutant("2.1.4", idea, MODEL, both=(old, new), inside="Qwen3LayerWeek2.attention")


def _layer(idea: str, old: str, new: str) -> Mutant:
    return Mutant("2.1.5", idea, MODEL, both=(old, new), inside="Qwen3LayerWeek2.__call__")


def _model(idea: str, old: str, new: str) -> Mutant:
    return Mutant("2.1.6", idea, MODEL, both=(old, new), inside="Qwen3ModelWeek2.__call__")


def _generate(idea: str, old: str, new: str) -> Mutant:
    return Mutant("2.1.7", idea, GENERATE, both=(old, new))


MUTANTS = [
    *wrong(
        "2.1.1",
        "concatenated_kv_cache.py",
        ("puts new tokens before the old ones", "([self.keys, key]", "([key, self.keys]"),
    ),
    _cache(
        "concatenates: every token copies the whole cache",
        mlx=(
            f"{MLX_ROOM}\n        {MLX_WRITE}",
            "old = [] if start == 0 else [self.keys[:, :, :start]]\n"
            "        self.keys = mx.concatenate([*old, key], axis=2)\n"
            "        old = [] if start == 0 else [self.values[:, :, :start]]\n"
            "        self.values = mx.concatenate([*old, value], axis=2)\n",
        ),
        torch=(
            TORCH_WRITE,
            "self.keys = torch.cat([self.keys[:, :, : self.offset], key, "
            "self.keys[:, :, self.offset + L :]], dim=2)\n"
            "        self.values = torch.cat([self.values[:, :, : self.offset], value, "
            "self.values[:, :, self.offset + L :]], dim=2)\n",
        ),
    ),
    _cache(
        "the first piece's array and the memory: MLX takes it for memory, PyTorch gives memory back for it",
        mlx=("return room if old is None else", "return new if old is None else"),
        torch=("        if is_prompt:\n", "        if False:\n"),
    ),
    _cache(
        "keeps float32 whatever it is given",
        mlx=(
            "round_up(self.offset) - filled, D), new.dtype)",
            "round_up(self.offset) - filled, D), mx.float32)",
        ),
        torch=(
            f"{TORCH_PROMPT}        {TORCH_OUT}",
            "return self.keys[:, :, :S].float(), self.values[:, :, :S].float(), self.offset, mask",
        ),
    ),
    _cache(
        "always makes its own mask",
        mlx=(MLX_OUT, MLX_OUT.replace(", mask", ", self.make_mask(L, key.dtype)")),
        torch=(
            "        self.offset += L",
            "        mask = self.make_mask(L, key.dtype, positions=positions)\n        self.offset += L",
        ),
    ),
    _cache(
        "doubles its memory where a step would do",
        mlx=("round_up(self.offset) - filled", "max(round_up(self.offset), 2 * filled) - filled"),
        torch=(
            "room = round_up(self.max_seq_len or self.offset + L)",
            "room = round_up(self.max_seq_len or self.offset + L)\n"
            "        if self.keys is not None and self.keys.shape[2] < room:\n"
            "            room = max(room, 2 * self.keys.shape[2])",
        ),
    ),
    _cache(
        "shares its memory with every other cache",
        mlx=(
            MLX_ROOM,
            "cls = type(self)\n"
            "        cls.k, cls.v = with_room(getattr(cls, 'k', None) if start else None, key), "
            "with_room(getattr(cls, 'v', None) if start else None, value)\n"
            "        self.keys, self.values = cls.k, cls.v",
        ),
        torch=(
            "            self.keys = key.new_zeros(B, Hkv, room, D)\n"
            "            self.values = torch.zeros_like(self.keys)",
            "            shape, held = (B, Hkv, room, D), type(self).__dict__.get('held', {})\n"
            "            type(self).held = held\n"
            "            self.keys, self.values = held.setdefault(\n"
            "                (shape, key.dtype), (key.new_zeros(shape), key.new_zeros(shape))\n"
            "            )",
        ),
    ),
    _rewind(
        "accepts a negative number, which adds tokens that were never given",
        "if not 0 <= n <= self.offset:",
        "if n > self.offset:",
    ),
    _rewind(
        "accepts more than there are, and stops at none",
        "if not 0 <= n <= self.offset:\n"
        '            raise ValueError(f"cannot rewind {n} of {self.offset} tokens")\n'
        "        self.offset -= n",
        'if n < 0:\n            raise ValueError(f"cannot rewind {n} of {self.offset} tokens")\n'
        "        self.offset = max(0, self.offset - n)",
    ),
    _rewind("refuses to rewind all", "if not 0 <= n <= self.offset:", "if not 0 <= n < self.offset:"),
    _attention("the step's mask and not the cache's", ", mask=mask)", ", mask=step.mask)"),
    _attention("the cache does not get the step's positions", ", positions=step.positions", ""),
    _layer(
        "the MLP reads the stream before attention", f"{ATTEND}\n        {NORM}", f"{NORM}\n        {ATTEND}"
    ),
    _layer(
        "adds in place, to the caller's array",
        ATTEND,
        "x += self.attention(self.input_layernorm(x), step, cache)",
    ),
    _model(
        "every layer reads the embeddings",
        "x = layer(x, step, layer_cache)",
        "x = layer(self.embedding(inputs), step, layer_cache)",
    ),
    _model(
        "scores all tokens and drops them afterwards",
        "self.head(self.norm(kept(x, logits_to_keep)))",
        "kept(self.head(self.norm(x)), logits_to_keep)",
    ),
    _model("always causal", "cache, mask)\n", 'cache, "causal")\n'),
    _model(
        "fills up missing caches with the first one, and leaves out those that are too many",
        "self.begin(inputs, offset, cache, mask)",
        "self.begin(inputs, offset, cache := [*cache, *cache[:1] * 9][: len(self.layers)], mask)",
    ),
    _model(
        "believes the cache and not the offset",
        "step = self.begin(inputs, offset, cache, mask)",
        "held = [c.offset for c in cache[:1]] * len(inputs)\n"
        "        step = self.begin(inputs, held if isinstance(offset, int) else offset, cache, mask)",
    ),
    Mutant(
        "2.1.6",
        "a negative number of logits is none",
        MODEL,
        both=("if not 0 <= logits_to_keep <= x.shape[1]:", "if logits_to_keep > x.shape[1]:"),
        inside="kept",
    ),
    _generate("makes twice the room", "len(tokens) + max_tokens", "2 * (len(tokens) + max_tokens)"),
    _generate("scores every token of the prompt", RUN, "return model(inputs[:, offset:], offset, cache)"),
    _generate(
        "sends the prompt again with every token",
        "offset = cache[0].offset\n",
        "offset = 0\n        for layer_cache in cache:\n            layer_cache.rewind(layer_cache.offset)\n",
    ),
    _generate(
        "sends only the newest token, also of the prompt",
        RUN,
        "return model(inputs[:, -1:], offset, cache, logits_to_keep=1)",
    ),
    _generate(
        "releases nothing", "            layer_cache.release()", "            layer_cache.materialize()"
    ),
    _generate(
        "ignores the sampler",
        "new_tokens_only, tokenizer, tokens, sampler,",
        "new_tokens_only, tokenizer, tokens, None,",
    ),
]

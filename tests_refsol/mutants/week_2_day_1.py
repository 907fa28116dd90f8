"""Wrong solutions of Week 2 Day 1."""

from authors.mutants import Mutant

CACHE, MODEL, GENERATE = "kv_cache.py", "qwen3_week2.py", "generate_with_kv_cache.py"
UPDATE = "TinyKvFullCache.update_and_fetch"
# The lines of the reference that mutants replace.
MLX_START = "start, self.offset = self.offset, self.offset + L"
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
TURN_KEY = "key = self.rope.rotate(self.k_norm(key), *step.rows)"
TURN_QUERY = "query = self.rope.rotate(self.q_norm(query), *step.rows)"
ATTEND = "x = x + self.attention(self.input_layernorm(x), step, cache)"
THINK = "return x + project(silu(project(h, self.w_gate)) * project(h, self.w_up), self.w_down)"
NORM = "h = self.post_attention_layernorm(x)"
LAYERS = "for layer, layer_cache in zip(self.layers, cache, strict=True):"
RUN = "return model(inputs[:, offset:], offset, cache, logits_to_keep=1)"
FINALLY = """    finally:
        for layer_cache in cache:
            layer_cache.release()"""


def _cache(idea: str, mlx, torch) -> Mutant:
    return Mutant("2.1.1", idea, CACHE, mlx=mlx, torch=torch, inside=UPDATE)


def _rewind(idea: str, old: str, new: str) -> Mutant:
    return Mutant("2.1.2", idea, CACHE, both=(old, new), inside="TinyKvFullCache.rewind")


def _attention(idea: str, old: str, new: str) -> Mutant:
    return Mutant("2.1.3", idea, MODEL, both=(old, new), inside="Qwen3LayerWeek2.attention")


def _layer(idea: str, old: str, new: str) -> Mutant:
    return Mutant("2.1.4", idea, MODEL, both=(old, new), inside="Qwen3LayerWeek2.__call__")


def _model(idea: str, old: str, new: str) -> Mutant:
    return Mutant("2.1.5", idea, MODEL, both=(old, new), inside="Qwen3ModelWeek2.__call__")


def _generate(idea: str, old: str, new: str) -> Mutant:
    return Mutant("2.1.6", idea, GENERATE, both=(old, new))


MUTANTS = [
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
        "forgets to count the new tokens",
        mlx=(
            MLX_OUT,
            f"held, self.offset = self.offset, start\n        {MLX_OUT.replace('self.offset', 'held')}",
        ),
        torch=("self.offset += L", "pass"),
    ),
    _cache(
        "counts every piece as one token",
        mlx=(
            MLX_OUT,
            f"{MLX_OUT.replace('return ', 'out = ')}\n        self.offset = start + 1\n        return out",
        ),
        torch=("self.offset += L", "self.offset += 1"),
    ),
    _cache(
        "returns only the new keys and values",
        mlx=(MLX_OUT, "return key, value, self.offset, mask"),
        torch=(TORCH_PROMPT, "return key, value, self.offset, mask\n"),
    ),
    _cache(
        "writes every piece to the front",
        mlx=(
            MLX_WRITE,
            "self.keys[:, :, :L] = key\n        self.values[:, :, :L] = value\n",
        ),
        torch=(
            TORCH_WRITE,
            "self.keys[:, :, :L] = key\n        self.values[:, :, :L] = value\n",
        ),
    ),
    _cache(
        "counts first and writes behind the place: one hole, the last token lost",
        mlx=(
            MLX_WRITE,
            "self.keys[:, :, start + 1 : self.offset] = key[:, :, :-1]\n"
            "        self.values[:, :, start + 1 : self.offset] = value[:, :, :-1]\n",
        ),
        torch=(
            TORCH_WRITE,
            "self.keys.index_copy_(2, positions + 1, key)\n"
            "        self.values.index_copy_(2, positions + 1, value)\n",
        ),
    ),
    _cache(
        "one array under both names: the values overwrite the keys",
        mlx=(
            MLX_ROOM,
            "self.keys = self.values = with_room(self.keys, key)",
        ),
        torch=("self.values = torch.zeros_like(self.keys)", "self.values = self.keys"),
    ),
    _cache(
        "stores the keys as values too",
        mlx=(
            "self.values[:, :, start : self.offset] = value",
            "self.values[:, :, start : self.offset] = key",
        ),
        torch=("self.values.index_copy_(2, positions, value)", "self.values.index_copy_(2, positions, key)"),
    ),
    _cache(
        "hands out values and keys in the wrong order",
        mlx=(
            MLX_OUT,
            "return self.values[:, :, : self.offset], self.keys[:, :, : self.offset], self.offset, mask",
        ),
        torch=(TORCH_OUT, "return self.values[:, :, :S], self.keys[:, :, :S], self.offset, mask"),
    ),
    Mutant(
        "2.1.1",
        "takes the first piece's own array for its memory",
        CACHE,
        mlx=("return room if old is None else", "return new if old is None else"),
        inside=UPDATE,
    ),
    _cache(
        "starts a new memory when the first step of 256 is full",
        mlx=(
            "return room if old is None else mx.concatenate([old, room], axis=2)",
            "return mx.zeros((B, Hkv, round_up(self.offset), D), new.dtype)",
        ),
        torch=(
            "        self.keys.index_copy_(2, positions, key)",
            "        if self.offset % STEP + L > STEP:\n"
            "            self.keys.zero_()\n"
            "        self.keys.index_copy_(2, positions, key)",
        ),
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
        "drops the mask",
        mlx=(MLX_OUT, MLX_OUT.replace(", mask", ", None")),
        torch=(TORCH_OUT, TORCH_OUT.replace(", mask", ", None")),
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
        "a mask whose diagonal starts in the upper left corner",
        mlx=(
            MLX_OUT,
            "if isinstance(mask, str):\n"
            "            mask = length_mask(mx.arange(L), self.offset, key.dtype)\n        " + MLX_OUT,
        ),
        torch=(
            "        self.offset += L",
            "        if mask is not None and not isinstance(mask, str):\n"
            "            mask = length_mask(torch.arange(L), S, key.dtype) if self.offset else mask\n"
            "        self.offset += L",
        ),
    ),
    Mutant(
        "2.1.1",
        "shows the unused tail: zeros take part in the softmax",
        CACHE,
        torch=(TORCH_OUT, TORCH_OUT.replace(", mask", ", mask if L > 1 else torch.zeros_like(mask)")),
        inside=UPDATE,
    ),
    Mutant(
        "2.1.1",
        "positions of the mask in its type: bf16 has no 257, float16 no 2,049",
        CACHE,
        torch=(
            "torch.where(keys <= positions.unsqueeze(-1),",
            "torch.where(keys.to(dtype) <= positions.unsqueeze(-1).to(dtype),",
        ),
        inside="length_mask",
    ),
    Mutant(
        "2.1.1",
        "positions of the mask in float16, exact up to 2,048",
        CACHE,
        torch=(
            "return length_mask(self._positions(L, positions),",
            "return length_mask(self._positions(L, positions).half(),",
        ),
        inside="TinyKvFullCache.make_mask",
    ),
    _cache(
        "room for the new tokens and no more: every token copies the whole cache",
        mlx=("round_up(self.offset) - filled", "self.offset - filled"),
        torch=(
            "room = round_up(self.max_seq_len or self.offset + L)",
            "room = max(self.offset + L, round_up(self.max_seq_len or 0))\n        S = min(S, room)",
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
        "a whole step more than is needed, so that the last one is always empty",
        mlx=("round_up(self.offset) - filled", "round_up(self.offset + STEP) - filled"),
        torch=(
            "round_up(self.max_seq_len or self.offset + L)",
            "round_up((self.max_seq_len or self.offset + L) + STEP)",
        ),
    ),
    _cache(
        "forgets what it held when it grows without a limit",
        mlx=(
            "return room if old is None else mx.concatenate([old, room], axis=2)",
            "kept = 0 * old if old is not None and self.max_seq_len is None else old\n"
            "            return room if old is None else mx.concatenate([kept, room], axis=2)",
        ),
        torch=(
            "self.keys, self.values = F.pad(self.keys, longer), F.pad(self.values, longer)",
            "self.keys, self.values = F.pad(0 * self.keys, longer), F.pad(0 * self.values, longer)",
        ),
    ),
    Mutant(
        "2.1.1",
        "without a limit 256 tokens fit",
        CACHE,
        both=(
            "if self.max_seq_len is not None and self.offset + L > self.max_seq_len:",
            "if self.offset + L > (self.max_seq_len or STEP):",
        ),
        inside=UPDATE,
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
    _rewind("forgets everything", "self.offset -= n", "self.offset = 0"),
    _rewind("one too many", "self.offset -= n", "self.offset -= n + (n > 0)"),
    _rewind("goes to n instead of back by n", "self.offset -= n", "self.offset = n"),
    _rewind("does nothing", "self.offset -= n", "self.offset -= 0"),
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
    _rewind(
        "refuses to rewind all",
        "if not 0 <= n <= self.offset:",
        "if not 0 <= n < self.offset:",
    ),
    _attention(
        "RoPE of the keys starts at 0 with every piece",
        TURN_KEY,
        "key = self.rope(self.k_norm(key))",
    ),
    _attention(
        "RoPE of the queries starts at 0 with every piece",
        TURN_QUERY,
        "query = self.rope(self.q_norm(query))",
    ),
    _attention(
        "RoPE starts at 0 with every piece",
        "B, L, _ = x.shape",
        "B, L, _ = x.shape\n"
        "        rows = self.rope.rows(step.positions - step.positions[..., :1])\n"
        "        step = Step(step.positions, rows, step.mask)",
    ),
    _attention(
        "the query stands one position too far",
        TURN_QUERY,
        "query = self.rope.rotate(self.q_norm(query), *self.rope.rows(step.positions + 1))",
    ),
    _attention(
        "one position too far after the prompt, as if the new token had been counted",
        "B, L, _ = x.shape",
        "B, L, _ = x.shape\n"
        "        if cache.offset:\n"
        "            step = Step(step.positions, self.rope.rows(step.positions + 1), step.mask)",
    ),
    _attention(
        "stores the keys without RoPE, and turns the queries alone",
        TURN_KEY,
        "key = self.k_norm(key)",
    ),
    _attention("no norm on the keys", TURN_KEY, "key = self.rope.rotate(key, *step.rows)"),
    _attention(
        "turns the values too",
        "value = project(x, self.wv).reshape(B, L, -1, self.head_dim)",
        "value = self.rope.rotate(project(x, self.wv).reshape(B, L, -1, self.head_dim), *step.rows)",
    ),
    _attention(
        "k_norm for the queries too",
        "self.q_norm(query)",
        "self.k_norm(query)",
    ),
    _attention(
        "no mask",
        ", mask=mask)",
        ")",
    ),
    _attention(
        "the step's mask and not the cache's",
        ", mask=mask)",
        ", mask=step.mask)",
    ),
    _attention(
        "leaves the mask to the cache, whatever the step says",
        "L, step.mask, positions",
        "L, None, positions",
    ),
    _attention(
        "joins the heads without bringing them back behind the tokens",
        "project(heads",
        "project(heads.reshape(heads.shape[0], L, -1, self.head_dim).swapaxes(1, 2)",
    ),
    _layer(
        "adds attention's answer to the normed copy",
        ATTEND,
        "x = self.input_layernorm(x)\n        x = x + self.attention(x, step, cache)",
    ),
    _layer("no norm before attention", ATTEND, "x = x + self.attention(x, step, cache)"),
    _layer(
        "no residual around attention",
        ATTEND,
        "x = self.attention(self.input_layernorm(x), step, cache)",
    ),
    _layer("no residual around the MLP", THINK, THINK.replace("x + ", "")),
    _layer("the first norm twice", NORM, "h = self.input_layernorm(x)"),
    _layer("no norm before the MLP", NORM, "h = x"),
    _layer(
        "the MLP reads the stream before attention",
        f"{ATTEND}\n        {NORM}",
        f"{NORM}\n        {ATTEND}",
    ),
    _layer(
        "silu on the wrong matrix",
        "silu(project(h, self.w_gate)) * project(h, self.w_up)",
        "project(h, self.w_gate) * silu(project(h, self.w_up))",
    ),
    _layer(
        "adds in place, to the caller's array",
        ATTEND,
        "x += self.attention(self.input_layernorm(x), step, cache)",
    ),
    _model(
        "the cache of layer 0 for all layers",
        LAYERS,
        "for layer, layer_cache in zip(self.layers, [cache[0]] * len(self.layers), strict=True):",
    ),
    _model(
        "every piece starts at position 0",
        "self.begin(inputs, offset, cache, mask)",
        'self.begin(inputs, 0, cache, "causal")',
    ),
    _model(
        "the caches from last to first",
        LAYERS,
        "for layer, layer_cache in zip(self.layers, cache if inputs.shape[1] > 1 else cache[::-1], strict=True):",
    ),
    _model(
        "every layer reads the embeddings",
        "x = layer(x, step, layer_cache)",
        "x = layer(self.embedding(inputs), step, layer_cache)",
    ),
    _model(
        "no last norm",
        "self.norm(kept(x, logits_to_keep))",
        "kept(x, logits_to_keep)",
    ),
    _model(
        "norms after every layer",
        "x = layer(x, step, layer_cache)",
        "x = self.norm(layer(x, step, layer_cache))",
    ),
    _model(
        "scores with the embedding although the model has a head",
        "self.head(",
        "self.embedding.as_linear(",
    ),
    _model(
        "scores all tokens and drops them afterwards",
        "self.head(self.norm(kept(x, logits_to_keep)))",
        "kept(self.head(self.norm(x)), logits_to_keep)",
    ),
    _model(
        "keeps the first tokens and not the last",
        "kept(x, logits_to_keep)",
        "x[:, :logits_to_keep] if isinstance(logits_to_keep, int) else kept(x, logits_to_keep)",
    ),
    _model(
        "x[:, -0:] is everything",
        "kept(x, logits_to_keep)",
        "x[:, -logits_to_keep:] if isinstance(logits_to_keep, int) else kept(x, logits_to_keep)",
    ),
    _model(
        "ignores logits_to_keep",
        "kept(x, logits_to_keep)",
        "x",
    ),
    _model(
        "always causal",
        "cache, mask)\n",
        'cache, "causal")\n',
    ),
    Mutant(
        "2.1.5",
        "the window's positions in the mask's type: bf16 has no 257, float16 no 2,049",
        "window_mask.py",
        mlx=(
            "keys > mx.expand_dims(positions, -1) - window",
            "keys.astype(dtype) > mx.expand_dims(positions, -1).astype(dtype) - window",
        ),
        torch=(
            "keys > positions.unsqueeze(-1) - window",
            "keys.to(dtype) > positions.unsqueeze(-1).to(dtype) - window",
        ),
    ),
    Mutant(
        "2.1.5",
        "where the window begins in float16, exact up to 2,048",
        "window_mask.py",
        mlx=(
            "keys > mx.expand_dims(positions, -1) - window",
            "keys > (mx.expand_dims(positions, -1) - window).astype(mx.float16)",
        ),
        torch=("keys > positions.unsqueeze(-1) - window", "keys > (positions.unsqueeze(-1) - window).half()"),
    ),
    Mutant(
        "2.1.5",
        "the rows of a batch all look through the first row's window",
        "window_mask.py",
        both=(
            "    if positions.ndim == 2:\n",
            "    if positions.ndim == 2:\n        near = near[:1]\n",
        ),
    ),
    Mutant(
        "2.1.5",
        "accepts more caches than layers",
        MODEL,
        both=("if len(cache) != len(self.layers):", "if len(cache) < len(self.layers):"),
        inside="Qwen3ModelWeek2._check_caches",
    ),
    Mutant(
        "2.1.5",
        "notices missing caches when the layers that have one are through",
        MODEL,
        both=(
            "if len(cache) != len(self.layers):",
            "if len(cache) > len(self.layers) or not cache:",
        ),
        inside="Qwen3ModelWeek2._check_caches",
    ),
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
        "2.1.5",
        "believes an offset below what the caches hold, and so counts tokens twice",
        MODEL,
        both=("if given != held:", "if given > held:"),
        inside="Qwen3ModelWeek2._check_caches",
    ),
    Mutant(
        "2.1.5",
        "compares the first row alone",
        MODEL,
        both=("if given != held:", "if given[0] != held[0]:"),
        inside="Qwen3ModelWeek2._check_caches",
    ),
    Mutant(
        "2.1.5",
        "asks for too many logits get as many as there happen to be",
        MODEL,
        both=("if not 0 <= logits_to_keep <= x.shape[1]:", "if logits_to_keep < 0:"),
        inside="kept",
    ),
    Mutant(
        "2.1.5",
        "a negative number of logits is none",
        MODEL,
        both=("if not 0 <= logits_to_keep <= x.shape[1]:", "if logits_to_keep > x.shape[1]:"),
        inside="kept",
    ),
    Mutant(
        "2.1.5",
        "room for the model's whole context, whatever was asked for",
        MODEL,
        both=("limit if max_seq_len is None else min(max_seq_len, limit)", "limit"),
        inside="Qwen3ModelWeek2.create_kv_cache",
    ),
    Mutant(
        "2.1.5",
        "room for one token more than was asked for",
        MODEL,
        both=("min(max_seq_len, limit)", "min(max_seq_len + 1, limit)"),
        inside="Qwen3ModelWeek2.create_kv_cache",
    ),
    _generate(
        "makes room for the model's whole context",
        "max_seq_len=len(tokens) + max_tokens",
        "",
    ),
    _generate(
        "makes twice the room",
        "len(tokens) + max_tokens",
        "2 * (len(tokens) + max_tokens)",
    ),
    _generate(
        "scores every token of the prompt",
        RUN,
        "return model(inputs[:, offset:], offset, cache)",
    ),
    _generate(
        "scores two tokens of a prompt",
        RUN,
        "return model(inputs[:, offset:], offset, cache, logits_to_keep=min(2, inputs.shape[1] - offset))",
    ),
    _generate(
        "sends the prompt again with every token",
        "offset = cache[0].offset\n",
        "offset = 0\n        for layer_cache in cache:\n            layer_cache.rewind(layer_cache.offset)\n",
    ),
    _generate(
        "sends the last token of the prompt twice",
        "offset = cache[0].offset\n",
        "offset = max(0, cache[0].offset - 1)\n"
        "        for layer_cache in cache:\n            layer_cache.rewind(min(1, layer_cache.offset))\n",
    ),
    _generate(
        "sends only the newest token, also of the prompt",
        RUN,
        "return model(inputs[:, -1:], offset, cache, logits_to_keep=1)",
    ),
    _generate(
        "says that every token stands at 0",
        RUN,
        "return model(inputs[:, offset:], 0, cache, logits_to_keep=1)",
    ),
    _generate(
        "says that every new token stands one too far",
        RUN,
        "return model(inputs[:, offset:], offset + (offset > 0), cache, logits_to_keep=1)",
    ),
    _generate(
        "makes room for the answer only",
        "len(tokens) + max_tokens",
        "max_tokens",
    ),
    _generate(
        "releases nothing",
        "            layer_cache.release()",
        "            layer_cache.materialize()",
    ),
    _generate(
        "releases the first layer's cache alone",
        "for layer_cache in cache:",
        "for layer_cache in cache[:1]:",
    ),
    _generate(
        "releases after an error, but not after Ctrl-C",
        FINALLY,
        "    except KeyboardInterrupt:\n        cache = []\n        raise\n" + FINALLY,
    ),
    _generate(
        "releases after a text that ends well, and not after an error",
        FINALLY,
        "    except BaseException:\n        cache = []\n        raise\n" + FINALLY,
    ),
    _generate(
        "ignores the sampler",
        "new_tokens_only, tokenizer, tokens, sampler,",
        "new_tokens_only, tokenizer, tokens, None,",
    ),
    _generate("ignores the limit", "max_tokens=max_tokens,", "max_tokens=256,"),
    _generate("streams nothing", "on_text=on_text", "on_text=None"),
]

"""Wrong solutions of Week 1 Day 5."""

from authors.mutants import Mutant

ATTEND = "x = x + self.self_attn(self.input_layernorm(x), mask)"
THINK = "return x + self.mlp(self.post_attention_layernorm(x))"
RUN = """x = self.embedding(inputs)
        for layer in self.layers:
            x = layer(x, mask="causal")"""
HEAD = "return self.embedding.as_linear(x) if self.w_lm_head is None else linear(x, self.w_lm_head)"
MODEL = "qwen3_week1.py"


def _block(idea: str, old: str, new: str) -> Mutant:
    return Mutant("1.5.3", idea, MODEL, both=(old, new))


def _model(idea: str, old: str, new: str) -> Mutant:
    return Mutant("1.5.4", idea, MODEL, both=(old, new))


MUTANTS = [
    Mutant(
        "1.5.1",
        "multiplies the rows by √E, as Gemma does",
        "embedding.py",
        both=("return self.weight[ids]", "return self.weight[ids] * self.embedding_dim**0.5"),
    ),
    Mutant(
        "1.5.1",
        "counts the rows from 1, and wraps around",
        "embedding.py",
        both=("self.weight[ids]", "self.weight[(ids + self.vocab_size - 1) % self.vocab_size]"),
    ),
    Mutant(
        "1.5.1",
        "hands out float32 rows of a bf16 table",
        "embedding.py",
        mlx=("return self.weight[ids]", "return self.weight[ids].astype(mx.float32)"),
        torch=("return self.weight[ids]", "return self.weight[ids].float()"),
    ),
    Mutant(
        "1.5.2",
        "multiplies by the table and not by its transpose, when the shapes allow it",
        "embedding.py",
        both=(
            "linear(x, self.weight)",
            "linear(x, self.weight.T if self.vocab_size == self.embedding_dim else self.weight)",
        ),
        inside="Embedding.as_linear",
    ),
    Mutant(
        "1.5.2",
        "scales the logits by 1/√E",
        "embedding.py",
        both=("return linear(x, self.weight)", "return linear(x, self.weight) / self.embedding_dim**0.5"),
    ),
    Mutant(
        "1.5.2",
        "returns probabilities",
        "embedding.py",
        mlx=("return linear(x, self.weight)", "return mx.softmax(linear(x, self.weight), axis=-1)"),
        torch=("return linear(x, self.weight)", "return torch.softmax(linear(x, self.weight), dim=-1)"),
    ),
    Mutant(
        "1.5.2",
        "float32 logits of a bf16 table",
        "embedding.py",
        mlx=("linear(x, self.weight)", "linear(x.astype(mx.float32), self.weight.astype(mx.float32))"),
        torch=("linear(x, self.weight)", "linear(x.float(), self.weight.float())"),
        inside="Embedding.as_linear",
    ),
    _block(
        "adds attention's answer to the normed copy",
        ATTEND,
        "x = self.input_layernorm(x)\n        x = x + self.self_attn(x, mask)",
    ),
    _block(
        "norms after the addition, as the first transformers did",
        ATTEND,
        "x = self.input_layernorm(x + self.self_attn(x, mask))",
    ),
    _block(
        "norms what attention answers and not what it reads",
        ATTEND,
        "x = x + self.input_layernorm(self.self_attn(x, mask))",
    ),
    _block(
        "no residual around attention",
        ATTEND,
        "x = self.self_attn(self.input_layernorm(x), mask)",
    ),
    _block(
        "no residual around the MLP",
        THINK,
        "return self.mlp(self.post_attention_layernorm(x))",
    ),
    _block("no norm before the MLP", THINK, "return x + self.mlp(x)"),
    _block(
        "the first norm twice",
        THINK,
        "return x + self.mlp(self.input_layernorm(x))",
    ),
    _block(
        "the MLP first, then attention",
        f"{ATTEND}\n        {THINK}",
        "x = x + self.mlp(self.post_attention_layernorm(x))\n"
        "        return x + self.self_attn(self.input_layernorm(x), mask)",
    ),
    _block(
        "attention and MLP side by side, both reading the layer's input",
        f"{ATTEND}\n        {THINK}",
        "attended = self.self_attn(self.input_layernorm(x), mask)\n"
        "        return x + attended + self.mlp(self.post_attention_layernorm(x))",
    ),
    _block(
        "adds in place, to the caller's array",
        ATTEND,
        "x += self.self_attn(self.input_layernorm(x), mask)",
    ),
    _block(
        "drops the mask",
        ATTEND,
        "x = x + self.self_attn(self.input_layernorm(x))",
    ),
    _block(
        "is causal whatever mask it is given",
        ATTEND,
        'x = x + self.self_attn(self.input_layernorm(x), "causal")',
    ),
    _block(
        "the default theta in place of the given one",
        "max_seq_len, theta, rms_norm_eps, rope=rope",
        "max_seq_len, 1000000, rms_norm_eps, rope=rope",
    ),
    _block(
        "attention norms its heads with the default eps",
        "max_seq_len, theta, rms_norm_eps, rope=rope",
        "max_seq_len, theta, rope=rope",
    ),
    _block(
        "the norm before the MLP has the default eps",
        "w_post_attention_layernorm, rms_norm_eps)",
        "w_post_attention_layernorm)",
    ),
    _model(
        "no mask",
        'x = layer(x, mask="causal")',
        "x = layer(x)",
    ),
    _model(
        "the mask for the first layer alone",
        'x = layer(x, mask="causal")',
        'x = layer(x, mask="causal" if layer is self.layers[0] else None)',
    ),
    _model(
        "every layer reads the embeddings",
        'x = layer(x, mask="causal")',
        'x = layer(self.embedding(inputs), mask="causal")',
    ),
    _model(
        "the layers from last to first",
        "for layer in self.layers:",
        "for layer in self.layers[::-1]:",
    ),
    _model(
        "the weights of layer 0 in every layer",
        "_layer(checkpoint, index, rope) for",
        "_layer(checkpoint, 0, rope) for",
    ),
    _model(
        "no last norm",
        "        x = self.norm(x)\n",
        "",
    ),
    _model(
        "the last norm after every layer",
        'x = layer(x, mask="causal")',
        'x = self.norm(layer(x, mask="causal"))',
    ),
    _model(
        "scales the embeddings by √E, as Gemma does",
        "x = self.embedding(inputs)",
        "x = self.embedding(inputs) * self.config.hidden_size**0.5",
    ),
    _model(
        "scores with the embedding although the model has a head",
        HEAD,
        "return self.embedding.as_linear(x)",
    ),
    _model(
        "the logits of the last token only",
        "x = self.norm(x)",
        "x = self.norm(x)[:, -1:]",
    ),
    _model(
        "runs the batch as one long text",
        RUN,
        RUN.replace("self.embedding(inputs)", "self.embedding(inputs.reshape(1, -1))")
        + "\n        x = x.reshape(*inputs.shape, -1)",
    ),
    Mutant(
        "1.5.4",
        "widens to float32 on the way",
        MODEL,
        mlx=("x = self.embedding(inputs)", "x = self.embedding(inputs).astype(mx.float32)"),
        torch=(HEAD, HEAD.replace("return ", "logits = ") + "\n        return logits.float()"),
    ),
    _model(
        "RoPE's own default base in place of the model's",
        "config.max_position_embeddings, config.rope_theta)",
        "config.max_position_embeddings)",
    ),
    _model(
        "a theta of one million in place of the model's, as most Qwen3 have it",
        "config.max_position_embeddings, config.rope_theta)",
        "config.max_position_embeddings, 1000000)",
    ),
    _model(
        "the last norm has the default eps",
        "RMSNorm(hidden_size, norm, config.rms_norm_eps)",
        "RMSNorm(hidden_size, norm)",
    ),
    _model(
        "the layers have an eps of 1e-6, as Qwen3-0.6B has",
        "rms_norm_eps=config.rms_norm_eps,",
        "rms_norm_eps=1e-6,",
    ),
    Mutant(
        "1.5.4",
        "the weight of the first norm in both norms of a layer",
        "../layer_weights.py",
        both=('("post_attention_layernorm", E),', '("input_layernorm", E),'),
    ),
    Mutant(
        "1.5.4",
        "exchanges gate and up",
        "../layer_weights.py",
        both=(
            '"w_gate": ("mlp.gate_proj", F, E),\n        "w_up": ("mlp.up_proj", F, E),',
            '"w_gate": ("mlp.up_proj", F, E),\n        "w_up": ("mlp.gate_proj", F, E),',
        ),
    ),
]

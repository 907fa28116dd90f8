"""Makes `goldens/llama_cpp_tokens.json` again: `pdm run python tests_refsol/make_tokenizer_goldens.py SMOLLM2.gguf`.

llama.cpp tokenises nasty texts with the vocabulary of SmolLM2, and with small ones that are trained here on these very
texts without splits, so that a forgotten split shows. Needs gguf and xllamacpp, whose server is asked over HTTP.
"""

import hashlib
import json
import os
import platform
import random
import re
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import xllamacpp
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

FILE = Path(__file__).parent / "goldens" / "llama_cpp_tokens.json"
COMMAND = "pdm run python tests_refsol/make_tokenizer_goldens.py SMOLLM2.gguf"
GGML = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

TEXTS = [
    "", " ", "  ", "   ", "a", " a", "a ", "  a", "a  b   c    d", "hello world",
    "Hello, World!  How are you?", "\n", "\n\n", "\r\n", "\r\n\r\n", "a\nb", "a\n b", "a \n b", "a\n\n  b",
    "\t", "\ta\t\tb", " \t\n \t\n", "a\r\n\tb\r\n", "\u00a0", "a\u00a0b", "\u00a0\u00a0a",
    "a\u2003b\u2009c", "\u2028a\u2029", "a\u3000b\u3000\u3000c", "\u200ba\u200b", "\ufeffa", "x\u0085y",
    "\x0b\x0ca", "a\x1cb", "a \u00a0\n b", "...\n\n", "end. \n", "(x)\r\n{y}\n\n", "0", "7", "12", "123",
    "1234", "1234567", "3.14", "-1.5e-10", "1,000,000", "a1b22c333d4444", " 42", "  42  ", "0x1F", "a  1",
    "x =  3;\n    4", "１２３", "１２３４５", "²", "x²+y³", "½", "Ⅷ", "٣٤٥٦", "१२३४", "①②③", "1²3", "10%",
    "$5.00", "€20", "2026-11-25", "don't", "DON'T", "I'm we're you've he'll she'd it's",
    "I'M WE'RE YOU'VE HE'LL SHE'D IT'S", "'s", " 's", "'S", "''s", "'ll'LL", 
    "'SOME'TALL'REAL'VERY'MORE'LLAMA'DARE", "'some'tall'real'very'more'llama'dare",
    "don’t ‘x’ “y”",
    "rock 'n' roll", "'tis", "o'clock", "'ſ 'K", "l'été", "d'd'D", "Ünïcödé", "naïve café",
    "cafe\u0301 n\u0303", "e\u0301\u0301\u0301", "straße STRASSE", "İstanbul ıi", "ﬁ ﬂ", "Ǆ ǅ ǆ",
    "你好，世界！", "北京 東京 서울", "これは日本語です。", "カタカナ　ひらがな", "한국어 문장", "𠮷野家",
    "مرحبا بالعالم", "السَّلَامُ عَلَيْكُمْ", "नमस्ते दुनिया", "क्षत्रिय हिन्दी", "ภาษาไทย", "שָׁלוֹם",
    "Привет, мир!", "Γειά σου", "😀", "😀😀", "a😀b", " 😀", "👨‍👩‍👧‍👦", "👍🏽👍🏿", "🇩🇪🇫🇷", "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "❤️❤", "☺️!", "✈️ 1️⃣2️⃣", "(╯°□°)╯︵ ┻━┻", "!!!", "?!?!", "a--b", "—–-", "a_b __init__",
    "#include <stdio.h>", "`code` ```py\n", "x = y**2; // c", "<=>", "a^b|c~d", "$$", "« x »",
    "def f(x):\n    return x + 1\n\n\nclass A:\n\tpass\n", 'print("a\\n")',
    "if (a && b || !c) { d[0] += 1; }", "https://a.b/c?d=e&f=g#h", "camelCaseWord snake_case UPPER lower",
    "aaaaaaaaaaaaaaaa", "================", "- - - -", "a" + " " * 17 + "b", "\n" * 9, "x" * 300, "\ufffd",
    "a\ufffdb\ufffd\ufffd", "\x00", "a\x00b", "\x01\x02\x03", "a\x06b", "a\x06\x06 b", "=\x06= =\x04=",
    "\x04x\x13y\x14z\x16", "\x1b[0m", "\x7f", "\ue000", "\U000f0000", "\u0378", "<|im_start|>user",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>", "<|im_end|><|im_end|>",
    " <|im_end|> ", "<|im_start", "<|IM_END|>", "<|endoftext|>a", "a<|endoftext|>", "<s>", "</s>a",
    "<unk>", "a<unk>b", "<repo_name>x<file_sep>", "<think>a</think>\n\nb", "<think> </think>\n",
    "<tool>{}<tool>", "x<pad>y", "Ġ", "Ċ", "▁", "▁a ▁▁b", "<0x0A>", "<0x41>", "a unmergeable unmergeable",
    "unmergeable", "[EMPTY_3]", "[INST] hi [/INST]",
]  # fmt: skip

CONVERSATIONS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "You are short."}, {"role": "user", "content": "  Hi!\n"}],
    [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "It's <|im_end|> & 'é' 😀"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "And\n\nnow?"},
    ],
]


def texts() -> list[str]:
    """The texts above, and random ones from their pieces but byte 6, which the small vocabularies lack."""
    rng = random.Random(0)
    pieces = [piece for text in TEXTS for piece in re.findall(r"\w+|\s+|[^\x06]", text)]
    return TEXTS + ["".join(rng.choices(pieces, k=rng.randint(2, 12))) for _ in range(60)]


def byte_level_vocabulary() -> dict[str, Any]:
    """A header that lacks a byte, with a token that no merges lead to, merges that are there twice, added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # Pairs that cross the ends of contractions, then what is trained; "Ć" is byte 6.
    crossing = ["SO", "TA", "EA", "ER", "MO", "LA", "DA"]
    merges = [(a, b) for a, b in crossing + [pair.lower() for pair in crossing]]
    merges += [pair for pair in trained_merges(tokenizer, alphabet, 1300, without="Ć") if pair not in merges]
    plain = [*sorted({*alphabet} - {"Ć"}), *dict.fromkeys(a + b for a, b in merges)]
    plain += ["", "Ġunmergeable", "unmergeable"]
    added = {"<|endoftext|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": NORMAL, "<unk>": UNKNOWN}
    added |= dict.fromkeys(["<think>", "</think>", "</think>\n\n", "<reponame>"], USER_DEFINED) | {
        "<pad>": UNUSED
    }
    tokens = dict.fromkeys(plain, NORMAL) | added
    ids = {text: id for id, text in enumerate(tokens)}
    return {
        GGML + "model": "gpt2",
        GGML + "tokens": list(tokens),
        GGML + "token_type": list(tokens.values()),
        GGML + "merges": [" ".join(pair) for pair in [*merges, *merges[:50]]],
        GGML + "bos_token_id": ids["<|im_start|>"],
        GGML + "eos_token_id": ids["<|endoftext|>"],
        GGML + "unknown_token_id": ids["<unk>"],
    }


def pieces_vocabulary() -> dict[str, Any]:
    """A header of SentencePiece: special tokens, bytes, what was merged, the first the best, and characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = None
    # llama.cpp ends a token's text at a zero byte.
    merges = trained_merges(
        tokenizer, [], 900, without="\0", change=lambda text: "▁" + text.replace(" ", "▁")
    )
    merged = list(dict.fromkeys(a + b for a, b in merges))
    characters = sorted({character for text in merged for character in text} | {"▁"})
    special = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
    special |= {f"<0x{byte:02X}>": BYTE for byte in range(256)}
    added = {"<tool>": USER_DEFINED, "   ": USER_DEFINED, "<|im_end|>": USER_DEFINED, "<pad>": UNUSED}
    tokens = special | dict.fromkeys(merged + characters, NORMAL) | added
    first = len(special)
    return {
        GGML + "model": "llama",
        GGML + "tokens": list(tokens),
        GGML + "token_type": list(tokens.values()),
        GGML + "scores": [0.0] * first + [-float(rank) for rank in range(len(tokens) - first)],
    }


def trained_merges(
    tokenizer: Tokenizer, alphabet: list[str], count: int, without: str, change: Callable[[str], str] = str
) -> list[tuple[str, str]]:
    """The pairs that a BPE merges which has seen the texts unsplit. Long tokens would make the file large."""
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + count, initial_alphabet=alphabet, max_token_length=7, show_progress=False
    )
    tokenizer.train_from_iterator([change(text) for text in texts() * 2], trainer)
    return [(a, b) for a, b in json.loads(tokenizer.to_str())["model"]["merges"] if without not in a + b]


NO_PREFIX = {GGML + "add_space_prefix": False, GGML + "add_bos_token": False, GGML + "add_eos_token": True}
# Each tokenizer is a vocabulary with other fields; None takes a field out.
TOKENIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm": ("bytes", {GGML + "pre": "smollm"}),
    "qwen2": ("bytes", {GGML + "pre": "qwen2", GGML + "add_bos_token": False, GGML + "eot_token_id": 7}),
    "llama-bpe": ("bytes", {GGML + "pre": "llama-bpe"}),
    "gpt-2": ("bytes", {GGML + "pre": "gpt-2", GGML + "add_bos_token": True, GGML + "add_eos_token": True}),
    "default": ("bytes", {GGML + "pre": "default", GGML + "fim_rep_token_id": 9}),
    "no pre, no types": ("bytes", {GGML + "token_type": None}),
    "pieces": ("pieces", {}),
    "pieces without a prefix": ("pieces", NO_PREFIX | {GGML + "eom_token_id": 8}),
}
VOCABULARIES = {"bytes": byte_level_vocabulary, "pieces": pieces_vocabulary}


def write_model(fields: dict[str, Any], file: Path) -> None:
    """A model of one layer, which llama.cpp wants around a vocabulary."""
    writer, size = gguf.GGUFWriter(file, "llama"), 32
    writers = {list: writer.add_array, str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}
    for key, value in fields.items():
        writers[type(value)](key, value)
    for name in ("embedding_length", "feed_forward_length", "context_length"):
        writer.add_uint32(f"llama.{name}", size)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    square = np.zeros((size, size), np.float32)
    writer.add_tensor("token_embd.weight", np.zeros((len(fields[GGML + "tokens"]), size), np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """llama.cpp's server for one file, and the end tokens that it prints as it starts."""

    def __init__(self, file: Path):
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 256, 1, False, 4
        before = os.dup(2)
        with tempfile.TemporaryFile() as log:
            os.dup2(log.fileno(), 2)
            try:
                self._server = xllamacpp.Server(params)
            finally:
                os.dup2(before, 2)
            log.seek(0)
            self.ends = sorted({int(id) for id in re.findall(rb"EOG token +=\s+(\d+)", log.read())})

    def post(self, path: str, **body) -> dict:
        url, data = self._server.listening_address + path, json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def ids(self, text: str, add_special: bool = False) -> list[int]:
        return self.post("/tokenize", content=text, add_special=add_special, parse_special=True)["tokens"]

    def back(self, text: str) -> str:
        """The text of a text's tokens, one by one: for some vocabularies llama.cpp tidies spaces of the whole."""
        body = {"content": text, "add_special": False, "parse_special": True, "with_pieces": True}
        pieces = [token["piece"] for token in self.post("/tokenize", **body)["tokens"]]
        # A part of a character is a list of bytes.
        return b"".join(x.encode() if isinstance(x, str) else bytes(x) for x in pieces).decode(
            errors="replace"
        )


def golden(file: Path, prefix: str = "") -> dict[str, Any]:
    """What llama.cpp says of the texts. `changed`: texts that do not come back, and what comes back."""
    llama_cpp = LlamaCpp(file)
    back = {text: llama_cpp.back(text).removeprefix(prefix) for text in texts()}
    return {
        "ids": [llama_cpp.ids(text) for text in texts()],
        "changed": {text: found for text, found in back.items() if found != text},
        "with_special": llama_cpp.ids("a b", add_special=True),
        "ends": llama_cpp.ends,
        "prompts": [llama_cpp.post("/apply-template", messages=chat)["prompt"] for chat in CONVERSATIONS],
    }


def main(smollm2: Path) -> None:
    vocabularies = {name: make() for name, make in VOCABULARIES.items()}
    goldens = {"smollm2": golden(smollm2)}
    with tempfile.TemporaryDirectory() as folder:
        for name, (vocabulary, changes) in TOKENIZERS.items():
            fields = vocabularies[vocabulary] | changes
            file = Path(folder) / "model.gguf"
            write_model({key: value for key, value in fields.items() if value is not None}, file)
            found = golden(file, prefix=" " if name == "pieces" else "")
            del found["prompts"]  # by a template of llama.cpp's own
            goldens[name] = {"vocabulary": vocabulary, "fields": changes} | found
    data = {
        "provenance": provenance(smollm2),
        "texts": texts(),
        "conversations": CONVERSATIONS,
        "vocabularies": vocabularies,
        "tokenizers": goldens,
    }
    FILE.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def provenance(smollm2: Path) -> dict[str, Any]:
    """Who computed the goldens, when, and from what."""
    return {
        "command": COMMAND,
        "date": date.today().isoformat(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("xllamacpp", "gguf", "tokenizers")},
        "smollm2": {"file": smollm2.name, "sha256": hashlib.sha256(smollm2.read_bytes()).hexdigest()},
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A GGUF file: the fields of its header and its tensors, read by the library `gguf` within limits that we set.

The header is a list of keys and values, then a list of tensors; their bytes follow. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import SupportsInt

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, ReaderField
from gguf.gguf_reader import READER_SUPPORTED_VERSIONS
from gguf.quants import dequantize
from numpy.typing import DTypeLike

from tiny_llm_engine.models.files import CheckpointError, Json, require, shown

# Of an array: the largest vocabularies have some 260,000 tokens and twice as many merges.
MOST_ENTRIES = 2_000_000
LENGTH = struct.Struct("<Q")
MOST_COUNT = 100_000  # of keys, and of tensors
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class GuardedReader(GGUFReader):
    """The library's reader, which never reads past the end of the file, nor an endless array.

    It also reads arrays at once: entry by entry, a vocabulary takes several seconds.
    """

    def _get(
        self, offset: SupportsInt, dtype: DTypeLike, count: SupportsInt = 1, override_order: str | None = None
    ) -> np.ndarray:
        offset, count = int(offset), int(count)
        end = offset + np.dtype(dtype).itemsize * count
        if end > len(self.data):
            raise ValueError(f"it ends at byte {len(self.data)}, and its header needs byte {end}")
        return np.frombuffer(self.data, dtype, count, offset)

    def _build_fields(self, offs: int, count: int) -> int:
        return super()._build_fields(offs, _limited(count, "keys"))

    def _build_tensor_info(self, offs: int, count: int) -> tuple[int, list[ReaderField]]:
        return super()._build_tensor_info(offs, _limited(count, "tensors"))

    def _get_field_parts(
        self, orig_offs: SupportsInt, raw_type: SupportsInt
    ) -> tuple[int, list[np.ndarray], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(int(orig_offs), int(raw_type))
        start = int(orig_offs) + 12  # after the type and the number of its entries
        kind, count = int(self._get(start - 12, np.uint32)[0]), int(self._get(start - 8, np.uint64)[0])
        if count > MOST_ENTRIES:
            raise ValueError(f"an array has {count} entries")
        types = [GGUFValueType.ARRAY, GGUFValueType(kind)]
        if kind == GGUFValueType.STRING:
            size, parts = self._strings(start, count)
            return 12 + size, parts, list(range(count)), types
        if kind == GGUFValueType.ARRAY:
            raise ValueError("an array holds arrays")
        values = self._get(start, self.gguf_scalar_to_np[types[1]], count)
        return 12 + values.nbytes, [values], [0], types

    def _strings(self, start: int, count: int) -> tuple[int, list[np.ndarray]]:
        """The bytes that `count` strings take, and the strings, as bytes."""
        at, parts, content = start, [], self.data.data
        for _ in range(count):
            [size] = LENGTH.unpack_from(content, at)  # a third of the time that `_get` takes
            parts.append(self._get(at + 8, np.uint8, size))
            at += 8 + size
        return at - start, parts


def _limited(count: int, things: str) -> int:
    if count > MOST_COUNT:
        raise ValueError(f"it has {count} {things}")
    return int(count)


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """A tensor as it is stored.

    Args:
        file: the file that holds it.
        kind: the name of its type: "F32", "Q4_1", …
        shape: of its numbers, rows first.
        data: its numbers, or the bytes of its rows (…, bytes of a row); in the mapped file.
    """

    file: Path
    kind: str
    shape: tuple[int, ...]
    data: np.ndarray
    _type: GGMLQuantizationType = field(repr=False)

    def floats(self) -> np.ndarray:
        """Its numbers in float32, dequantised by the library.

        Raises:
            CheckpointError: the library does not know how.
        """
        try:
            return dequantize(self.data, self._type).astype(np.float32, copy=False).reshape(self.shape)
        except NotImplementedError:
            raise CheckpointError(
                f"{self.file}: a tensor is stored as {self.kind}, which the library gguf does not dequantise; choose "
                "another file of this model"
            ) from None


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A file, or all parts of a split one.

    Args:
        path: of the file, or of the first part.
        fields: the header's values by key.
        tensors: by the name in the file.
    """

    path: Path
    fields: Json
    tensors: Mapping[str, GgufTensor]


def open_gguf(path: Path) -> GgufFile:
    """Read a file's header; the tensors stay in the file until they are used.

    Raises:
        CheckpointError: it is not a GGUF file, is cut off or contradicts itself, or a part of it is not there.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    return _opened(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=2)  # of a model and its draft: each is asked for its config, its tokenizer and its weights
def _opened(path: Path, _size: int, _time: int) -> GgufFile:
    fields, tensors = _read(path)
    parts = fields.get("split.count", 1)
    require(f"{path}: split.count", parts, type(parts) is int and parts < 10**5, "a number of files")
    if parts > 1:
        for number in range(2, parts + 1):
            for name, tensor in _read(_part(path, number, parts))[1].items():
                if name in tensors:
                    raise _broken(tensor.file, f"tensor {shown(name)} is also in {tensors[name].file.name}")
                tensors[name] = tensor
    return GgufFile(path, fields, tensors)


def forget_opened() -> None:
    """Let go of the files that were opened: a mapped file that was read counts as this program's memory."""
    _opened.cache_clear()


def _part(path: Path, number: int, parts: int) -> Path:
    """The path of another part of a split file.

    Raises:
        CheckpointError: `path` is not its first part, or the other is not there.
    """
    found = PART.fullmatch(path.name)
    first, other = (found and f"{found[1]}-{each:05}-of-{parts:05}.gguf" for each in (1, number))
    if path.name != first or other is None:
        raise CheckpointError(
            f"{path}: one part of a model in {parts} files: give the first one, "
            f"{first or f'NAME-00001-of-{parts:05}.gguf'}"
        )
    if not path.with_name(other).is_file():
        raise CheckpointError(
            f"{path.with_name(other)}: not found, and the model has {parts} parts: download it"
        )
    return path.with_name(other)


def _read(path: Path) -> tuple[Json, dict[str, GgufTensor]]:
    _check_beginning(path)
    try:
        with np.errstate(over="raise"):  # of an offset of 64 bits
            reader = GuardedReader(path)
        _check_offsets(reader)
        fields = {key: value.contents() for key, value in reader.fields.items()}
        tensors = {
            tensor.name: GgufTensor(
                path,
                tensor.tensor_type.name,
                tuple(int(size) for size in reversed(tensor.shape)),
                tensor.data,
                tensor.tensor_type,
            )
            for tensor in reader.tensors
        }
    except (ValueError, LookupError, ArithmeticError, TypeError, OSError, MemoryError, struct.error) as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        raise _broken(path, problem[:120]) from None
    return fields, tensors


def _check_offsets(reader: GuardedReader) -> None:
    """Raise ValueError unless each tensor begins where the one before it ends, as in llama.cpp."""
    expected = int(reader.data_offset)
    for tensor in reader.tensors:
        if tensor.data_offset != expected:
            offset, right = (at - int(reader.data_offset) for at in (tensor.data_offset, expected))
            raise ValueError(f"tensor {shown(tensor.name)} has offset {offset}, and must have {right}")
        expected += -(-tensor.n_bytes // int(reader.alignment)) * int(reader.alignment)


def _check_beginning(path: Path) -> None:
    """Reject anything but a GGUF file, by its first eight bytes."""
    try:
        with path.open("rb") as file:
            begin = file.read(8)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if begin[:4] != b"GGUF":
        raise CheckpointError(f"{path}: not a GGUF file: its first bytes are {shown(begin[:4])}")
    if begin[4:6] == b"\0\0":
        problem = "is in big-endian byte order: download the little-endian file of this model"
        raise CheckpointError(f"{path}: {problem}")
    version = int.from_bytes(begin[4:], "little")
    if len(begin) == 8 and version not in READER_SUPPORTED_VERSIONS:
        known = " and ".join(map(str, READER_SUPPORTED_VERSIONS))
        problem = f"has version {version} of GGUF, and {known} are read: choose another file of this model"
        raise CheckpointError(f"{path}: {problem}")


def _broken(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path}: broken GGUF file: {problem}; download the file again")

"""Read tensor descriptions from the pickle of a `torch.save` file without unpickling it.

A pickle is a program. :func:`read_pickle` interprets only the opcodes of `torch.save`, calls no function that the
pickle names, and allocates no tensors. So a malicious file cannot run code or exhaust memory or time.
"""

import math
import pickletools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

MOST_OPCODES = 2_000_000
"""Maximum number of opcodes of a pickle; a network of 600 tensors with its optimizer's state has 60,000."""
MOST_DIMENSIONS = 16
STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64, "ComplexDoubleStorage": torch.complex128, "UntypedStorage": torch.uint8,
}  # fmt: skip
DENSE = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2")
TYPED = "torch._utils._rebuild_tensor_v3"  # with a data type that may differ from the storage's
PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
MAPPING = "collections.OrderedDict"
IGNORED = frozenset({
    "_codecs.encode", "__builtin__.set", "argparse.Namespace", "builtins.complex", "builtins.set",
    "collections.Counter", "torch.Size", "torch.device",
})  # fmt: skip
"""Classes that are allowed but ignored, such as training settings."""


class PickleError(ValueError):
    """Error for a pickle with other contents than tensors; the message names them."""


@dataclass(frozen=True)
class Storage:
    """``numel`` elements of the memory block ``key``, from element ``first`` on."""

    key: str
    dtype: torch.dtype
    numel: int
    first: int = 0


@dataclass(frozen=True)
class Described:
    """Description of a dense tensor inside a storage; offset and strides count elements."""

    storage: Storage
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Number of bytes of the tensor's elements."""
        return math.prod(self.size) * self.dtype.itemsize


@dataclass(frozen=True)
class _Named:
    """A function or class that the pickle names; it is never imported."""

    path: str


class _Ignored:
    """Substitute for an object that is not needed."""


_MARK = object()
_SPARSE = "contains tensors that are not dense: sparse, quantised, empty, or from another library"


def read_pickle(stream: Any) -> tuple[Any, dict[str, torch.dtype]]:
    """Return a pickle's plain values, with a `Described` for each tensor, and the data types of its storages.

    The stream needs `read` and `readline`; afterwards its position is the end of the pickle.

    Raises:
        PickleError: The pickle has other contents, or too many opcodes.
        ValueError: The pickle is damaged.
    """
    machine = _Machine()
    return machine.run(stream), machine.storages


class _Machine:
    """Interpreter with the stack, the memo and the storages of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, torch.dtype] = {}

    def run(self, stream: Any) -> Any:
        for step, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if opcode.name == "STOP":
                return self.pop()
            if step > MOST_OPCODES:
                raise PickleError(f"has more than {MOST_OPCODES} opcodes")
            if opcode.name in _LITERALS:
                self.stack.append(_LITERALS[opcode.name](argument))
            elif opcode.name in _STEPS:
                _STEPS[opcode.name](self, argument)
            else:
                raise PickleError(f"has the opcode {opcode.name}, which torch.save does not write")
        raise ValueError("the pickle has no end")

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("the pickle uses a mark as a value")
        return value

    def top(self, kind: type) -> Any:
        if not self.stack or type(self.stack[-1]) is not kind:
            raise ValueError(f"the pickle fills an object that is not a {kind.__name__}")
        return self.stack[-1]

    def since_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values

    def join(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(values)))

    def extend(self, values: Sequence[Any]) -> None:
        self.top(list).extend(values)

    def set_items(self, values: Sequence[Any]) -> None:
        _fill(self.top(dict), zip(values[::2], values[1::2], strict=True))

    def call(self, _: Any) -> None:
        arguments, named = self.pop(), self.pop()
        if not isinstance(arguments, tuple) or not isinstance(named, _Named):
            raise ValueError("the pickle calls an object that is not a function")
        self.stack.append(_called(named.path, arguments))

    def build(self, _: Any) -> None:
        """Ignore the state set on an object, such as the metadata of a state dict."""
        self.pop()
        if not isinstance(self.stack[-1], dict | _Ignored):
            raise ValueError("the pickle sets attributes of an object that has none")

    def load_storage(self, _: Any) -> None:
        storage = _storage(self.pop())
        self.storages[storage.key] = storage.dtype
        self.stack.append(storage)


def _fill(mapping: dict[Any, Any], pairs: Iterable[Sequence[Any]]) -> None:
    """Add pairs with string keys; all other keys become one key, since hashing nested tuples can take forever."""
    for key, value in pairs:
        mapping[key if isinstance(key, str) else _Ignored] = value


def _called(path: str, arguments: tuple[Any, ...]) -> Any:
    """Return the substitute for the result of a call in the pickle."""
    if path in DENSE:
        storage, offset, size, stride = arguments[:4]
        return _described(storage, offset, size, stride)
    if path == TYPED:
        storage, offset, size, stride, _, _, dtype = arguments[:7]
        return _described(storage, offset, size, stride, _dtype(dtype))
    if path in PARAMETERS and arguments and isinstance(arguments[0], Described):
        return arguments[0]
    if path == MAPPING:
        mapping: dict[Any, Any] = {}
        _fill(mapping, arguments[0] if arguments else ())
        return mapping
    if path in IGNORED:
        return _Ignored()
    if path.startswith("torch._utils._rebuild_"):
        raise PickleError(_SPARSE)
    raise PickleError(f"contains other objects than tensors ({path[:80]!r})")


def _dtype(named: Any) -> torch.dtype:
    name = named.path.removeprefix("torch.") if isinstance(named, _Named) else ""
    dtype = vars(torch).get(name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor has no data type")
    return dtype


def _storage(identifier: Any) -> Storage:
    """Return the storage for a persistent id: (kind, type, key, location, length[, view])."""
    if not isinstance(identifier, tuple) or len(identifier) not in (5, 6) or identifier[0] != "storage":
        raise PickleError("contains other objects than tensors")
    _, kind, key, _, numel = identifier[:5]
    name = kind.path.rpartition(".")[2] if isinstance(kind, _Named) else ""
    if name not in STORAGES:
        raise PickleError(_SPARSE)
    view = identifier[5] if len(identifier) == 6 else None
    first, numel = (view[1], view[2]) if isinstance(view, tuple) and len(view) == 3 else (0, numel)
    if not isinstance(key, str) or not _counts((numel, first)):
        raise ValueError("a storage has no name or no length")
    return Storage(key, STORAGES[name], numel, first)


def _described(storage: Any, offset: Any, size: Any, stride: Any, dtype: torch.dtype | None = None) -> Described:
    """Return a tensor's description; PickleError if elements overlap or lie outside the storage."""
    if not isinstance(storage, Storage) or not _counts((offset,)) or not _counts(size) or not _counts(stride):
        raise ValueError("a tensor has no storage or no shape")
    if len(size) != len(stride) or len(size) > MOST_DIMENSIONS:
        raise PickleError(f"contains a tensor with {len(size)} dimensions and {len(stride)} strides")
    dtype = dtype or storage.dtype
    room = storage.numel * storage.dtype.itemsize // dtype.itemsize
    reach = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) + 1
    numel = math.prod(size)
    if numel > room or (numel and reach > room):
        raise PickleError(f"contains a tensor of shape {list(size)}, but only {room} of its elements")
    return Described(storage, dtype, offset, tuple(size), tuple(stride))


def _counts(values: Any) -> bool:
    return isinstance(values, tuple | list) and all(type(value) is int and 0 <= value < 2**62 for value in values)


_PLAIN = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING")
_LITERALS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_PLAIN, lambda argument: argument),
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
    "MARK": lambda _: _MARK,
    "GLOBAL": lambda argument: _Named(argument.replace(" ", ".", 1)),
}  # fmt: skip
_STEPS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda machine, place: machine.memo.update({place: machine.stack[-1]})),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, place: machine.stack.append(machine.memo[place])),
    "TUPLE1": lambda machine, _: machine.join(1),
    "TUPLE2": lambda machine, _: machine.join(2),
    "TUPLE3": lambda machine, _: machine.join(3),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "APPEND": lambda machine, _: machine.extend([machine.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items(list(reversed([machine.pop(), machine.pop()]))),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.load_storage,
}

"""Memory by its address, and calls to libc by name: what all other kernels stand on.

`numba.types.ExternalFunction` finds libc's functions in the process, so there is nothing to compile
at installation.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from penstock.jit import helper


def _libc(name, result, *arguments):
    return types.ExternalFunction(name, result(*arguments))


pread = _libc("pread", types.int64, types.int32, types.voidptr, types.uint64, types.int64)
open_file = _libc("open", types.int32, types.voidptr, types.int32)
close_file = _libc("close", types.int32, types.int32)
lseek = _libc("lseek", types.int64, types.int32, types.int64, types.int32)
map_file = _libc(
    "mmap",
    types.int64,
    types.voidptr,
    types.uint64,
    types.int32,
    types.int32,
    types.int32,
    types.int64,
)
unmap = _libc("munmap", types.int32, types.voidptr, types.uint64)
_errno_location = _libc("__errno_location", types.int64)
memcpy = _libc("memcpy", types.int64, types.voidptr, types.voidptr, types.uint64)
memmove = _libc("memmove", types.int64, types.voidptr, types.voidptr, types.uint64)
memset = _libc("memset", types.int64, types.voidptr, types.int32, types.uint64)
fadvise = _libc("posix_fadvise", types.int32, types.int32, types.int64, types.int64, types.int32)
preadv2 = _libc(
    "preadv2", types.int64, types.int32, types.voidptr, types.int32, types.int64, types.int32
)
read = _libc("read", types.int64, types.int32, types.voidptr, types.uint64)
write = _libc("write", types.int64, types.int32, types.voidptr, types.uint64)


@intrinsic
def pointer(typing_context, address):
    """Turn an address into a pointer that libc functions take."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


@intrinsic
def load(typing_context, address, index, kind):
    """Element `index` of numbers of type `kind` at an address, aligned or not."""

    def generate(context, builder, signature, arguments):
        element = context.get_data_type(signature.return_type).as_pointer()
        base = builder.inttoptr(arguments[0], element)
        return builder.load(builder.gep(base, [arguments[1]]), align=1)

    return kind.instance_type(address, index, kind), generate


@intrinsic
def store(typing_context, address, index, value):
    """Set element `index` of numbers of the type of `value` at an address, aligned or not."""

    def generate(context, builder, signature, arguments):
        element = context.get_data_type(signature.args[2]).as_pointer()
        base = builder.inttoptr(arguments[0], element)
        builder.store(arguments[2], builder.gep(base, [arguments[1]]), align=1)
        return context.get_dummy_value()

    return types.void(address, index, value), generate


@intrinsic
def prefetch(typing_context, address):
    """Have the processor fetch the cache line at an address, which need not even exist."""

    def generate(context, builder, signature, arguments):
        pointed = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointed, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointed], kind)
        hints = [ir.Constant(number, hint) for hint in (0, 3, 1)]  # to read, keep it, data
        builder.call(function, [builder.inttoptr(arguments[0], pointed), *hints])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def trailing_zeros(typing_context, word):
    """How many bits below the lowest one are zero; of a word that is not zero."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@helper
def last_error():
    return np.int64(load(_errno_location(), 0, np.int32))


_MIX, _HALF = np.uint64(0x9E37_79B9_7F4A_7C15), np.uint64(32)


@helper
def _tail(text, size):
    """Fewer than eight bytes as one number."""
    if size >= 4:
        low = np.uint64(load(text, 0, np.uint32))
        return low | np.uint64(load(text + size - 4, 0, np.uint32)) << _HALF
    middle = np.uint64(load(text, size >> 1, np.uint8)) << np.uint64(8)
    last = np.uint64(load(text, size - 1, np.uint8)) << np.uint64(16)
    return np.uint64(load(text, 0, np.uint8)) | middle | last


@helper
def _mixed(number):
    number *= _MIX
    return number ^ number >> _HALF


@helper
def hash_bytes(text, size):
    """A hash of the bytes at an address; the same only for the same version of this."""
    number = np.uint64(size)
    if size < 8:
        return _mixed(_mixed(number ^ _tail(text, size)))
    for i in range(0, size - 7, 8):
        number = _mixed(number ^ load(text + i, 0, np.uint64))
    return _mixed(number ^ load(text + size - 8, 0, np.uint64))


@helper
def equal_bytes(one, other, size):
    """Whether the bytes at two addresses are the same."""
    if size < 8:
        return _tail(one, size) == _tail(other, size)
    for i in range(0, size - 7, 8):
        if load(one + i, 0, np.uint64) != load(other + i, 0, np.uint64):
            return False
    return load(one + size - 8, 0, np.uint64) == load(other + size - 8, 0, np.uint64)

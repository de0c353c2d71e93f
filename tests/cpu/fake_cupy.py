"""A stand-in for the part of CuPy that qgen.run touches: arrays in host memory, launches in the emulator.

It lets the device room's own logic (argument order and types, checks, streams, capture, lifetimes) be tested where
there is no GPU. It is stricter than CuPy where that helps: only arrays and NumPy scalars may be kernel arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from qgen import archs, build, emulate, run
from qgen.run import device as device_room
from qgen.run import launching

MULTIPROCESSORS, RESIDENT = 3, 2


class CUDARuntimeError(RuntimeError):
    pass


class CUDADriverError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class Array:
    """A view of host memory that pretends to be on device `number`."""

    def __init__(self, host: NDArray[Any], number: int) -> None:
        self.host = host
        self.device = SimpleNamespace(id=number)

    dtype = property(lambda self: self.host.dtype)
    shape = property(lambda self: self.host.shape)
    strides = property(lambda self: self.host.strides)
    size = property(lambda self: self.host.size)
    nbytes = property(lambda self: self.host.nbytes)
    ndim = property(lambda self: self.host.ndim)
    flags = property(lambda self: self.host.flags)
    data = property(lambda self: SimpleNamespace(ptr=self.host.ctypes.data))

    def reshape(self, *shape: Any) -> Array:
        return Array(self.host.reshape(*shape), self.device.id)

    def view(self, dtype: DTypeLike) -> Array:
        return Array(self.host.view(dtype), self.device.id)

    def __getitem__(self, index: Any) -> Array:
        return Array(self.host[index], self.device.id)

    def set(self, source: NDArray[Any], stream: Any = None) -> None:
        assert (source.shape, source.dtype) == (self.shape, self.dtype) and source.flags.c_contiguous
        self.host[...] = source


def whole(host: NDArray[Any]) -> NDArray[Any]:
    """All memory from the first element to the last, gaps between rows included, as one dimension."""
    if host.flags.c_contiguous:
        return host.reshape(-1)
    steps = sum((n - 1) * stride for n, stride in zip(host.shape, host.strides, strict=True))
    return np.lib.stride_tricks.as_strided(host, (steps // host.itemsize + 1,), (host.itemsize,))


class Tensor:
    """A foreign CUDA tensor (PyTorch's looks like this): exports by DLPack only."""

    def __init__(self, host: NDArray[Any], device: tuple[int, int] = (2, 0), requires_grad: bool = False) -> None:
        self.host, self._device, self.requires_grad = host, device, requires_grad

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **_: object) -> Tensor:
        if self.requires_grad:
            raise BufferError("tensors that require grad cannot be exported")
        return self


class InterfaceOnly:
    """A foreign CUDA array that has nothing but __cuda_array_interface__ (Numba's looks like this)."""

    def __init__(self, host: NDArray[Any]) -> None:
        self.host = host
        self.__cuda_array_interface__ = {"shape": host.shape, "typestr": host.dtype.str, "version": 3}


class FakeCupy:
    """The module object. `code_of` maps the bytes of a "cubin" to an emulated program; `launches` records entries."""

    ndarray = Array

    def __init__(self, *, devices: int = 1, driver: int = 13000, capability: str = "90") -> None:
        self.devices, self.driver_version, self.capability = devices, driver, capability
        self.code_of: dict[bytes, emulate.Program] = {}
        self.launches: list[tuple[str, int]] = []
        self.allocations: list[int] = []
        self.capturing = False
        self.recording: list[tuple[str, Callable[[], object]]] | None = None  # launches go here, not to the emulator
        self.synchronised = 0
        self.current = 0
        self.shared_limits: list[int] = []
        fake = self

        class Device:
            def __init__(self, number: int | None = None) -> None:
                self.id = fake.current if number is None else number
                self.compute_capability = capability
                self.attributes = {"MultiProcessorCount": MULTIPROCESSORS}

            def __enter__(self) -> None:
                self.before, fake.current = fake.current, self.id

            def __exit__(self, *_: object) -> None:
                fake.current = self.before

        class Module:
            def load(self, code: bytes) -> None:
                if code == b"too new":
                    raise CUDADriverError("CUDA_ERROR_INVALID_IMAGE")
                self.program = fake.code_of[code]

            def get_function(self, name: str) -> Function:
                return Function(self.program, name)

        class Function:
            def __init__(self, program: emulate.Program, name: str) -> None:
                self.program, self.name, self.ptr = program, name, id(self)

            def __call__(
                self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared: int
            ) -> None:
                fake.launches.append((self.name, fake.current))
                converted: list[Any] = []
                for i, (arg, parameter) in enumerate(zip(args, self.program.parameters[self.name], strict=True)):
                    if isinstance(arg, Array):
                        assert arg.device.id == fake.current
                        host = whole(arg.host)
                        converted.append(emulate.Buffer(f"argument{i}", host, writable=host.flags.writeable))
                    else:
                        # CuPy passes a NumPy scalar with its own size; the kernel must expect just that.
                        assert isinstance(arg, np.integer) and arg.dtype.itemsize == parameter.bytes
                        converted.append(int(arg))
                x, y, z = (*grid, 1, 1)[:3]
                shape = (x, y, z)
                assert all(1 <= n <= limit for n, limit in zip(shape, (2**31 - 1, 65535, 65535), strict=True))
                program, name, threads = self.program, self.name, block[0]
                issue = partial(program.launch, name, grid=shape, block=threads, args=converted, shared=shared)
                if fake.recording is None:
                    issue()
                else:
                    fake.recording.append((name, issue))

        def occupancy(_: int, threads: int, shared: int) -> int:
            assert threads and shared
            return RESIDENT

        def set_attribute(_: int, attribute: str, value: int) -> None:
            assert attribute == "max shared"
            limit = archs.arch_of((int(capability[:-1]), int(capability[-1]))).shared_per_block_optin
            if value > limit:
                raise CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: {value} of {limit} bytes")
            self.shared_limits.append(value)

        stream = SimpleNamespace(is_capturing=lambda: self.capturing, synchronize=self._synchronize)
        self.cuda = SimpleNamespace(
            Device=Device,
            function=SimpleNamespace(Module=Module),
            get_current_stream=lambda: stream,
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                driverGetVersion=lambda: self.driver_version,
                runtimeGetVersion=lambda: 13020,
                getDeviceCount=self._count,
                getDeviceProperties=lambda _: {"name": b"Fake GPU", "major": 9, "minor": 0},
            ),
            driver=SimpleNamespace(
                CUDADriverError=CUDADriverError,
                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="max shared",
                funcSetAttribute=set_attribute,
                occupancyMaxActiveBlocksPerMultiprocessor=occupancy,
            ),
        )

    def _count(self) -> int:
        if self.devices < 0:
            raise CUDARuntimeError("cudaErrorInsufficientDriver")
        return self.devices

    def _synchronize(self) -> None:
        assert not self.capturing, "a synchronisation breaks a capture"
        self.synchronised += 1

    def empty(self, shape: Any, dtype: DTypeLike) -> Array:
        array = np.empty(shape, dtype=dtype)
        self.allocations.append(array.nbytes)
        if array.nbytes > 1 << 30:
            raise OutOfMemoryError("Out of memory allocating")
        return Array(array, self.current)

    def asarray(self, source: Any) -> Array:
        if isinstance(source, InterfaceOnly):
            return Array(source.host, self.current)
        return Array(np.array(source), self.current)

    def asnumpy(self, array: Array) -> NDArray[Any]:
        copied: NDArray[Any] = array.host.copy()
        return copied

    def from_dlpack(self, tensor: Tensor) -> Array:
        exported = tensor.__dlpack__()
        return Array(exported.host, exported.__dlpack_device__()[1])

    @contextmanager
    def capture(self) -> Iterator[None]:
        self.capturing = True
        yield
        self.capturing = False


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeCupy) -> FakeCupy:
    """Put the stand-in where qgen.run looks for CuPy, and the emulator where it looks for a compiler."""

    def compile(text: str, name: str, arch: str, toolkit: int | None = None) -> Any:
        assert arch == f"sm_{fake.capability}" and toolkit == (12 if fake.driver_version < 13000 else None)
        program = fake.code_of[name.encode()] = emulate.compile(text, name, arch=10 * int(fake.capability))
        made = tuple(SimpleNamespace(entry=entry) for entry in program.parameters)
        return SimpleNamespace(code=name.encode(), path="kernel.cubin", compiler="nvrtc 13.0", entries=made)

    monkeypatch.setattr(device_room, "cupy_module", lambda: fake)
    monkeypatch.setattr(run, "cupy_module", lambda: fake)
    monkeypatch.setattr(launching, "why_not_dependent", lambda arch: "the emulator runs one kernel at a time")
    monkeypatch.setattr(build, "compile", compile)
    device_room.load_module.cache_clear()
    device_room.arch_of_device.cache_clear()
    return fake

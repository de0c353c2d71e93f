"""The device as qgen sees it: CuPy behind one door, its errors as QgenError, modules loaded once a device."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgen import archs, build, operands
from qgen.errors import QgenError
from qgen.operands import refusal


@cache
def cupy_module() -> Any:
    """CuPy, untyped: it has no stubs, and a machine without a GPU need not have it."""
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise QgenError(
            stage="run",
            subject="CuPy",
            found=f"cannot be imported: {error}",
            allowed="CuPy for the CUDA version of the driver",
            next="pip install 'qgen[cuda13]' (or 'qgen[cuda12]' for a driver of CUDA 12)",
        ) from error


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _runtime_version() -> int:
    return int(cupy_module().cuda.runtime.runtimeGetVersion())


def why_no_device() -> QgenError | None:
    """The error that says why no kernel can run here, or None when one can."""
    try:
        current_device()
    except QgenError as error:
        return error
    return None


def current_device() -> int:
    """The number of CuPy's current device. Raises QgenError when there is no CuPy, no driver or no device."""
    cupy = cupy_module()
    try:
        version, count = int(cupy.cuda.runtime.driverGetVersion()), 0
        if version:
            count = int(cupy.cuda.runtime.getDeviceCount())
            if count:
                return int(cupy.cuda.Device().id)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise QgenError(
            stage="run",
            subject="CUDA device",
            found=f"{error} (driver for CUDA {_version(version)}, CuPy built for CUDA {_version(_runtime_version())})",
            allowed="a CUDA device, and a driver no older than the CUDA version of CuPy",
            next="check `nvidia-smi`; update the driver, or install the CuPy that fits it (cupy-cuda12x, cupy-cuda13x)",
        ) from error
    raise QgenError(
        stage="run",
        subject="CUDA device",
        found="no CUDA driver" if not version else "no device that this process may see",
        allowed="a machine with an NVIDIA GPU and its driver",
        next="check `nvidia-smi` and CUDA_VISIBLE_DEVICES; without a GPU, `qgen verify --device cpu` uses the emulator",
    )


def check_device_number(device: int) -> None:
    """Raises QgenError when there is no CUDA device of this number."""
    current_device()
    count = int(cupy_module().cuda.runtime.getDeviceCount())
    if not 0 <= device < count:
        raise refusal("device", f"CUDA device {device}", f"0 to {count - 1}", "pick a device that `nvidia-smi` lists")


def device_label() -> str:
    """The current device for a report: number, name and compute capability."""
    device = current_device()
    properties = cupy_module().cuda.runtime.getDeviceProperties(device)
    return (
        f"cuda:{device} {properties['name'].decode()}, compute capability {properties['major']}.{properties['minor']}"
    )


def from_host(array: NDArray[np.generic]) -> Any:
    """A copy of a NumPy array on the current device."""
    current_device()
    with device_errors("host array"):
        return cupy_module().asarray(array)


def to_host(array: Any) -> NDArray[Any]:
    """A copy of a CuPy array in host memory; waits for the current stream."""
    with device_errors("device array"):
        copied: NDArray[Any] = cupy_module().asnumpy(array)
        return copied


def as_cupy(name: str, operand: Any) -> Any:
    """The operand as a CuPy array over the same memory. Raises QgenError when it is no CUDA array."""
    cupy = cupy_module()
    if isinstance(operand, cupy.ndarray):
        return operand
    operands.check_on_device(name, operand)
    current_device()
    try:
        # DLPack first: the exporter then orders its own stream before ours, without stopping the host.
        if hasattr(operand, "__dlpack__"):
            return cupy.from_dlpack(operand)
        return cupy.asarray(operand)
    except Exception as error:  # whatever the foreign exporter raises
        raise refusal(
            name,
            f"a {type(operand).__module__}.{type(operand).__qualname__} that cannot be shared: {error}",
            "an array that exports its memory",
            "detach it from autograd first (x.detach())" if getattr(operand, "requires_grad", False) else "copy it",
        ) from error


@contextlib.contextmanager
def device_errors(subject: str) -> Iterator[None]:
    """Turns what CUDA or CuPy's allocator raises into a QgenError about `subject`."""
    cupy = cupy_module()
    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise QgenError(
            stage="run",
            subject=subject,
            found=f"{error}",
            allowed="enough free memory on the device",
            next="free arrays (cupy.get_default_memory_pool().free_all_blocks()), or use a device with more memory",
        ) from error
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        raise QgenError(
            stage="run",
            subject=subject,
            found=f"CUDA refuses the call: {error}",
            allowed="a working device and a stream that takes launches",
            next="an earlier fault on this device ends the process's CUDA context: run the program with "
            "CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer, to find the kernel at fault",
        ) from error


@cache
def arch_of_device(device: int) -> archs.Arch:
    """The architecture kernels for a device are compiled for. Raises QgenError for a device qgen does not serve."""
    capability = str(cupy_module().cuda.Device(device).compute_capability)
    return archs.arch_of((int(capability[:-1]), int(capability[-1])))


def compiled(name: str, text: str, device: int) -> build.Cubin:
    """One kernel file compiled for a device, or taken from the cache. Raises QgenError when it does not compile."""
    # A driver loads machine code of its own CUDA major version or older; newer compilers are no use to it.
    driver = int(cupy_module().cuda.runtime.driverGetVersion())
    return build.compile(text, name, arch_of_device(device).name, toolkit=12 if driver < 13000 else None)


@cache
def load_module(name: str, text: str, device: int) -> Any:
    """One kernel file, compiled (or taken from the cache) and loaded on a device: a CuPy Module.

    Raises QgenError when it does not compile, or the driver is too old for what the compiler makes.
    """
    cupy = cupy_module()
    driver = int(cupy.cuda.runtime.driverGetVersion())
    cubin = compiled(name, text, device)
    module = cupy.cuda.function.Module()
    try:
        module.load(cubin.code)
    except cupy.cuda.driver.CUDADriverError as error:
        raise QgenError(
            stage="run",
            subject=str(cubin.path),
            found=f"the driver refuses it: {error} (driver for CUDA {_version(driver)}, {cubin.compiler})",
            allowed="machine code of the driver's own CUDA version or an older one",
            next="update the driver",
        ) from error
    return module


def allow_shared(function: Any, nbytes: int) -> None:
    """Past 48 KB a kernel must be allowed its dynamic shared memory."""
    driver = cupy_module().cuda.driver
    driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes)


def occupancy(function: Any, *, threads: int, shared: int, device: int) -> tuple[int, int]:
    """Multiprocessors of the device, and CTAs of this function that fit on one of them."""
    cupy = cupy_module()
    resident = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, shared)
    return int(cupy.cuda.Device(device).attributes["MultiProcessorCount"]), int(resident)

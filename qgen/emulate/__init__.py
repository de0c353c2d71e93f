"""Runs the text of a generated CUDA kernel on the CPU: compiled by g++ against host/, its threads as fibres."""

from qgen.emulate.compiler import compile
from qgen.emulate.program import Argument, Buffer, Parameter, Program, Report

__all__ = ["Argument", "Buffer", "Parameter", "Program", "Report", "compile"]

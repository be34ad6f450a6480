"""Hardware as data: a ParallelProcessingUnit read from a TOML file, one per device.

Takes spec files, text or the machine at hand; gives frozen, validated dataclasses. Guarantees:
a malformed spec raises SpecError with file, line and next step; device numbers live only here.
"""

from .adapt import cpu
from .expression import AffineIndex, Apply, Number, Read
from .frozen_table import FrozenTable
from .model import ParallelGroup, ParallelMemory, ParallelOperation, ParallelProcessingUnit
from .query import from_device
from .semantics import OperationSemantics
from .toml_format import available, dumps, load, loads

__all__ = [
    "AffineIndex",
    "Apply",
    "FrozenTable",
    "Number",
    "OperationSemantics",
    "ParallelGroup",
    "ParallelMemory",
    "ParallelOperation",
    "ParallelProcessingUnit",
    "Read",
    "available",
    "cpu",
    "dumps",
    "from_device",
    "load",
    "loads",
]

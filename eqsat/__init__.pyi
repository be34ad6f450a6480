# What type checkers and editors see of the names that __init__.py loads on first use.
from eqsat.cache.store import Cache as Cache
from eqsat.driver import compile as compile
from eqsat.errors import EqsatError as EqsatError
from eqsat.executor import ExecutionConfig as ExecutionConfig
from eqsat.executor import KernelExecutor as KernelExecutor
from eqsat.graph import *
from eqsat.jitted import jit as jit
from eqsat.program import Program as Program
from eqsat.saturate.saturation import Limits as Limits
from eqsat.settings import Settings as Settings

__version__: str

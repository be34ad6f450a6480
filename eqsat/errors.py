"""The named errors that a user can meet; every package may import them, as it may the settings.

Each message says what was got, the limit and where it comes from, and the next step.
"""


class EqsatError(Exception):
    """Base of every error that eqsat raises on purpose."""


class ShapeError(EqsatError, ValueError):
    """Shapes, axes or extents that do not fit an operation."""


class DTypeError(EqsatError, TypeError):
    """A dtype that an operation does not take."""


class IdentifierError(EqsatError, ValueError):
    """A name that is no plain identifier, or is used twice."""


class SpecError(EqsatError, ValueError):
    """A hardware spec that is malformed, or too small for any kernel."""


class ArgumentError(EqsatError, TypeError):
    """A program called with arrays that do not match its inputs."""


class UnsupportedError(EqsatError, NotImplementedError):
    """Something the target cannot express; never silently replaced by another path."""


class RuleError(EqsatError):
    """A rule that is malformed or was caught being unsound."""


class SearchError(EqsatError, RuntimeError):
    """A search that failed where there is nothing to fall back to."""


class TraceError(EqsatError):
    """A trace that does not replay from the source to the extracted program."""


class CompileError(EqsatError, RuntimeError):
    """Generated source that the target's compiler refused."""


class DeviceError(EqsatError, RuntimeError):
    """A device that ran out of memory, refused a launch, or stopped in a kernel."""


class CacheError(EqsatError, OSError):
    """A cache folder that cannot be used safely."""


class SettingsError(EqsatError, ValueError):
    """An environment variable with a value that means nothing."""


class CacheWarning(UserWarning):
    """A cache entry that was discarded, or a cache that is kept in memory only."""

"""What one graded run may take. Knows seconds, bytes and processes. All chapters."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """run_s, cell_s, calls_s: seconds for a run of one notebook, one of its cells, all calls of one check.

    memory_mb: MiB in use by all processes together, with what was printed and is held by nbval. processes: beside the
    kernel, at one time.
    """

    run_s: float = 120
    cell_s: float = 30
    calls_s: float = 10
    memory_mb: int = 2048
    processes: int = 64

    @classmethod
    def within(cls, run_s: float, memory_mb: int | None = None) -> "Limits":
        return cls(run_s, min(cls.cell_s, run_s / 2), min(cls.calls_s, run_s / 4), memory_mb=memory_mb or cls.memory_mb)

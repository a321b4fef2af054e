"""What became of a notebook, as data. Knows points and statuses; grades and prints nothing. All chapters."""

from dataclasses import asdict, dataclass, field
from unicodedata import category

REFERENCE_USED, TAMPERED, SKIPPED = "reference used", "tampered", "skipped"
UNSAFE = ("Cc", "Cf", "Cs")  # control and formatting characters, halves of a pair


@dataclass(frozen=True)
class ExerciseReport:
    """One exercise of one notebook. `points` is all of `out_of`, or 0."""

    exercise_id: str
    title: str
    status: str  # pass | wrong | error | timeout | missing | tampered | reference used | skipped
    points: int
    out_of: int
    message: str


@dataclass
class NotebookReport:
    """One notebook. `error` says why nothing could be graded; then there are no exercises.

    checks_run of checks_expected: check cells that came to their end, of those for which there was an answer to run.
    jail: what kept the run from other files, see `protection`.
    """

    path: str
    student: str
    seed: int
    chapter: str = ""
    exercises: list[ExerciseReport] = field(default_factory=list)
    checks_expected: int = 0
    checks_run: int = 0
    jail: str = ""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None

    @property
    def points(self) -> int:
        return sum(e.points for e in self.exercises)

    @property
    def out_of(self) -> int:
        return sum(e.out_of for e in self.exercises)

    @property
    def percent(self) -> int:
        return round(100 * self.points / self.out_of) if self.out_of else 0

    @property
    def mark(self) -> str:
        return "not graded" if self.error else f"{self.percent} %"

    def to_json(self) -> dict:
        """The same for the same notebook and seed: the seconds are left out."""
        fields = {key: value for key, value in asdict(self).items() if key != "seconds"}
        return {**fields, "points": self.points, "out_of": self.out_of, "percent": self.percent}


def printable(text: str) -> str:
    """A learner's text, safe to print and to store: no escape sequences, no half characters."""
    return "".join(f"\\x{ord(c):02x}" if category(c) in UNSAFE and c not in "\n\t" else c for c in text)

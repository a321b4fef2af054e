"""Wrong answers to c03-b1, one mistake each, and what the learner must be told. Knows no right answer. Chapter 3."""

from tools.mutant_table import Mutant

MUTANTS = {
    "b1-counter-mended": Mutant(
        "c03-b1",
        "mends the counter and not the next boost",
        "the next boost still lies in the past",
        """
# EXERCISE c03-b1
def boost(now, next_boost, every, jobs):
    if now >= next_boost:
        for job in jobs:
            job["level"] = 0
            job["used"] = 0
        return jobs, next_boost + every
    return jobs, next_boost
""",
    ),
    "b1-next-mended": Mutant(
        "c03-b1",
        "mends the next boost and not the counter",
        "the boost still resets the bill",
        """
# EXERCISE c03-b1
def boost(now, next_boost, every, jobs):
    if now >= next_boost:
        for job in jobs:
            job["level"] = 0
            job["served"] = 0
        return jobs, now + every
    return jobs, next_boost
""",
    ),
    "b1-resets-all": Mutant(
        "c03-b1",
        "resets used as well as served",
        "but the bill as well",
        """
# EXERCISE c03-b1
def boost(now, next_boost, every, jobs):
    if now >= next_boost:
        for job in jobs:
            job["level"] = 0
            job["used"] = 0
            job["served"] = 0
        return jobs, now + every
    return jobs, next_boost
""",
    ),
    "b1-only-the-bill-mended": Mutant(
        "c03-b1",
        "leaves both counters alone",
        "but `used` is, too",
        """
# EXERCISE c03-b1
def boost(now, next_boost, every, jobs):
    if now >= next_boost:
        for job in jobs:
            job["level"] = 0
        return jobs, now + every
    return jobs, next_boost
""",
    ),
    "b1-old-grid": Mutant(
        "c03-b1",
        "skips the night and stays on the old grid",
        "stays on the old grid",
        """
# EXERCISE c03-b1
def boost(now, next_boost, every, jobs):
    if now >= next_boost:
        for job in jobs:
            job["level"] = 0
            job["used"] = 0
        return jobs, next_boost + every * ((now - next_boost) // every + 1)
    return jobs, next_boost
""",
    ),
    "b1-strictly-after": Mutant(
        "c03-b1",
        "boosts only after the due time",
        "not only after it",
        """
# EXERCISE c03-b1
def boost(now, next_boost, every, jobs):
    if now > next_boost:
        for job in jobs:
            job["level"] = 0
            job["used"] = 0
        return jobs, now + every
    return jobs, next_boost
""",
    ),
    "b1-jobs-forgotten": Mutant(
        "c03-b1",
        "returns the time alone",
        "expected two things, jobs and next_boost",
        """
# EXERCISE c03-b1
def boost(now, next_boost, every, jobs):
    if now < next_boost:
        return next_boost
    for job in jobs:
        job["level"] = job["used"] = 0
    return now + every
""",
    ),
}

"""A rule of the soak, and what is raised where it does not hold. Knows nothing else."""


class Broken(AssertionError):
    """A rule of the soak does not hold."""


def need(holds: object, *what: object) -> None:
    if not holds:
        raise Broken(" ".join(str(part) for part in what))

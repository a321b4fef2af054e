"""Levenberg-Marquardt in the standard library: least squares for a handful of parameters. Knows no roofline. Chapter 2.

    step = (JᵀJ + damping · diag(JᵀJ))⁻¹ Jᵀr

Small damping is Newton's step, large damping a short one downhill: shrink it after a success, grow it after a failure.
"""

from collections.abc import Callable, Sequence


def least_squares(
    residuals: Callable[[list[float]], list[float]],
    start: Sequence[float],
    lower: Sequence[float],
    upper: Sequence[float],
    *,
    max_steps: int = 200,
) -> list[float]:
    """The x near `start`, from `lower` to `upper`, with the smallest sum of squares of `residuals(x)`.

    A parameter that no residual depends on stays where it is.
    """

    def within(x: Sequence[float]) -> list[float]:
        return [min(max(value, low), high) for value, low, high in zip(x, lower, upper, strict=True)]

    x = within(start)
    r, damping = residuals(x), 1e-3
    error = sum(v * v for v in r)
    for _ in range(max_steps):
        jacobian = _jacobian(residuals, x, r)
        normal = [[sum(a * b for a, b in zip(p, q, strict=True)) for q in jacobian] for p in jacobian]
        downhill = [-sum(a * b for a, b in zip(p, r, strict=True)) for p in jacobian]
        # At its bound and pushed beyond it, a parameter is left out of the step, or it would hold the others back.
        at_bound = [(upper if slope > 0 else lower)[i] == x[i] for i, slope in enumerate(downhill)]
        free = [i for i in range(len(x)) if normal[i][i] > 0 and not at_bound[i]]
        if not free:
            return x
        while damping < 1e9:
            matrix = [[normal[i][j] * (1 + damping if i == j else 1) for j in free] for i in free]
            step = dict(zip(free, _solve(matrix, [downhill[i] for i in free]), strict=True))
            tried = within([value + step.get(i, 0.0) for i, value in enumerate(x)])
            tried_r = residuals(tried)
            tried_error = sum(v * v for v in tried_r)
            if tried_error < error:
                break
            damping *= 10
        else:
            return x
        gain, x, r, error = error - tried_error, tried, tried_r, tried_error
        damping = max(damping / 10, 1e-9)
        if gain <= 1e-12 * error:
            return x
    return x


def _jacobian(residuals, x: list[float], r: list[float], h: float = 1e-6) -> list[list[float]]:
    """One row for each parameter: the change of every residual, by forward difference."""
    rows = []
    for i in range(len(x)):
        moved = residuals([*x[:i], x[i] - h, *x[i + 1 :]])
        rows.append([(old - new) / h for old, new in zip(r, moved, strict=True)])
    return rows


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss elimination with row exchange; the matrix is small and made regular by the damping."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    n = len(rows)
    for col in range(n):
        best = max(range(col, n), key=lambda i: abs(rows[i][col]))
        rows[col], rows[best] = rows[best], rows[col]
        for i in range(col + 1, n):
            factor = rows[i][col] / rows[col][col]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[col], strict=True)]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (rows[i][n] - sum(rows[i][j] * x[j] for j in range(i + 1, n))) / rows[i][i]
    return x

"""Which choices are beaten by none on both axes. Knows numbers only. Chapter 12."""

from collections.abc import Mapping

from mini_vllm.errors import ConfigError

LOW, HIGH = "low", "high"


def pareto_front(points: Mapping[str, tuple[float, float]], *, x_best: str = LOW, y_best: str = HIGH) -> list[str]:
    """Names of the points that no other beats: none is as good on both axes and better on one. In order of x.

    x_best, y_best: "low" or "high", whichever is better on that axis. Equal points are all on the front.
    """
    for axis, best in (("x", x_best), ("y", y_best)):
        if best not in (LOW, HIGH):
            raise ConfigError(f"{axis}_best={best!r} is unknown: choose {LOW!r} or {HIGH!r}")
    costs = {name: (x if x_best == LOW else -x, y if y_best == LOW else -y) for name, (x, y) in points.items()}
    if bad := [name for name, cost in costs.items() if cost[0] != cost[0] or cost[1] != cost[1]]:
        raise ConfigError(f"point {bad[0]!r} is {points[bad[0]]}: it has no place without both numbers")
    front: list[str] = []
    bound, at = float("inf"), float("-inf")
    for name in sorted(costs, key=costs.__getitem__):
        x, y = costs[name]
        if y < bound or (y == bound and x == at):
            front.append(name)
            bound, at = y, x
    return sorted(front, key=lambda name: points[name])

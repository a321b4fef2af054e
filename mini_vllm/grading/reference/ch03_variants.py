"""Chapter 3's answers as plain loops, each with switches for a mistake. Knows no message. Chapter 3."""

from collections.abc import Callable


def stride_with(
    jobs: list[tuple],
    num_slices: int,
    *,
    start: Callable[[list[float]], float] = lambda passes: min(passes, default=0.0),
    grows: Callable[[int], float] = lambda tickets: 1 / tickets,
    own_stride_first: bool = False,
    own_stride_later: bool = False,
    last_of_equals: bool = False,
    by_name: bool = False,
    by_tickets: bool = False,
    largest: bool = False,
    arrivals: bool = True,
) -> list[str]:
    """Who has each slice; by default without a mistake."""
    passes: dict[str, float] = {}
    tickets = {name: number for name, number, _ in jobs}
    run = []
    for now in range(num_slices):
        at = start(list(passes.values()))
        for name, number, arrival in jobs:
            if name not in passes and (arrival <= now or not arrivals):
                ahead = own_stride_first or (own_stride_later and now > 0)
                passes[name] = at + (grows(number) if ahead else 0)
        names = (sorted(passes) if by_name else list(passes))[:: -1 if last_of_equals else 1]
        names = sorted(names, key=tickets.__getitem__, reverse=True) if by_tickets else names
        run.append((max if largest else min)(names, key=passes.__getitem__))
        passes[run[-1]] += grows(tickets[run[-1]])
    return run


def door_with(
    requests: list[tuple],
    num_seats: int,
    *,
    first_come: bool = False,
    counts: str = "tokens",
    lift: Callable[[int, list[int]], int] = lambda own, present: max(own, min(present, default=0)),
    always_lift: bool = False,
    only_new: bool = False,
    all_at_once: bool = False,
    newest_of_equals: bool = False,
    evicts: bool = False,
    finished_forgotten: bool = False,
) -> list[list[str]]:
    """Who advances in each step; by default without a mistake. counts: "tokens", "requests" or "lengths"."""
    user_of = {name: user for name, user, _, _ in requests}
    to_come, waiting = list(requests), list[tuple[str, int]]()
    running, schedule, had = dict[str, int](), list[list[str]](), dict[str, int]()

    def present() -> list[str]:
        return [user_of[name] for name in (*running, *(name for name, _ in waiting))]

    while to_come or waiting or running:
        there_before = present()
        while to_come and to_come[0][2] <= len(schedule):
            name, user, _, output_len = to_come.pop(0)
            there = there_before if all_at_once else present()
            if always_lift or user not in (had if only_new else there):
                had[user] = lift(had.get(user, 0), [had[other] for other in there if other != user])
            waiting.append((name, output_len))
        if evicts:
            waiting, running = [*running.items(), *waiting], {}
        while waiting and len(running) < num_seats:
            line = range(len(waiting))[:: -1 if newest_of_equals else 1]
            place = line[0] if first_come else min(line, key=lambda at: had[user_of[waiting[at][0]]])
            name, left = waiting.pop(place)
            running[name] = left
            had[user_of[name]] += {"tokens": 0, "requests": 1, "lengths": left}[counts]
        schedule.append(list(running))
        for name in running:
            had[user_of[name]] += counts == "tokens"
        done = [name for name, left in running.items() if left == 1]
        running = {name: left - 1 for name, left in running.items() if left > 1}
        for name in done if finished_forgotten else []:
            had[user_of[name]] -= next(length for other, _, _, length in requests if other == name)
    return schedule


def boost_with(
    now: int,
    next_boost: int,
    every: int,
    jobs: list[dict],
    *,
    zeroed: tuple[str, ...] = ("level", "used"),
    following: Callable[[int, int, int], int] = lambda now, due, every: now + every,
    is_due: Callable[[int, int], bool] = lambda now, due: now >= due,
) -> list:
    """[jobs, time of the next boost]; by default without a mistake."""
    if not is_due(now, next_boost):
        return [jobs, next_boost]
    return [[job | dict.fromkeys(zeroed, 0) for job in jobs], following(now, next_boost, every)]

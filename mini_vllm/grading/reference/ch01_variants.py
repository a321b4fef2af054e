"""Continuous batching of chapter 1 as a plain loop, with switches for a mistake. Knows no message. Chapter 1."""


def schedule_with(
    requests: list[tuple],
    num_slots: int,
    *,
    hole_lasts: int = 0,
    door: bool = False,
    by_id: bool = False,
    last_in_first_out: bool = False,
    one_a_step: bool = False,
) -> list[list[str]]:
    """Continuous batching with one mistake built in. hole_lasts: steps for which a left slot stays empty."""
    to_come, waiting = list(requests), list[tuple]()
    running, schedule = dict[str, int](), list[list[str]]()
    holes: list[int] = []  # for each left slot, the steps for which it stays empty
    while to_come or waiting or running:
        while to_come and to_come[0][1] <= len(schedule):
            waiting.append(to_come.pop(0))
        may_join = num_slots - len(running) - len(holes) if not (door and running) else 0
        for _ in range(min(may_join, len(waiting), 1 if one_a_step else len(waiting))):
            name, _, output_len = waiting.pop(-1 if last_in_first_out else 0)
            running[name] = output_len
        schedule.append(sorted(running) if by_id else list(running))
        holes = [left - 1 for left in holes if left > 1]
        running = {name: left - 1 for name, left in running.items()}
        done = [name for name, left in running.items() if left == 0]
        holes += [hole_lasts] * (len(done) if hole_lasts else 0)
        for name in done:
            del running[name]
    return schedule


def stops_at_a_gap(requests: list[tuple], num_slots: int) -> list[list[str]]:
    """Ends when nobody is there, although somebody is still to come."""
    schedule = schedule_with(requests, num_slots)
    first_arrival = requests[0][1]
    gaps = [step for step, names in enumerate(schedule) if not names and step >= first_arrival]
    return schedule[: gaps[0]] if gaps else schedule


def gaps_left_out(requests: list[tuple], num_slots: int) -> list[list[str]]:
    return [names for names in schedule_with(requests, num_slots) if names]


def all_there_at_once(requests: list[tuple], num_slots: int) -> list[list[str]]:
    return schedule_with([(name, 0, output_len) for name, _, output_len in requests], num_slots)


def stops_in_the_first_idle_step(requests: list[tuple], num_slots: int) -> list[list[str]]:
    """Looks at nobody but those who run, even before the first has come."""
    schedule = schedule_with(requests, num_slots)
    return schedule[: schedule.index([])] if [] in schedule else schedule


def comes_a_step_late(requests: list[tuple], num_slots: int) -> list[list[str]]:
    return schedule_with([(name, arrival + 1, output_len) for name, arrival, output_len in requests], num_slots)


def advances_once_more(requests: list[tuple], num_slots: int) -> list[list[str]]:
    return schedule_with([(name, arrival, output_len + 1) for name, arrival, output_len in requests], num_slots)

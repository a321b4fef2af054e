"""Questions about the five requests, answered from their own text by the chapter's five rules. Knows no scheduler."""

import re

from mini_vllm.grading.quizzes import asking


def planned(given: str) -> tuple[dict[str, int], dict[str, int], int]:
    """(plan, computed after it, free blocks after it) from the printed situation."""
    budget, size = (int(re.search(pattern, given)[1]) for pattern in (r"(\d+) tokens a step", r"blocks of (\d+)"))
    free, whole = int(re.search(r"free +blocks (\d+)", given)[1]), "all its known tokens" in given
    running = [(n, int(k), int(c), int(b)) for n, k, c, b in
               re.findall(r"runs +(R\d) +known +(\d+) +computed +(\d+) +blocks (\d+)", given)]  # fmt: skip
    waiting = [(n, int(k)) for n, k in re.findall(r"waits +(R\d) +known +(\d+)", given)]
    plan, end, evicted = {}, {}, set()
    last = len(running) - 1
    for place, (name, known, computed, blocks) in enumerate(running):
        piece = min(known - computed, budget - sum(plan.values()))
        while name not in evicted and piece and -(-(computed + piece) // size) - blocks > free:
            free += running[last][3]
            evicted.add(running[last][0])
            last -= 1
        if piece and place <= last:
            free -= -(-(computed + piece) // size) - blocks
            plan[name], end[name] = piece, computed + piece
    for name, known in waiting:
        piece = min(known, budget - sum(plan.values()))
        if evicted or piece <= 0 or -(-(known if whole else piece) // size) > free:
            break
        free -= -(-piece // size)
        plan[name] = end[name] = piece
    return plan, end, free


def test_every_answer_follows_from_the_printed_text():
    kinds = set()
    for seed in range(300):
        question = asking.draw("five requests", seed)
        right, given = question.options[question.right].text, question.situation
        plan, end, free = planned(given)
        as_text = "  ".join(f"{name}:{tokens}" for name, tokens in plan.items())
        if "What is the plan" in question.asks:
            assert right == as_text, (seed, given)
        elif "How many blocks" in question.asks:
            assert right == str(free), (seed, given)
        else:
            assert as_text in question.asks
            name = re.search(r"How far is (R\d)", question.asks)[1]
            known = int(re.search(rf"{name} +known +(\d+)", given)[1])
            assert right == f"{known + (end[name] == known)} known, {end[name]} computed", (seed, given)
        kinds.add((question.asks.split()[1], "gives way" in question.options[question.right].why))
    assert len(kinds) == 4

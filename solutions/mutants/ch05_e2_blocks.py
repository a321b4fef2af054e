"""Wrong answers to c05-e2: whose slots, whose blocks, how rounded. Knows no right answer. Chapter 5."""

from tools.mutant_table import Mutant

CELL = """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan, used = [(name, 1) for name, _, _ in running], len(running)
    reserved = sum(-(-(prompt + most - 1) // size) for _, prompt, most in running)
    for name, prompt, most in waiting:
        need = -(-(prompt + most - 1) // size)
        if len(plan) >= limits["max_num_seqs"]:
            return plan, "max_num_seqs"
        slots = len(plan) + 1
        room = limits["input_budget"] - used - limits["draft_slots"] * slots
        if prompt > min(room, limits["token_budget"] - used):
            return plan, "token_budget"
        if reserved + need > limits["num_blocks"]:
            return plan, "kv_reservation"
        plan.append((name, prompt))
        used, reserved = used + prompt, reserved + need
    return plan, None
"""


def cell_with(*changes: tuple[str, str]) -> str:
    """The cell with texts replaced."""
    source = CELL
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


MUTANTS = {
    "e2-slots-of-newcomers": Mutant(
        "c05-e2",
        "counts draft slots for newcomers only",
        "counted for newcomers only",
        cell_with(("slots = len(plan) + 1", "slots = len(plan) + 1 - len(running)")),
    ),
    "e2-slots-of-those-who-run": Mutant(
        "c05-e2",
        "counts draft slots for those who run only",
        "counted only for those who run",
        cell_with(("slots = len(plan) + 1", "slots = len(running)")),
    ),
    "e2-newcomers-prompts": Mutant(
        "c05-e2",
        "reserves the prompts of newcomers only",
        "Of newcomers only the prompt is reserved",
        cell_with(("need = -(-(prompt + most - 1) // size)", "need = -(-prompt // size)")),
    ),
    "e2-two-less": Mutant(
        "c05-e2",
        "takes two tokens off a worst case",
        "Reserved is a token too little",
        cell_with(("prompt + most - 1", "prompt + most - 2")),
    ),
    "e2-never-full": Mutant(
        "c05-e2",
        "never lets the pool become full",
        "the pool may be full",
        cell_with(("reserved + need >", "reserved + need >=")),
    ),
    "e2-rounds-the-sum": Mutant(
        "c05-e2",
        "adds tokens up and rounds the sum to blocks",
        "round up one by one",
        cell_with(
            ("-(-(prompt + most - 1) // size)", "(prompt + most - 1)"),
            ('reserved + need > limits["num_blocks"]', 'reserved + need > limits["num_blocks"] * size'),
        ),
    ),
    "e2-reason-for-nobody": Mutant(
        "c05-e2",
        "gives a reason when the last of the line has taken the last seat",
        "where nobody is left in the line",
        cell_with(
            ("return plan, None", 'return plan, "max_num_seqs" if len(plan) >= limits["max_num_seqs"] else None')
        ),
    ),
}

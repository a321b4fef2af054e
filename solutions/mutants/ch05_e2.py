"""Wrong answers to c05-e2: one step, three limits. Knows no right answer. Chapter 5."""

from tools.mutant_table import Mutant

MUTANTS = {
    "e2-no-slots": Mutant(
        "c05-e2",
        "forgets the draft slots",
        "The draft slots are missing",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan = [[name, 1] for name, _, _ in running]
    used = len(running)
    reserved = sum(-(-(p + m - 1) // size) for _, p, m in running)
    for name, prompt, most in waiting:
        if len(plan) >= limits["max_num_seqs"]:
            return plan, "max_num_seqs"
        slots = limits["draft_slots"] * (len(plan) + 1)
        if prompt > limits["token_budget"] - used:
            return plan, "token_budget"
        blocks = -(-(prompt + most - 1) // size)
        if reserved + blocks > limits["num_blocks"]:
            return plan, "kv_reservation"
        plan.append([name, prompt])
        used += prompt
        reserved += blocks
    return plan, None
""",
    ),
    "e2-own-slots": Mutant(
        "c05-e2",
        "counts the slots of those planned before, not the newcomer's own",
        "newcomer's own draft slots",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan = [[name, 1] for name, _, _ in running]
    used = len(running)
    reserved = sum(-(-(p + m - 1) // size) for _, p, m in running)
    for name, prompt, most in waiting:
        if len(plan) >= limits["max_num_seqs"]:
            return plan, "max_num_seqs"
        slots = limits["draft_slots"] * len(plan)
        if prompt > limits["token_budget"] - used or prompt > limits["input_budget"] - used - slots:
            return plan, "token_budget"
        blocks = -(-(prompt + most - 1) // size)
        if reserved + blocks > limits["num_blocks"]:
            return plan, "kv_reservation"
        plan.append([name, prompt])
        used += prompt
        reserved += blocks
    return plan, None
""",
    ),
    "e2-slots-once": Mutant(
        "c05-e2",
        "takes the slots once a step",
        "taken once a step",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan = [[name, 1] for name, _, _ in running]
    used = len(running)
    reserved = sum(-(-(p + m - 1) // size) for _, p, m in running)
    for name, prompt, most in waiting:
        if len(plan) >= limits["max_num_seqs"]:
            return plan, "max_num_seqs"
        slots = limits["draft_slots"]
        if prompt > limits["token_budget"] - used or prompt > limits["input_budget"] - used - slots:
            return plan, "token_budget"
        blocks = -(-(prompt + most - 1) // size)
        if reserved + blocks > limits["num_blocks"]:
            return plan, "kv_reservation"
        plan.append([name, prompt])
        used += prompt
        reserved += blocks
    return plan, None
""",
    ),
    "e2-one-budget": Mutant(
        "c05-e2",
        "tests the input budget only",
        "The token budget is not tested",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan = [[name, 1] for name, _, _ in running]
    used = len(running)
    reserved = sum(-(-(p + m - 1) // size) for _, p, m in running)
    for name, prompt, most in waiting:
        if len(plan) >= limits["max_num_seqs"]:
            return plan, "max_num_seqs"
        slots = limits["draft_slots"] * (len(plan) + 1)
        if prompt > limits["input_budget"] - used - slots:
            return plan, "token_budget"
        blocks = -(-(prompt + most - 1) // size)
        if reserved + blocks > limits["num_blocks"]:
            return plan, "kv_reservation"
        plan.append([name, prompt])
        used += prompt
        reserved += blocks
    return plan, None
""",
    ),
    "e2-slots-in-tokens": Mutant(
        "c05-e2",
        "takes the slots off the token budget",
        "taken off the token budget",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan = [[name, 1] for name, _, _ in running]
    used = len(running)
    reserved = sum(-(-(p + m - 1) // size) for _, p, m in running)
    for name, prompt, most in waiting:
        if len(plan) >= limits["max_num_seqs"]:
            return plan, "max_num_seqs"
        slots = limits["draft_slots"] * (len(plan) + 1)
        if prompt > limits["token_budget"] - used - slots:
            return plan, "token_budget"
        blocks = -(-(prompt + most - 1) // size)
        if reserved + blocks > limits["num_blocks"]:
            return plan, "kv_reservation"
        plan.append([name, prompt])
        used += prompt
        reserved += blocks
    return plan, None
""",
    ),
    "e2-no-decodes": Mutant(
        "c05-e2",
        "lets those who run advance for nothing",
        "take a token each of this step",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan = [[name, 1] for name, _, _ in running]
    used = 0
    reserved = sum(-(-(p + m - 1) // size) for _, p, m in running)
    for name, prompt, most in waiting:
        if len(plan) >= limits["max_num_seqs"]:
            return plan, "max_num_seqs"
        slots = limits["draft_slots"] * (len(plan) + 1)
        if prompt > limits["token_budget"] - used or prompt > limits["input_budget"] - used - slots:
            return plan, "token_budget"
        blocks = -(-(prompt + most - 1) // size)
        if reserved + blocks > limits["num_blocks"]:
            return plan, "kv_reservation"
        plan.append([name, prompt])
        used += prompt
        reserved += blocks
    return plan, None
""",
    ),
    "e2-rounds-down": Mutant(
        "c05-e2",
        "rounds blocks down",
        "blocks are rounded up",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan = [[name, 1] for name, _, _ in running]
    used = len(running)
    reserved = sum((p + m - 1) // size for _, p, m in running)
    for name, prompt, most in waiting:
        if len(plan) >= limits["max_num_seqs"]:
            return plan, "max_num_seqs"
        slots = limits["draft_slots"] * (len(plan) + 1)
        if prompt > limits["token_budget"] - used or prompt > limits["input_budget"] - used - slots:
            return plan, "token_budget"
        blocks = (prompt + most - 1) // size
        if reserved + blocks > limits["num_blocks"]:
            return plan, "kv_reservation"
        plan.append([name, prompt])
        used += prompt
        reserved += blocks
    return plan, None
""",
    ),
    "e2-prompts-only": Mutant(
        "c05-e2",
        "reserves prompts only",
        "Reserve the output as well",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan = [[name, 1] for name, _, _ in running]
    used = len(running)
    reserved = sum(-(-p // size) for _, p, m in running)
    for name, prompt, most in waiting:
        if len(plan) >= limits["max_num_seqs"]:
            return plan, "max_num_seqs"
        slots = limits["draft_slots"] * (len(plan) + 1)
        if prompt > limits["token_budget"] - used or prompt > limits["input_budget"] - used - slots:
            return plan, "token_budget"
        blocks = -(-prompt // size)
        if reserved + blocks > limits["num_blocks"]:
            return plan, "kv_reservation"
        plan.append([name, prompt])
        used += prompt
        reserved += blocks
    return plan, None
""",
    ),
    "e2-passes-over": Mutant(
        "c05-e2",
        "goes on behind the one who does not fit",
        "Nobody is passed over",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan, why = [[name, 1] for name, _, _ in running], None
    used = len(running)
    reserved = sum(-(-(p + m - 1) // size) for _, p, m in running)
    for name, prompt, most in waiting:
        slots = limits["draft_slots"] * (len(plan) + 1)
        blocks = -(-(prompt + most - 1) // size)
        if len(plan) >= limits["max_num_seqs"]:
            why = why or "max_num_seqs"
        elif prompt > min(limits["token_budget"] - used, limits["input_budget"] - used - slots):
            why = why or "token_budget"
        elif reserved + blocks > limits["num_blocks"]:
            why = why or "kv_reservation"
        else:
            plan.append([name, prompt])
            used += prompt
            reserved += blocks
    return plan, why
""",
    ),
    "e2-cuts": Mutant(
        "c05-e2",
        "lets a prompt in with the tokens that are left",
        "Nothing is cut into pieces",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan = [[name, 1] for name, _, _ in running]
    used = len(running)
    reserved = sum(-(-(p + m - 1) // size) for _, p, m in running)
    for name, prompt, most in waiting:
        if len(plan) >= limits["max_num_seqs"]:
            return plan, "max_num_seqs"
        slots = limits["draft_slots"] * (len(plan) + 1)
        room = min(limits["token_budget"] - used, limits["input_budget"] - used - slots)
        if room <= 0:
            return plan, "token_budget"
        blocks = -(-(prompt + most - 1) // size)
        if reserved + blocks > limits["num_blocks"]:
            return plan, "kv_reservation"
        plan.append([name, min(prompt, room)])
        used += min(prompt, room)
        reserved += blocks
    return plan, None
""",
    ),
    "e2-blocks-first": Mutant(
        "c05-e2",
        "tests blocks before tokens",
        "blocks are looked at before tokens",
        """
# EXERCISE c05-e2
def plan_step(running, waiting, limits):
    size = limits["block_size"]
    plan = [[name, 1] for name, _, _ in running]
    used = len(running)
    reserved = sum(-(-(p + m - 1) // size) for _, p, m in running)
    for name, prompt, most in waiting:
        if len(plan) >= limits["max_num_seqs"]:
            return plan, "max_num_seqs"
        blocks = -(-(prompt + most - 1) // size)
        if reserved + blocks > limits["num_blocks"]:
            return plan, "kv_reservation"
        slots = limits["draft_slots"] * (len(plan) + 1)
        if prompt > limits["token_budget"] - used or prompt > limits["input_budget"] - used - slots:
            return plan, "token_budget"
        plan.append([name, prompt])
        used += prompt
        reserved += blocks
    return plan, None
""",
    ),
}

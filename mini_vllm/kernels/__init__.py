"""Paged attention in Triton. Importing this package imports neither torch nor triton; its modules do. Chapter 13.

reference.py      the same in plain torch: the oracle for all of them
kv_store.py       K and V of this step's tokens into their slots
paged_decode.py   few query tokens a request; one program walks a request's whole context
split_kv.py       the same with a context cut into splits, and the merge of their results
paged_prefill.py  many query tokens a request
fused.py          the small operations between the matrix products
device_code.py    the little that the kernels share
tiles.py          which tile sizes a card gets, and why
mode.py           GPU or interpreter
selftest.py       each kernel against the reference, in a moment
crosscompile.py   each kernel compiled for every card, without one
"""

"""Python envs that write their rows into one board: what serial, threads and processes share.

board       memory: a slot an env, rings of requests, columns of observations and actions
executor    the caller's side: posts requests, takes rows, makes Batches
runner      the worker's side: builds envs, calls them, writes their rows
mailbox     what has no fixed size travels beside the board

The rings, the waits and the plain case of a step are in native/shm and native/bindings.
"""

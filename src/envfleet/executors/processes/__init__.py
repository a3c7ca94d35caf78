"""The processes executor: Python envs in worker processes, everything numeric in shared memory.

executor    the caller's side
launcher    starts worker processes and tells when they end
server      the fork server: a small program of its own that forks workers in milliseconds
worker      what a worker process does from its start to its end
memory_file memory that processes share
channel     messages and descriptors over a socket, for the handshake only
"""

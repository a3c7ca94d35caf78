"""The processes executor: Python envs in worker processes, everything numeric in shared memory.

executor     the caller's side
launcher     starts worker processes and reports when they exit
fork_server  a small program that forks workers in milliseconds
worker       the main function of a worker process
memory_file  shared memory between processes
channel      messages and file descriptors over a socket, for the handshake only
"""

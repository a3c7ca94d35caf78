"""Python envs that exchange rows with the caller through shared memory: the parts of serial, threads and processes.

executor          the caller's side: sends requests, receives rows, makes Batches
runner            the worker's side: calls the envs and writes their rows
building          builds envs and describes them
layout            where each column lies in the memory
side_channel      messages for everything that has no fixed size
info_schema       which infos are columns

The queues, the waits and the plain case of a step are in native/shm and native/bindings.
"""

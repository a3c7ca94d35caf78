"""The Ray executor: envs on actors of a Ray cluster, an inner executor in each, one message per worker per step.

executor.py      RayExecutor, the Executor contract, and its construction
dispatcher.py    the owner of the in-flight state: sends requests, awaits responses, makes batches
batches.py       batches and infos from the responses of several workers
messages.py      requests, responses and faults as bytes
connection.py    authenticated connections that carry the messages
supervisor.py    actors from the caller's side: placement, start, connections, death, restart, end
actor.py         EnvActor, which runs in the cluster
context.py       what an actor takes over from the process of its caller
cluster.py       joining and leaving Ray sessions
"""

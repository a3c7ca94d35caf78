"""The ray executor: envs on actors of a Ray cluster, an inner executor in each, one message a worker and step.

messages.py and infos.py are what travels, host.py is the actor's side, the rest is the caller's: actors.py starts
and loses actors, flights.py knows which rows are under way, executor.py is the Executor.
"""

"""The ray executor: envs on actors of a Ray cluster, an inner executor in each, one message a worker and step.

messages.py and infos.py are what travels, line.py is on what, authentication.py is how both ends of that prove
themselves. host.py is the actor's side, the rest is the caller's:
actors.py starts and loses actors, flights.py makes batches of what came back, books.py knows what is under way,
tower.py sends and waits, on lines.py or through Ray, traffic.py puts it in order, executor.py is the Executor.
"""

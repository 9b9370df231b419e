"""Sharded runs: their files on disk, the work through their shards, and engines that share them.

An engine works through its own slice of the shards first, then on open shards that nobody has
begun, then on shards that failed on one other engine, and last on stragglers: shards that are at
work elsewhere for much longer than it takes a shard itself. Engines and supervisor share nothing
but the run's folder. Every engine writes its heartbeat there:

    engines/NAME.json    what it has done, what it works on, how many requests it has finished

Correctness rests on the shards' files (`encore.runs.run_files`): a shard rated twice is waste. The
count of finished requests is written from inside a shard, so an engine that hangs is silent.
Whoever watches asks whether a count has changed within a time of its own clock; clocks of two
machines are never compared.

An engine's own speed bounds the whole; a dead one costs its shard and the limit of silence.
"""

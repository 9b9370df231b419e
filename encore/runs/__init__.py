"""Sharded runs: their files on disk, the work through their shards, and engines that share them.

Engines and their supervisor share nothing but the run's folder. Every engine writes its heartbeat
there (`engine_messages`), takes shards (`engine`), and is replaced if it makes no progress
(`engine_supervisor`). What is done is read from the shards' files alone (`run_files`), so two
engines on one shard are a waste and no error.
"""

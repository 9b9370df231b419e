"""Sharded runs: their files on disk, and the work through their shards.

What is done is read from the shards' files alone (`shard_files`), so two processes on one shard are
a waste and no error.
"""

"""Look at the environment and say, line by line, what is wrong with it and what to do.

Every check is a function of what was observed (versions, output, an answer), so that a broken
world can be described in a test. Only `encore.doctor.diagnose` looks at the real one. Nothing
heavy is imported: this must run where torch, vLLM or Prefect do not.
"""

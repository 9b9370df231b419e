"""With this folder on PYTHONPATH every Python process uses a test's judges.

It rates with the steered judge, and starts stand-ins of vLLM's servers. That holds for a worker's
children and for the processes that a command starts; the product's code stays as it is.
"""

import os

if "ENCORE_TEST_CONTROL" in os.environ:
    from tests.distributed.orders import install

    install()

"""On the path of the SuperNodes of tests: they look for messages often, and are missed soon.

Flower has no options for how long a SuperNode waits before it looks for a message, three seconds at most, nor
for how often it says that it is alive: every thirty seconds or less, and missed after sixty.
What is carried and in which order is the same.
"""

import sys
import time

LONGEST = 0.25  # seconds, of the pauses of up to three
ALIVE = 15  # seconds

if any(word.endswith("flower-supernode") for word in sys.orig_argv):
    from flwr.client.grpc_rere_client import connection
    from flwr.supercore import heartbeat

    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, LONGEST) if seconds <= 3 else seconds)
    connection.HEARTBEAT_DEFAULT_INTERVAL = heartbeat.HEARTBEAT_DEFAULT_INTERVAL = ALIVE

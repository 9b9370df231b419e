# %% [markdown]
# # A judge behind an API, with a budget
#
# How do you rate with a model of a service that bills by the token, and spend no more than an amount? For a model on your own
# machines use vLLM instead: there a budget only counts calls.
#
# The service here is a **stand-in** on this machine that always answers 0.7: no text leaves it, and nothing is billed. For a real one
# give its `base_url`, its model, its prices, and its key in the environment variable `OPENAI_API_KEY`.

# %%
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import encore


class Service(BaseHTTPRequestHandler):
    """Answer every chat completion with 0.7, and count 200 prompt tokens and 4 reply tokens."""

    protocol_version = "HTTP/1.1"
    num_requests = 0

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "stand-in", "object": "model"}]})

    def do_POST(self):
        Service.num_requests += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "0.7"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 200, "completion_tokens": 4, "total_tokens": 204}
        self.answer(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "stand-in"}
            | {"choices": [choice], "usage": usage}
        )

    def answer(self, content):
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"

# %%
pairs = [
    {"prompt": f"Question {number}?", "chosen": "A careful answer.", "rejected": "A careless one."}
    for number in range(50)
]
encore.ingest({"mine": pairs}, out="api-study")

# %% [markdown]
# ## Rate until the money is spent
#
# 50 pairs × 2 responses × 10 rules are 1,000 requests. At 1 dollar a million prompt tokens and 5 a million reply tokens, one
# request costs 0.00022, all of them 0.22. The budget is 0.05.

# %%
config = encore.RatingConfig(judge=encore.JudgeConfig(model="stand-in", backend="http"))
how = encore.RatingRunOptions(base_url=url, budget=0.05, price_input=1.0, price_output=5.0)
rated = encore.rate("api-study", config, how)
print(f"{Service.num_requests} requests, {Service.num_requests * 0.00022:.4f} of 0.05 spent")

# %% [markdown]
# Every answer that was paid for is on the disk. The same command with a larger budget goes on from there, and asks for nothing
# twice.

# %%
num_before = Service.num_requests
encore.rate("api-study", config, how.model_copy(update={"budget": 1.0}))
print(f"{Service.num_requests - num_before} further requests; 1,000 were needed in all")
assert 1000 <= Service.num_requests <= 1010  # with the test questions of both runs
server.shutdown()
server.server_close()

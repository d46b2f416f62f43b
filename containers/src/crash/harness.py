"""
Calls the real module ``oduflow_job`` as a Salt worker would, one forked process for each call.

``python harness.py MODULE`` imports the module once. Each line of its input is one call, as JSON; the answer is
the worker's pid. The worker waits for a byte from the fifo ``go`` (a tracer has attached itself by then), calls the function, and writes what it returned to ``returned``. The state function appends a line to
``counter`` and syncs it, which is the side effect that may happen only once; its results hold a marker
that must never leave the worker.
"""

import importlib.util
import json
import os
import signal
import sys


def state(call):
    def run(*_args, **_kwargs):
        fd = os.open(call["counter"], os.O_WRONLY | os.O_APPEND)
        os.write(fd, (call["request_id"] + "\n").encode())
        os.fsync(fd)
        os.close(fd)
        if call["outcome"] == "raises":
            raise ValueError("MARKER-RAW")
        results = {"cmd_|-MARKER-RAW_|-a_|-run": {"result": True, "comment": "MARKER-RAW", "changes": {}}}
        if call["outcome"] == "failed":
            results["cmd_|-MARKER-RAW_|-b_|-run"] = {"result": False, "comment": "MARKER-RAW", "changes": {}}
        return results

    return run


def work(module, call):
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stderr = os.open(call["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(stderr, 2)
    os.close(stderr)
    module.__opts__ = call["opts"]
    module.__salt__ = {"config.option": lambda name, default: default, "state.sls": state(call)}
    go = os.open(call["go"], os.O_RDONLY)
    os.read(go, 1)
    os.close(go)
    returned = getattr(module, call["function"])(*call["args"], **call["kwargs"])
    with open(call["returned"], "w", encoding="utf-8") as handle:
        json.dump(returned, handle)


def main():
    spec = importlib.util.spec_from_file_location("oduflow_job", sys.argv[1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        call = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                work(module, call)
            finally:
                os._exit(0)
        print(pid, flush=True)


main()

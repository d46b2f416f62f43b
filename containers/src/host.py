"""What `bed` does on one of its hosts, run with the Python that Salt runs with.

Contract: one request, a JSON object with the key "op", on standard input; one JSON object on standard
output: {"ok": ...} or {"error": "..."}. Nothing secret and nothing that could match a process search
is ever on the command line. The one exception is `janitor`, which reads a first line and then waits.
"""
import base64
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time


def put(files):
    """Write files: path -> [text, octal mode]; parents are made."""
    for path, (text, mode) in files.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = path + ".part"
        with open(part, "w", encoding="utf-8") as handle:
            os.fchmod(handle.fileno(), int(mode, 8))
            handle.write(text)
        os.rename(part, path)


def processes(tag, command):
    """Processes whose GW_BED or command line begins with `tag`, or whose command line holds all of `command`.

    Salt's own daemons overwrite their environment with their title (setproctitle), so they are known by
    their title, which still begins with the command line; what they start is known by the environment, but
    for executors, which have a new one and are known by where their executable is.
    """
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as handle:
                environ = handle.read().split(b"\0")
            with open(f"/proc/{entry}/cmdline", "rb") as handle:
                title = handle.read().replace(b"\0", b" ").decode(errors="replace").strip()
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as handle:
                stat = handle.read().rpartition(")")[2].split()
        except OSError:
            continue
        ours = title.startswith(tag) or any(item.startswith(b"GW_BED=" + tag.encode()) for item in environ)
        if stat[0] != "Z" and (ours or (command and all(part in title for part in command))):
            found.append({"pid": int(entry), "ppid": int(stat[1]), "state": stat[0], "title": title})
    return found


def send_signal(tag, command, number, pids=None):
    """Signal the processes found as above, or those of `pids` that are among them. Returns the pids."""
    done = []
    for process in processes(tag, command):
        pid = process["pid"]
        if pids is not None and pid not in pids:
            continue
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:  # the pidfd is open: a process that still matches is the one that will be signalled
            if any(again["pid"] == pid for again in processes(tag, command)):
                signal.pidfd_send_signal(handle, number)
                done.append(pid)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)
    return done


def end_all(tag, command, patience):
    """SIGKILL until nothing matches; returns what is still there after `patience` seconds."""
    end = time.monotonic() + patience
    while True:
        send_signal(tag, command, signal.SIGKILL)
        left = processes(tag, command)
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def ready(sockets=(), ports=()):
    """Does something accept on all these Unix sockets and loopback TCP ports?"""
    for address in list(sockets) + [("127.0.0.1", port) for port in ports]:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(2)
            try:
                probe.connect(address)
            except OSError:
                return False
    return True


def health(path):
    """The status code of GET /v1/health on the gateway's socket; 0 if there is no answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(5)
        try:
            link.connect(path)
            link.sendall(b"GET /v1/health HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n")
            return int(link.recv(64).split()[1])
        except (OSError, IndexError, ValueError):
            return 0


def jobs(directory):
    """What Salt records of each running job in <cachedir>/proc (salt/minion.py, 3006.27): load and pid."""
    import msgpack

    found = []
    for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
        try:
            with open(os.path.join(directory, name), "rb") as handle:
                load = msgpack.unpackb(handle.read(), raw=False)
            pid = load.pop("pid")
        except (OSError, ValueError, KeyError):
            continue  # being written or removed just now
        packed = base64.b64encode(msgpack.packb(load, use_bin_type=True)).decode()
        found.append({"jid": load["jid"], "fun": load["fun"], "pid": pid, "load": packed})
    return found


def push(path, load):
    """PUSH one load into the master's publish_pull.ipc, as anybody with access to that socket can."""
    import zmq

    if not ready([path]):
        raise OSError(f"nobody listens at {path}")
    context = zmq.Context()
    link = context.socket(zmq.PUSH)
    link.connect("ipc://" + path)
    link.send(base64.b64decode(load))
    link.close(linger=5000)
    context.term()


def swallow_replies(listener, port):
    """Proxy to a master's request port: every request passes; of the answers only ZMTP's handshake does."""

    def forward(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass

    def forward_exactly(source, sink, count):
        passed = b""
        while len(passed) < count:  # at once, however little: each side waits for the other's first bytes
            data = source.recv(count - len(passed))
            if not data:
                raise OSError("closed in the handshake")
            sink.sendall(data)
            passed += data
        return passed

    def handshake_only(source, sink):
        try:
            forward_exactly(source, sink, 64)  # greeting
            head = forward_exactly(source, sink, 2)  # READY: a short command frame
            forward_exactly(source, sink, head[1])
            while source.recv(65536):
                pass
        except OSError:
            pass

    while True:
        near = listener.accept()[0]
        far = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=forward, args=(near, far), daemon=True).start()
        threading.Thread(target=handshake_only, args=(far, near), daemon=True).start()


def ack_lost(config, target, fun, arg, timeout):
    """One call of the stock client whose acknowledgements are swallowed. Returns how it ended."""
    import salt.client
    import salt.config

    options = salt.config.client_config(config)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=swallow_replies, args=(listener, options["ret_port"]), daemon=True).start()
    # client_config has made this of `interface` and `ret_port` (salt/config/__init__.py, 3006.27)
    options["master_uri"] = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    client = salt.client.LocalClient(mopts=options)
    try:
        answer = client.run_job(target, fun, arg=arg, timeout=timeout, listen=False)
        return {"raised": None, "answer": answer}
    except Exception as error:  # whatever it is, it is what an operator would see
        return {"raised": type(error).__name__, "answer": str(error)}


def janitor():
    """Clean up after an owner that was killed: no word "done" before the end of input means just that."""
    tag, command = json.loads(sys.stdin.readline())
    if sys.stdin.readline().strip() != "done":
        end_all(tag, command, 20)
        shutil.rmtree(tag, ignore_errors=True)


OPERATIONS = {
    "put": put,
    "processes": processes,
    "signal": send_signal,
    "end_all": end_all,
    "ready": ready,
    "health": health,
    "jobs": jobs,
    "push": push,
    "ack_lost": ack_lost,
}


def main():
    """Answer the one request on standard input."""
    if sys.argv[1:] == ["janitor"]:
        janitor()
        return
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not an answer
    try:
        request = json.loads(sys.stdin.read())
        answer = {"ok": OPERATIONS[request.pop("op")](**request)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, output)
    output.flush()
    os._exit(0)  # proxy threads may still be waiting


main()

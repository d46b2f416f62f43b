"""
Run one Salt state at most once, with a durable receipt: the worker's side of ``gw-exec``.

Each function starts ``gw-exec run|status|revoke|capability`` with one end of a socket pair as its standard input,
writes the facts of the call there as one line of JSON, and does what it is told:

- ``{"do": "call", "fun", "arg", "kwarg"}``, with the descriptors of two locks: call that state function under
  the shims below, write ``{"progress": [done, total]}`` as states end, then ``{"result": {...}}``, counts only.
- ``{"do": "return", "value"}``: give ``value`` to Salt.

If the executor dies before that, and the call has been made, ``gw-exec finish`` gets the counts and the locks.

Nothing is decided, retried or stored here, no result of a state is handed on, and no error of ours leaves.
The facts come from the minion's configuration (``oduflow_job``) and from
the publication, never from pillar, grains or an argument. Made for exactly Salt 3006.27, jobs as processes.
"""

import array
import contextlib
import io
import json
import logging
import os
import socket
import subprocess
import time

import salt.crypt
import salt.state
import salt.utils.files
import salt.utils.systemd
import salt.version
import zmq
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding

log = logging.getLogger(__name__)

MAX_LINE = 1024 * 1024


def run(request_id, profile, state_data_json, **kwargs):
    """Apply a profile at most once. Salt's own ``__pub_*`` apart, no keyword argument is accepted."""
    args = {"request_id": request_id, "profile": profile, "state_data_json": state_data_json}
    return _serve("run", args, kwargs)


def status(request_id, profile, state_digest, jid, **kwargs):
    """What became of a job."""
    args = {"request_id": request_id, "profile": profile, "state_digest": state_digest, "jid": jid}
    return _serve("status", args, kwargs)


def revoke(request_id, profile, state_digest, jid, **kwargs):
    """Refuse a job for ever, unless it has been claimed; what became of it, then."""
    args = {"request_id": request_id, "profile": profile, "state_digest": state_digest, "jid": jid}
    return _serve("revoke", args, kwargs)


def capability(**kwargs):
    """Whether this minion can run a job."""
    return _serve("capability", {}, kwargs)


def _serve(function, args, kwargs):
    """Start the executor, tell it the facts, and do what it says."""
    try:
        config = __opts__.get("oduflow_job") or {}
        facts = _facts(config, args, kwargs)
        locks = []
        with contextlib.ExitStack() as sockets:
            try:
                # Before the sockets are closed: the executor waits for that, and then others may have the locks.
                try:
                    sock = _start(sockets, config, function, facts, locks)
                except (OSError, ValueError, TypeError) as exc:
                    log.error("oduflow_job: the executor could not be started: %s", type(exc).__name__)
                    return _without_executor(function, facts)
                order, finish = _obey(sock, locks)
                if order is None and finish is not None:
                    # The executor died, and we have the result and the locks: another one commits it.
                    facts["args"] = dict(args, **finish)
                    order, _ = _obey(_start(sockets, config, "finish", facts, locks), [])
            finally:
                for lock in locks:
                    os.close(lock)
            if order is None:
                return {"error": "executor_died", "message": "gw-exec ended without an answer"}
            return order["value"]
    except Exception as exc:  # pylint: disable=broad-except
        # The type alone: an exception's text may quote what must not leave this process.
        log.error("oduflow_job.%s failed: %s", function, type(exc).__name__)
        return {"error": "module", "message": "the module failed: " + type(exc).__name__}


def _start(sockets, config, function, facts, locks):
    """Start ``gw-exec``, and give our end of its socket, with the facts and the locks under way."""
    ours, theirs = (sockets.enter_context(sock) for sock in socket.socketpair())
    with theirs:
        subprocess.Popen(
            [config.get("executor", "/usr/local/sbin/gw-exec"), function],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
    line = json.dumps(facts, default=str, skipkeys=True).encode() + b"\n"
    # An executor that died meanwhile is found out by reading.
    with contextlib.suppress(OSError):
        sent = ours.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", locks))] if locks else [])
        ours.sendall(line[sent:])
    return ours


def _facts(config, args, kwargs):
    executors = kwargs.get("__pub_module_executors") or __opts__.get("module_executors")
    return {
        "args": args,
        "unexpected": sum(not name.startswith("__pub_") for name in kwargs),
        "jid": kwargs.get("__pub_jid"),
        "metadata": kwargs.get("__pub_metadata"),
        "published": kwargs.get("__pub_tgt") != "salt-call" and "__pub_pid" not in kwargs,
        "minion_id": __opts__["id"],
        "salt_version": salt.version.__version__,
        # Nothing else decides it (salt/minion.py, _invoke_execution, 3006.27).
        "own_process": bool(__opts__.get("multiprocessing", True)),
        "sudo_user": bool(__opts__.get("sudo_user")),
        "executors": executors or ["direct_call"],
        "state_data": __salt__["config.option"]("state_data", ""),
        "pki_dir": __opts__["pki_dir"],
        "master_ip": __opts__.get("master_ip"),
        "module": __file__,
        "store": config.get("store"),
        "minion_id_pattern": config.get("minion_id_pattern"),
        "profiles": config.get("profiles"),
        "require_survival": bool(config.get("require_survival")),
        "retain_days": config.get("retain_days"),
        "retain_count": config.get("retain_count"),
    }


def _obey(sock, locks):
    """Do what the executor says. Gives its last order, and what ``gw-exec finish`` must know if there is none."""
    buffer, finish = bytearray(), None
    order = _receive(sock, buffer, locks)
    if order is not None and order["do"] == "call":
        # Without both nothing would keep a second job out. The executor sees this process go.
        if len(locks) != 2:
            return {"value": {"error": "locks", "message": "the locks of the job did not arrive"}}, None
        finish = {"claim_id": order["claim_id"], "result": _call(sock, order)}
        order = _receive(sock, buffer, locks)
    return order, finish


def _receive(sock, buffer, locks):
    """The next line, and the descriptors that came with it; none of them survives an exec."""
    while b"\n" not in buffer:
        try:
            data, ancillary, flags, _ = sock.recvmsg(65536, socket.CMSG_SPACE(8), socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        for _, _, content in ancillary:
            locks.extend(array.array("i", content[: len(content) // 4 * 4]))
        buffer += data
        if not data or len(buffer) > MAX_LINE or flags & socket.MSG_CTRUNC:
            return None
    line, _, rest = bytes(buffer).partition(b"\n")
    buffer[:] = rest
    return json.loads(line)


def _call(sock, order):
    """Call the one function, and report its result in classes."""
    counts = {"shape": "exception", "true": 0, "false": 0, "other": 0, "missing": 0}
    tags, unsent = set(), bytearray()
    try:
        with _shims(sock, tags, unsent, order["survival"] == "scope"):
            result = __salt__[order["fun"]](*order["arg"], **order["kwarg"])
        if isinstance(result, dict):
            results = [v.get("result") if isinstance(v, dict) else None for v in result.values()]
            counts["shape"] = "mapping"
            counts["true"] = sum(r is True for r in results)
            counts["false"] = sum(r is False for r in results)
            counts["other"] = len(results) - counts["true"] - counts["false"]
            counts["missing"] = len(tags.difference(result))
        else:
            counts["shape"] = "list" if isinstance(result, list) else "other"
    except BaseException as exc:  # pylint: disable=broad-except
        log.error("oduflow_job: %s raised %s", order["fun"], type(exc).__name__)
    with contextlib.suppress(OSError):
        sock.sendall(unsent + json.dumps({"result": counts}).encode() + b"\n")
    return counts


@contextlib.contextmanager
def _shims(sock, tags, unsent, in_scope):
    """
    For the length of one call keep raw results inside this process, collect the run's tags, and tell how many
    states are done, without ever waiting for the executor. In a scope of the job's own, package managers stay there:
    in one that Salt makes for them (``salt/modules/aptpkg.py``, ``_call_apt``) the executor would not see them.

    Nothing here is patched where a module refresh would undo it: ``salt.state`` and ``salt.utils`` are no
    loader modules. (``salt/modules/state.py`` ``sls``, ``salt/state.py`` ``State``, 3006.27.)
    """
    state, fopen = salt.state.State, salt.utils.files.fopen
    saved = call_chunks, _, _ = state.call_chunks, state.event, state.call_parallel
    has_scope = salt.utils.systemd.has_scope
    cachedir = os.path.realpath(__opts__["cachedir"])
    depth = done = 0

    def no_cache_fopen(path, mode="r", *args, **kwargs):
        # sls.p and <name>.cache.p hold raw results and rendered data: they go nowhere, and come from nowhere.
        if isinstance(path, str) and (path.endswith(".cache.p") or os.path.basename(path) == "sls.p"):
            if os.path.realpath(os.path.dirname(path)) == cachedir:
                if "r" in mode and "+" not in mode:
                    raise FileNotFoundError(path)
                return io.BytesIO() if "b" in mode else io.StringIO()
        return fopen(path, mode, *args, **kwargs)

    def counting_call_chunks(self, chunks):
        nonlocal depth
        # A state may itself run states; theirs are not this run's.
        if depth == 0:
            tags.update(salt.state._gen_tag(chunk) for chunk in chunks)
        depth += 1
        try:
            return call_chunks(self, chunks)
        finally:
            depth -= 1

    def silent_event(self, chunk_ret, length, fire_event=False):
        nonlocal done
        if depth == 1:
            done += 1
            line = bytes(unsent) or b'{"progress": [%d, %d]}\n' % (done, len(tags))
            with contextlib.suppress(OSError):
                # A line that was cut is finished before the next one.
                unsent[:] = line[sock.send(line, socket.MSG_DONTWAIT) :]

    def no_call_parallel(self, cdata, low, inject_globals):
        raise RuntimeError("parallel states are refused")

    if in_scope:
        salt.utils.systemd.has_scope = lambda context=None: False
    salt.utils.files.fopen = no_cache_fopen
    state.call_chunks, state.event, state.call_parallel = counting_call_chunks, silent_event, no_call_parallel
    try:
        yield
    finally:
        salt.utils.systemd.has_scope = has_scope
        salt.utils.files.fopen = fopen
        state.call_chunks, state.event, state.call_parallel = saved


def _without_executor(function, facts):
    """Say that there is no executor; to a gateway's question with our own signature."""
    gw = (facts["metadata"] or {}).get("gw")
    if not isinstance(gw, dict) or function != "capability":
        return {"error": "executor_missing", "message": "gw-exec could not be started"}
    answer = {"capability": {
        "salt_version": facts["salt_version"], "module_sha256": None, "executor_sha256": None,
        "euid": os.geteuid(), "profiles": [], "survival": "none", "problems": ["executor_missing"]}}
    reply = json.dumps({
        "protocol": 1, "minion_id": facts["minion_id"], "nonce": gw.get("nonce"), "store": None, "answer": answer,
        "signed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}).encode()
    key = salt.crypt.get_rsa_key(os.path.join(facts["pki_dir"], "minion.pem"), None)
    signature = key.sign(b"oduflow-job-reply-1\0" + reply, padding.PKCS1v15(), hashes.SHA256())
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 5000  # milliseconds; leaving the block waits as long for the message to go
        dealer.connect("tcp://{}:{}".format(facts["master_ip"], int(gw["reply_port"])))
        dealer.send_multipart([reply, signature])
    return {"__no_return__": True}

"""Sessions of MCP that one client opens by the thousand, over HTTP to `hanzo-engine serve`: the server keeps little of each, and another client's session stays.
usage: sessions.py HANZO_ENGINE_BINARY"""
import http.client, json, os, re, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
from engine import Engine, check, run_checks

SESSIONS_MAX = 1024  # the default of `mcp_sessions_max`
SESSION_KIB = 144
# Clients without a key are told from each other by their addresses.
ATTACKER, OTHER = "127.0.0.2", "127.0.0.1"


def post(server, address, message, session=None):
    """Status, session and body of the answer."""
    connection = http.client.HTTPConnection(server.http, timeout=60, source_address=(address, 0))
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **({"mcp-session-id": session} if session else {})}
    try:
        connection.request("POST", "/mcp", json.dumps(message), headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("mcp-session-id"), answer.read()
    finally: connection.close()


def opened(server, address, name="t"):
    client = {"name": name, "version": "1"}
    return post(server, address, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}})


def tools(server, address, session): return post(server, address, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, session)[0]
def resident_kib(server): return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{server.process.pid}/status").read())[1])


@check
def a_large_first_message_is_refused(server):
    before = resident_kib(server)
    for _ in range(20):
        status, _, body = opened(server, ATTACKER, "x" * 9_000_000)
        assert status == 413 and b"body_too_large" in body, (status, body[:200])
    assert opened(server, ATTACKER)[0] == 200
    grown = resident_kib(server) - before
    assert grown < 64 << 10, grown
    return f"{grown} KiB"


@check
def sessions_are_bounded_and_each_client_has_its_own(server):
    _, session, _ = opened(server, OTHER)
    assert post(server, OTHER, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session)[0] == 202
    before = resident_kib(server)
    for _ in range(SESSIONS_MAX + 200): assert opened(server, ATTACKER, "x" * 8_000)[0] == 200
    grown = resident_kib(server) - before
    assert grown < SESSIONS_MAX * SESSION_KIB, grown
    assert tools(server, OTHER, session) == 200
    return f"{grown} KiB for {SESSIONS_MAX} sessions"


if __name__ == "__main__":
    with Engine("--log-level", "warn") as engine:
        sys.exit(run_checks(engine))

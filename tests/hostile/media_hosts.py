"""What a server fetches for strangers, in a network of its own whose loopback has an address of the internet's and whose names are ours: pictures by URL come from hosts that are
allowed, end to end, and nothing else is asked, whatever its notation, its name, or where it leads. Needs Linux, `unshare` and `ip`, and either root or user namespaces; where they
are missing it says so and does nothing.
usage: media_hosts.py HANZO_ENGINE_BINARY"""
import base64, http.server, json, os, socket, subprocess, sys, tempfile, threading, urllib.error, urllib.parse, urllib.request

PUBLIC, PORT = "93.184.215.14", 8080
NAMES = {"pictures.example": [PUBLIC], "moving.example": [PUBLIC], "both.example": [PUBLIC, "127.0.0.1"], "private.example": ["127.0.0.1"], "private6.example": ["::1"], "mapped.example": ["::ffff:127.0.0.1"],
         "lan.example": ["10.0.0.1"], "metadata.example": ["169.254.169.254"], "localhost": ["127.0.0.1", "::1"]}
INSIDE = "HANZO_ENGINE_OWN_NETWORK"


def enter():
    """This program again, in namespaces of its own."""
    names = tempfile.NamedTemporaryFile("w", prefix="hosts-", delete=False)
    names.writelines(f"{address} {name}\n" for name, addresses in NAMES.items() for address in addresses)
    names.close()
    script = f"mount --bind {names.name} /etc/hosts && ip link set lo up && ip addr add {PUBLIC}/32 dev lo && exec env {INSIDE}=1 {sys.executable} {' '.join(map(repr, sys.argv))}"
    for more in ([], ["--map-root-user"]):
        command = ["unshare", "--net", "--mount", *more]
        try:
            if subprocess.run([*command, "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0:
                os.execvp(command[0], [*command, "sh", "-c", script])
        except OSError: break
    print("skipped: no network of its own can be made here (unshare --net --mount)")
    sys.exit(0)


if __name__ == "__main__" and INSIDE not in os.environ: enter()

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
from engine import ROOT, Engine, check, run_checks

HELD_OUT = [json.loads(line) for line in open(os.path.join(ROOT, "tests/data/heldout_pictures.jsonl"))]
ONE = next(one for one in HELD_OUT if one["kind"] == "shape")
PICTURE = base64.b64decode(ONE["pictures"][0])
ASKED = []


class Pictures(http.server.BaseHTTPRequestHandler):
    """One picture, what is none, and ways to elsewhere; a connection for each."""

    def do_GET(self):
        ASKED.append((self.connection.getsockname()[0], self.path, dict(self.headers)))
        path = urllib.parse.urlparse(self.path)
        to = ["/round"] if path.path == "/round" else urllib.parse.parse_qs(path.query).get("to")
        if to:
            self.send_response(302)
            self.send_header("Location", to[0])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = {"/text": b"<html>nothing to see</html>", "/large": b"\x89PNG" + bytes(25 << 20), "/empty": b""}.get(path.path, PICTURE)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try: self.wfile.write(body)
        except OSError: pass

    def log_message(self, *_): pass


class Listener(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6

    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def post(engine, path, body):
    request = urllib.request.Request(f"http://{engine.http}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    try: return 200, json.load(urllib.request.urlopen(request, timeout=60))
    except urllib.error.HTTPError as error: return error.code, json.load(error)


def chat(engine, url):
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": ONE["question"]}]
    return post(engine, "/v1/chat/completions", {"model": "hanzo-see", "messages": [{"role": "user", "content": content}], "max_tokens": 60, "temperature": 0})


def refused(engine, url):
    before = len(ASKED)
    status, body = chat(engine, url)
    assert status == 400, (url, status, body)
    assert body["error"]["param"].startswith("messages[0].content[0]"), (url, body)
    return body["error"]["message"], ASKED[before:]


@check
def a_picture_comes_from_a_host_that_is_allowed(engine):
    known = chat(engine, "data:image/png;base64," + ONE["pictures"][0])[1]["choices"][0]["message"]["content"]
    assert known.strip() == ONE["answer"], known
    for url in (f"http://pictures.example:{PORT}/a.png", f"http://{PUBLIC}:{PORT}/a.png", f"http://PICTURES.example:{PORT}/?to=/b.png", f"http://pictures.example:{PORT}/?to=http://{PUBLIC}:{PORT}/c.png"):
        before = len(ASKED)
        status, body = chat(engine, url)
        assert status == 200 and body["choices"][0]["message"]["content"] == known, (url, status, body)
        assert len(ASKED) == before + 1 + ("to=" in url) and all(where.endswith(PUBLIC) for where, *_ in ASKED[before:]), ASKED[before:]
        assert not any("authorization" in map(str.lower, headers) or "cookie" in map(str.lower, headers) for *_, headers in ASKED[before:])
    item = {"role": "user", "content": [{"type": "input_image", "image_url": f"http://pictures.example:{PORT}/d.png"}, {"type": "input_text", "text": ONE["question"]}]}
    status, body = post(engine, "/v1/responses", {"model": "hanzo-see", "input": [item], "temperature": 0, "store": False})
    assert status == 200 and body["output"][-1]["content"][0]["text"] == known, (status, body)
    source = {"type": "url", "url": f"http://pictures.example:{PORT}/e.png"}
    status, body = post(engine, "/v1/messages", {"model": "hanzo-see", "max_tokens": 60, "temperature": 0, "messages": [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": ONE["question"]}]}]})
    assert status == 200 and body["content"][0]["text"] == known, (status, body)
    return f"{known!r}, by chat completions, Responses and Messages"


@check
def what_is_no_picture_is_refused(engine):
    for path, why in (("text", "neither JPEG"), ("large", "larger than"), ("empty", "empty")):
        message, asked = refused(engine, f"http://pictures.example:{PORT}/{path}")
        assert why in message and len(asked) == 1, (path, message, asked)


@check
def no_private_address_is_asked_in_any_notation(engine):
    literals = ["127.0.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "127.1", "127.0.1", "0", "0.0.0.0", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
                "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "127.0.0.1.", "①②⑦.0.0.1", "127。0。0。1", "10.0.0.1", "169.254.169.254", "192.168.0.1", "172.16.0.1", "100.64.0.1", "[fe80::1]", "[fc00::1]", "224.0.0.1", "255.255.255.255"]
    names = ["LOCALHOST", "localhost.", *(name for name in NAMES if PUBLIC not in NAMES[name] or len(NAMES[name]) > 1)]
    for host in literals + names:
        message, asked = refused(engine, f"http://{host}:{PORT}/secret")
        assert not asked, (host, message, asked)
        assert any(word in message for word in ("public", "allowed", "no URL", "reached")), (host, message)
    return f"{len(literals)} literals, {len(names)} names"


@check
def no_redirect_leads_there(engine):
    ways = [f"http://{host}:{PORT}/secret" for host in ("127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "private.example", "both.example", "metadata.example", "elsewhere.example")]
    ways += [f"//127.0.0.1:{PORT}/secret", "file:///etc/passwd", "gopher://127.0.0.1/", "data:image/png;base64," + ONE["pictures"][0], f"http://me:word@pictures.example:{PORT}/", f"http://{PUBLIC}:22/", f"http://{engine.http}/health", f"http://{engine.admin}/metrics"]
    for way in ways:
        message, asked = refused(engine, f"http://pictures.example:{PORT}/?to=" + urllib.parse.quote(way, safe=""))
        assert len(asked) == 1, (way, message, asked)
        # And behind one that may be followed.
        first = f"http://{PUBLIC}:{PORT}/?to=" + urllib.parse.quote(way, safe="")
        message, asked = refused(engine, f"http://pictures.example:{PORT}/?to=" + urllib.parse.quote(first, safe=""))
        assert len(asked) == 2, (way, message, asked)
    message, asked = refused(engine, f"http://pictures.example:{PORT}/round")
    assert "led on" in message and len(asked) == 4, (message, asked)
    return f"{len(ways)} ways, at the first and at the second redirect"


@check
def nor_does_anything_else(engine):
    for url in (f"http://me:word@pictures.example:{PORT}/", f"http://pictures.example@127.0.0.1:{PORT}/", f"http://127.0.0.1:{PORT}#@pictures.example:{PORT}/", "file:///etc/passwd",
                "FILE:///etc/passwd", "file://pictures.example/etc/passwd", "ftp://pictures.example/a", "gopher://pictures.example:8080/_GET", "dict://pictures.example:8080/", "ws://pictures.example:8080/", "http://pictures.example/", f"https://elsewhere.example:{PORT}/",
                f"http://pictures.example.evil.example:{PORT}/", f"http://evil-pictures.example:{PORT}/", "http://", "http:///", "/etc/passwd", "etc/passwd", f"//pictures.example:{PORT}/", "http://pictures.example:99999/", "javascript:1"):
        message, asked = refused(engine, url)
        assert not asked, (url, message, asked)
    # Where a backslash is a slash, what stands behind it is a path: everyone must read the same host.
    before = len(ASKED)
    chat(engine, f"http://pictures.example:{PORT}\\@127.0.0.1:{PORT}/x")
    assert all(where.endswith(PUBLIC) for where, *_ in ASKED[before:]), ASKED[before:]


@check
def a_name_that_moves_is_looked_up_again(engine):
    url = f"http://moving.example:{PORT}/a.png"
    assert chat(engine, url)[0] == 200
    names = open("/etc/hosts").read()
    open("/etc/hosts", "w").write(names.replace(f"{PUBLIC} moving.example", "127.0.0.1 moving.example"))
    before = len(ASKED)
    # A connection that was made before still leads where it did; one that is made now is refused.
    statuses = [chat(engine, f"{url}?{number}")[0] for number in range(4)]
    assert all(where.endswith(PUBLIC) for where, *_ in ASKED[before:]) and 400 in statuses, (statuses, ASKED[before:])
    assert not any(path.startswith("/secret") for _, path, _ in ASKED)


if __name__ == "__main__":
    listener = Listener(("::", PORT), Pictures)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    hosts = [f"{PUBLIC}:{PORT}", *(f"{name}:{PORT}" for name in NAMES), f"127.0.0.1:{PORT}", f"[::1]:{PORT}", f"[::ffff:127.0.0.1]:{PORT}", f"10.0.0.1:{PORT}", f"169.254.169.254:{PORT}", f"0.0.0.0:{PORT}"]
    with Engine("--model", os.path.join(ROOT, "models/hanzo-see"), "--log-level", "warn", *(argument for host in hosts for argument in ("--media-hosts", host))) as engine:
        sys.exit(run_checks(engine))

"""Starts `hanzo-engine serve` on free ports for a check, and stops it. Also a registry of checks with a tiny runner."""
import os, re, signal, ssl, subprocess, sys, tempfile, threading, time, traceback, urllib.request

BINARY = sys.argv[1] if len(sys.argv) > 1 else "hanzo-engine"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Engine:
    """A running engine: .http, .grpc, .admin are host:port. Where it speaks TLS, by certificates that `ca` is the authority of."""

    def __init__(self, *args, env=None, ca=None):
        self.trust = ssl.create_default_context(cafile=ca) if ca else None
        self.dir = tempfile.TemporaryDirectory(prefix="hanzo-models-")
        command = [BINARY, "serve", "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--model-dir", self.dir.name, *args]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})})
        self.lines, found = [], {}
        deadline = time.monotonic() + 120
        ready = threading.Event()

        def read():
            for line in self.process.stdout:
                self.lines.append(line)
                for name in ("HTTP", "gRPC", "admin"):
                    match = re.match(rf"\s*{name}\s+\S*?((?:127\.0\.0\.1|localhost):\d+)", line, re.I)
                    if match:
                        found.setdefault(name.lower(), match[1])
                if len(found) == 3:
                    ready.set()
            ready.set()

        threading.Thread(target=read, daemon=True).start()
        ready.wait(60)
        assert len(found) == 3, "serve did not print its addresses:\n" + "".join(self.lines)
        self.http, self.grpc, self.admin = found["http"], found["grpc"], found["admin"]
        while self.status(f"{'https' if ca else 'http'}://{self.http}/ready") != 200:
            assert time.monotonic() < deadline and self.process.poll() is None, "never ready:\n" + "".join(self.lines)
            time.sleep(0.05)

    def status(self, url):
        try:
            return urllib.request.urlopen(url, timeout=10, context=self.trust).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def text(self, path, where=None):
        return urllib.request.urlopen(f"http://{where or self.http}{path}", timeout=10).read().decode()

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        self.dir.cleanup()


CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def run_checks(*args):
    failed = 0
    for function in CHECKS:
        try:
            note = function(*args)
            print(f"ok   {function.__name__}" + (f": {note}" if note else ""), flush=True)
        except Exception:
            failed += 1
            print(f"FAIL {function.__name__}", flush=True)
            traceback.print_exc()
    print(f"{len(CHECKS) - failed} passed, {failed} failed", flush=True)
    return failed

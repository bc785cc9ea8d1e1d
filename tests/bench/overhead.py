"""What the gateway adds to each token of a stream, and to the first: `engine-gateway` stands before an engine that is one socket which speaks HTTP/2's frames. In
lockstep that socket is given a token's event, and it is timed until the event's text is read at the other end; in turns with the same bytes by TCP alone, so what a client of gRPC would take
for itself counts as the gateway's. The first token has a new connection each time. Ends with 1 where a token takes 100 µs more than by TCP, at the median, or the first 1 ms.
On a machine with other work start it with a priority above that: nice -n -19.
usage: overhead.py ENGINE_GATEWAY [ROUNDS]"""
import json, os, queue, re, socket, statistics, struct, subprocess, sys, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
from stubs import pb

GATEWAY, ROUNDS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
TOKENS, WARM = 100, 4
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind, flags, stream, data=b""):
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def message(event):
    data = event.SerializeToString()
    return b"\0" + struct.pack(">I", len(data)) + data


def field(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


HEAD = b"\x88" + field(b"content-type", b"application/grpc")  # :status 200
STARTED = message(pb.InferEvent(started=pb.Started(model="idle", prompt_tokens=1)))
TOKEN = message(pb.InferEvent(delta=pb.Delta(text="token", token_ids=[1])))
FINISHED = message(pb.InferEvent(finished=pb.Finished(reason=pb.FINISH_REASON_STOP)))


def exactly(connection, count):
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise EOFError
        found += piece
    return found


def until(connection, text):
    found = b""
    while text not in found:
        piece = connection.recv(65536)
        if not piece:
            raise EOFError(found)
        found += piece


def serve(connection, asked):
    """Takes what the gateway asks, whatever it is, and says on which stream."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        exactly(connection, 24)
        connection.sendall(frame(SETTINGS, 0, 0))
        while True:
            head = exactly(connection, 9)
            kind, flags, stream = head[3], head[4], struct.unpack(">I", head[5:])[0]
            data = exactly(connection, int.from_bytes(head[:3], "big"))
            if kind in (SETTINGS, PING) and not flags & ACK:
                connection.sendall(frame(kind, ACK, 0, data if kind == PING else b""))
            elif kind == DATA and data:
                connection.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", len(data))))
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                asked.put((connection, stream))
    except (EOFError, OSError):
        pass


def connected(address):
    connection = socket.create_connection(address)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def main():
    listener, asked = socket.create_server(("127.0.0.1", 0)), queue.Queue()

    def accept():
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0], asked), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    command = [GATEWAY, "--port", "0", "--engine", f"http://127.0.0.1:{listener.getsockname()[1]}", "--no-access-log"]
    gateway = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
    try:
        port = next(int(found[1]) for line in gateway.stderr if (found := re.search(r"http=\S+:(\d+)", line)))
        measured(("127.0.0.1", port), asked)
    finally:
        gateway.kill()


def measured(http, asked):
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    alone = socket.create_server(("127.0.0.1", 0))
    near = connected(alone.getsockname())
    far = alone.accept()[0]
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    first, each = ([], []), ([], [])  # by TCP alone, through the gateway

    def timed(run):
        begun = time.perf_counter()
        result = run()
        return (time.perf_counter() - begun) * 1e6, result

    def first_alone():
        with connected(alone.getsockname()) as client:
            server = alone.accept()[0]
            with server:
                client.sendall(request)
                server.recv(65536)
                server.sendall(frame(DATA, 0, 1, STARTED + TOKEN))
                until(client, b"token")

    def first_through():
        client = connected(http)
        client.sendall(request)
        engine, stream = asked.get(timeout=20)
        engine.sendall(frame(HEADERS, END_HEADERS, stream, HEAD) + frame(DATA, 0, stream, STARTED) + frame(DATA, 0, stream, TOKEN))
        until(client, b"token")
        return client, engine, stream

    for _ in range(ROUNDS + WARM):
        first[0].append(timed(first_alone)[0])
        took, (client, engine, stream) = timed(first_through)
        first[1].append(took)
        token = frame(DATA, 0, stream, TOKEN)

        def there(writer, reader):
            writer.sendall(token)
            until(reader, b"token")

        for _ in range(TOKENS):
            each[0].append(timed(lambda: there(far, near))[0])
            each[1].append(timed(lambda: there(engine, client))[0])
        engine.sendall(frame(DATA, 0, stream, FINISHED) + frame(HEADERS, END_HEADERS | END_STREAM, stream, field(b"grpc-status", b"0")))
        until(client, b"[DONE]")
        client.close()
    more = []
    for name, (bare, through), warm in (("first token", first, WARM), ("each token", each, WARM * TOKENS)):
        bare, through = statistics.median(bare[warm:]), statistics.median(through[warm:])
        more.append(through - bare)
        print(f"{name}: {bare:.0f} µs by TCP alone, {through:.0f} µs through the gateway: {more[-1]:.0f} µs more, at the median")
    sys.exit(more[0] > 1000 or more[1] > 100)


if __name__ == "__main__":
    main()

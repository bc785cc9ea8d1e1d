"""What connections cost the gateway, and what many of them cost others: memory of idle streams, and the times of clients, with a new connection each time and
with one that is kept, beside more connections than the port bears. Those come from a process of their own, so that its work is not taken for the gateway's: first from
one address of this machine, of which the port bears a quarter of what it does, then from the loopback, which has no such limit, because a proxy may stand there. There
those that have said nothing for longest make way for a new one. `engine-gateway` stands before an engine of a few lines, whose streams begin and then say nothing.
usage: connections.py ENGINE_GATEWAY [STREAMS [CONNECTIONS]]"""
import asyncio, json, os, re, resource, socket, statistics, subprocess, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
GATEWAY = sys.argv[1]
numbers = [int(text) for text in sys.argv[2:4] if text.isdigit()]
STREAMS, CONNECTIONS = numbers + [2000, 10_000][len(numbers):]
ASKS = 200


def engine():
    """An engine on a free port, which it prints."""
    import grpc
    from stubs import pb, pb_grpc

    class Idle(pb_grpc.EngineServicer):
        async def Infer(self, request, context):
            yield pb.InferEvent(started=pb.Started(model="idle", prompt_tokens=1))
            yield pb.InferEvent(delta=pb.Delta(text="begun", token_ids=[1]))
            await asyncio.sleep(3600)

        async def Stats(self, request, context):
            return pb.StatsResponse(ready=True, models=[pb.ModelStats(status=pb.ModelStatus(name="idle", state=pb.MODEL_STATE_READY))])

        async def List(self, request, context):
            return pb.ListResponse()

    async def run():
        server = grpc.aio.server(options=[("grpc.max_concurrent_streams", 1_000_000)])
        pb_grpc.add_EngineServicer_to_server(Idle(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(port, flush=True)
        await server.wait_for_termination()

    asyncio.run(run())


def resident_mb(process):
    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{process.pid}/status").read())[1]) / 1024


async def streams(port, count):
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    limit = asyncio.Semaphore(100)

    async def one():
        async with limit:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + body)
            await reader.readuntil(b"begun")
            return writer

    return await asyncio.gather(*(one() for _ in range(count)))


async def times(port, count):
    """Seconds of each request, every one with a connection of its own."""
    taken = []
    for _ in range(count):
        begun = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        taken.append(time.monotonic() - begun)
        writer.close()
    return taken


async def times_kept(kept, count):
    """Seconds of each request on a connection that is there."""
    reader, writer = kept
    taken = []
    for _ in range(count):
        begun = time.monotonic()
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
        taken.append(time.monotonic() - begun)
        await asyncio.sleep(0.005)
    return taken


async def crowd(host, port, count):
    """Connections that say a part of their headers; as each is closed, another comes in its place. Prints how many are open, now and then."""
    limit, open_now = asyncio.Semaphore(200), [0]

    async def one():
        while True:
            try:
                async with limit:
                    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port, local_addr=(host, 0)), 60)
                open_now[0] += 1
                try:
                    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: ")
                    await reader.read()
                finally:
                    open_now[0] -= 1
                    writer.close()
            except (OSError, asyncio.TimeoutError):
                pass
            await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    while tasks:
        print(open_now[0], flush=True)
        await asyncio.sleep(1)


def own_address():
    """An address of this machine that is not the loopback's, or none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect(("192.0.2.1", 9))
            return asking.getsockname()[0]
    except OSError:
        return None


def told(name, taken):
    taken = sorted(seconds * 1000 for seconds in taken)
    return f"{name}: median {statistics.median(taken):.1f} ms, p95 {taken[int(len(taken) * 0.95)]:.1f} ms, most {taken[-1]:.1f} ms"


async def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    serving = subprocess.Popen([sys.executable, os.path.abspath(__file__), GATEWAY, "--engine"], stdout=subprocess.PIPE, text=True)
    gateway = None
    try:
        grpc = int(serving.stdout.readline())
        gateway = subprocess.Popen([GATEWAY, "--host", "0.0.0.0", "--insecure", "--port", "0", "--engine", f"http://127.0.0.1:{grpc}", "--no-access-log"], stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"})
        port = next(int(match[1]) for match in (re.search(r"http=\S+:(\d+)", line) for line in gateway.stderr) if match)
        await times(port, 20)
        before = resident_mb(gateway)
        held = await streams(port, STREAMS)
        await asyncio.sleep(3)
        idle = resident_mb(gateway)
        print(f"{STREAMS} idle streams: {before:.1f} MB before, {idle:.1f} MB with them", flush=True)
        for writer in held:
            writer.close()
        await asyncio.sleep(2)
        kept = await asyncio.open_connection("127.0.0.1", port)
        print(told("alone, new connections", await times(port, ASKS)), flush=True)
        print(told("alone, one that is kept", await times_kept(kept, ASKS)), flush=True)
        for host in filter(None, (own_address(), "127.0.0.1")):
            crowding = subprocess.Popen([sys.executable, os.path.abspath(__file__), GATEWAY, "--crowd", host, str(port), str(CONNECTIONS)], stdout=subprocess.PIPE, text=True)
            lines = []
            reading = asyncio.get_running_loop().run_in_executor(None, lambda: lines.extend(iter(crowding.stdout.readline, "")))
            try:
                # One on which nothing is asked makes way on a port that is full.
                until = time.monotonic() + 8
                while time.monotonic() < until:
                    await times_kept(kept, 20)
                beside = f"beside {CONNECTIONS} from {'the loopback' if host == '127.0.0.1' else 'one address'}"
                print(told(f"{beside}, one that is kept", await times_kept(kept, ASKS)), flush=True)
                print(told(f"{beside}, new connections", await times(port, ASKS // 4)), flush=True)
            finally:
                crowding.kill()
                crowding.wait()
                await reading
            print(f"{resident_mb(gateway):.1f} MB; {lines[-1].strip() if lines else 0} of them were open", flush=True)
            await asyncio.sleep(3)
    finally:
        for process in (gateway, serving):
            if process:
                process.kill()


if __name__ == "__main__":
    if sys.argv[2:] == ["--engine"]:
        engine()
    elif sys.argv[2:3] == ["--crowd"]:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        asyncio.run(crowd(sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
    else:
        asyncio.run(main())

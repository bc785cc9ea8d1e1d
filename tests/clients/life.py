"""The engine's life: SIGTERM during eight streams, the drain deadline, and what it costs to do nothing."""
import os, signal, sys, time, urllib.request

from engine import Engine, check, run_checks
from streams import body, stream, together, until


def eight_streams(engine, tokens):
    began, results = [], {}

    def client(i):
        results[i] = stream(engine, body("Count from 1 to 40.", max_tokens=tokens, ignore_eos=True), on_text=lambda: began.append(i))

    def operator():
        until(lambda: len(began) == 8, "the streams never began")
        engine.terminate()
        until(lambda: engine.status(f"http://{engine.http}/ready") != 200, "readiness stays on", 5)

    together([*(lambda i=i: client(i) for i in range(8)), operator])
    code = engine.process.wait(60)
    assert code == 0, (code, engine.lines[-20:])
    return results


@check
def streams_finish_after_sigterm():
    with Engine() as engine:
        results = eight_streams(engine, 300)
        assert len(results) == 8 and all(done and reason == "length" and error is None for _, reason, done, error in results.values()), results
        return "8 of 8 streams finished, exit code 0"


@check
def streams_end_at_the_drain_deadline():
    with Engine(env={"HANZO_ENGINE_SERVER_DRAIN_S": "1", "HANZO_ENGINE_GATEWAY_DRAIN_S": "1"}) as engine:
        began = time.monotonic()
        results = eight_streams(engine, 4000)
        took = time.monotonic() - began
        ended = [error for _, _, done, error in results.values() if error and not done]
        finished = [r for r in results.values() if r[2]]
        assert len(ended) + len(finished) == 8 and ended, results
        return f"{len(ended)} streams ended with an error event ({ended[0]['message']}), exit code 0, {took:.1f} s in all"


@check
def second_signal_exits_at_once():
    with Engine() as engine:
        request = urllib.request.Request(f"http://{engine.http}/v1/chat/completions", body("Count from 1 to 40.", max_tokens=3900, ignore_eos=True),
                                         {"content-type": "application/json"})
        answer = urllib.request.urlopen(request, timeout=60)
        answer.readline()
        engine.terminate()
        until(lambda: engine.status(f"http://{engine.http}/ready") != 200, "readiness stays on", 5)
        engine.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        engine.process.wait(10)
        return f"gone {time.monotonic() - began:.2f} s after the second signal"


@check
def idle_costs_nothing():
    with Engine() as engine:
        stream(engine, body("Hello!"))
        time.sleep(1)

        def cpu():
            with open(f"/proc/{engine.process.pid}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        before = cpu()
        time.sleep(10)
        share = (cpu() - before) / 10
        assert share < 0.005, f"{share:.2%} of a core while idle"
        return f"{share:.2%} of a core over 10 s"


if __name__ == "__main__":
    sys.exit(run_checks())

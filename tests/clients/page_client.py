"""The page at GET / in headless Chromium (page.mjs): a conversation with the demo model, and one with an engine of a few lines, which
can be slow, call tools, reason and write what must not become markup. Keys, a phone's size, dark and light, and axe-core besides.
usage: page_client.py HANZO_ENGINE_BINARY NODE_MODULES [SCREENSHOTS]"""
import os, subprocess, sys, threading

from engine import Engine, check, run_checks
from scripted_engine import Gateway, Scripted
from stubs import pb

NODE_MODULES = sys.argv[2]
SCREENSHOTS = sys.argv[3] if len(sys.argv) > 3 else ""
KEY = "a-key-of-the-page-test"
HOSTILE = "Look: <img src=x onerror=alert(1)> and **bold** and [a link](javascript:alert(1)) and [another](https://example.com/).\n\n```html\n<script>alert(1)</script>\n```\n"


class Talks(Scripted):
    """Says what the last message asks for: slow, tool, reason or hostile."""

    capabilities = [pb.CAPABILITY_CHAT, pb.CAPABILITY_TOOLS, pb.CAPABILITY_VISION]
    left = threading.Event()  # a client has left a slow answer

    def List(self, request, context):
        return pb.ListResponse(models=[pb.StoredModel(name="on/disk")])

    def Infer(self, request, context):
        last = request.chat.messages[-1]
        asked = "".join(part.text for part in last.content)
        delta = lambda **what: pb.InferEvent(delta=pb.Delta(**what))
        yield pb.InferEvent(started=pb.Started(request_id=request.request_id, model="scripted", prompt_tokens=9))
        reason = pb.FINISH_REASON_STOP
        if asked == "slow":
            context.add_callback(self.left.set)
            for n in range(100_000):
                yield delta(text=f"{n} ")
                if not context.is_active() or (n > 5 and self.left.wait(0.02)):
                    return
        elif asked == "tool" and request.chat.tools_json:
            yield delta(tool_calls=[pb.ToolCallDelta(index=0, id="call_1", name="get_weather", arguments_json='{"city":')])
            yield delta(tool_calls=[pb.ToolCallDelta(index=0, arguments_json='"Paris"}')])
            reason = pb.FINISH_REASON_TOOL_CALLS
        elif asked == "reason":
            yield delta(reasoning="Let me think about that.")
            yield delta(text="Thought.")
        elif asked == "hostile":
            for n in range(0, len(HOSTILE), 7):
                yield delta(text=HOSTILE[n:n + 7])
        elif last.role == "tool":
            yield delta(text=f"The tool said {asked}.")
        else:
            yield delta(text=f"You said {asked}.")
        yield pb.InferEvent(finished=pb.Finished(reason=reason, usage=pb.Usage(prompt_tokens=9, completion_tokens=3), timings=pb.Timings(decode_tokens_per_s=50)))


def browse(what, http, *more):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page.mjs")
    run = subprocess.run(["node", script, NODE_MODULES, f"http://{http}/", what, *more], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.strip()


@check
def a_conversation_with_the_demo_model_in_light_dark_and_on_a_phone():
    with Engine() as engine:
        return browse("demo", engine.http, SCREENSHOTS)


@check
def streams_stops_calls_reasoning_and_markup():
    with Gateway(Talks()) as gateway:
        said = browse("scripted", gateway.http)
        assert Talks.left.wait(10), "the engine was not told that nobody reads"
        return said


@check
def a_server_with_keys_asks_for_one():
    with Gateway(Talks(), env={"HANZO_ENGINE_GATEWAY_API_KEY": KEY, "HANZO_ENGINE_GATEWAY_PRIVATE_METRICS": "true"}) as gateway:
        return browse("keys", gateway.http, KEY)


if __name__ == "__main__":
    sys.exit(run_checks())

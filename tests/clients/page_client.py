"""The page at GET / in headless Chromium (page.mjs): a conversation with the demo model, and one with an engine of a few lines, which
can be slow, call tools, reason and write what must not become markup. Keys, a phone's size, dark and light, and axe-core besides.
usage: page_client.py HANZO_ENGINE_BINARY NODE_MODULES [SCREENSHOTS]"""
import os, subprocess, sys, threading

import grpc

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
    loads, loaded = threading.Event(), threading.Event()  # a model is being loaded; it is there
    asked = []  # what an operator asked for

    def List(self, request, context):
        return pb.ListResponse(models=[pb.StoredModel(name="on/disk")])

    def Stats(self, request, context):
        stats = super().Stats(request, context)
        if self.loads.is_set():
            state = pb.MODEL_STATE_READY if self.loaded.is_set() else pb.MODEL_STATE_LOADING
            stats.models.append(pb.ModelStats(status=pb.ModelStatus(name="on/disk", state=state, load_progress=0.5)))
        return stats

    def Show(self, request, context):
        """Once it has been asked about a model that is being loaded, that is there."""
        if self.loads.is_set():
            self.loaded.set()
        return super().Show(request, context)

    def Load(self, request, context):
        """Takes as long as the pull that runs beside it."""
        self.asked.append(f"load {request.model}")
        self.loads.set()
        assert self.loaded.wait(30)
        return pb.LoadResponse(model=pb.ModelStatus(name="on/disk", state=pb.MODEL_STATE_READY))

    def Unload(self, request, context):
        self.asked.append(f"unload {request.model}")
        self.loads.clear()
        return pb.UnloadResponse(model=pb.ModelStatus(name="on/disk", state=pb.MODEL_STATE_UNLOADED))

    def Remove(self, request, context):
        self.asked.append(f"remove {request.model}")
        return pb.RemoveResponse(model=pb.StoredModel(name=request.model))

    def Pull(self, request, context):
        """Stands still at 40 % until a model is loaded; one is not there, and another never ends."""
        self.asked.append(f"pull {request.reference}")
        if "none" in request.reference:
            context.abort(grpc.StatusCode.NOT_FOUND, "reference: there is no such model")
        far = lambda phase, done: pb.PullProgress(model="x/new", phase=phase, bytes_done=done, bytes_total=1_000_000, bytes_per_s=1000, eta_s=9)
        yield pb.PullProgress(model=request.reference, phase=pb.PullProgress.PHASE_RESOLVING)
        yield far(pb.PullProgress.PHASE_DOWNLOADING, 400_000)
        if "endless" in request.reference:
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait(30)
            self.asked.append("left")
            return
        assert self.loads.wait(30)
        yield far(pb.PullProgress.PHASE_VERIFYING, 1_000_000)
        yield pb.PullProgress(model="x/new", phase=pb.PullProgress.PHASE_DONE, bytes_done=1_000_000, bytes_total=1_000_000, stored=pb.StoredModel(name="x/new"))

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
        said = browse("scripted", gateway.http, SCREENSHOTS)
        wanted = ["pull hf://x/new", "load on/disk", "unload on/disk", "pull hf://x/none", "pull hf://x/endless", "remove on/disk"]
        assert [one for one in Talks.asked if one != "left"] == wanted, Talks.asked
        assert Talks.left.wait(10), "the engine was not told that nobody reads"
        return said


@check
def messages_are_kept_and_read_in_one_pass():
    with Gateway(Talks()) as gateway:
        return browse("kept", gateway.http)


@check
def a_server_with_keys_asks_for_one():
    with Gateway(Talks(), env={"HANZO_ENGINE_GATEWAY_API_KEY": KEY, "HANZO_ENGINE_GATEWAY_PRIVATE_METRICS": "true"}) as gateway:
        return browse("keys", gateway.http, KEY)


if __name__ == "__main__":
    sys.exit(run_checks())

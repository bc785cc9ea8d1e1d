"""`engine-gateway` in front of an engine of a few lines, for clients of what no small model can do: scores follow from the texts' lengths."""
import os, re, struct, subprocess, threading
from concurrent import futures

import grpc

from engine import BINARY
from stubs import pb, pb_grpc

DIMENSIONS = 384


class Scripted(pb_grpc.EngineServicer):
    """One model that embeds, ranks and classifies. The longer a document, the better it is."""

    capabilities = [pb.CAPABILITY_EMBED, pb.CAPABILITY_RERANK, pb.CAPABILITY_CLASSIFY]

    def status(self):
        return pb.ModelStatus(name="scripted", state=pb.MODEL_STATE_READY, capabilities=self.capabilities)

    def Stats(self, request, context):
        return pb.StatsResponse(models=[pb.ModelStats(status=self.status())])

    def Show(self, request, context):
        return pb.ShowResponse(status=self.status())

    def Embed(self, request, context):
        def vector(item):
            text = item.text or "".join(chr(id % 0x10000) for id in item.tokens.ids)
            return struct.pack(f"<{DIMENSIONS}f", *((len(text) * 31 + i * 7) % 97 / 97 for i in range(DIMENSIONS)))

        embeddings = [pb.Embedding(packed=vector(item), rows=1, tokens=1) for item in request.inputs]
        return pb.EmbedResponse(embeddings=embeddings, prompt_tokens=len(embeddings), model="scripted", dimensions=DIMENSIONS)

    def Rerank(self, request, context):
        score = lambda text: len(text) if request.raw_scores else 1 - 1 / (1 + len(text))
        results = [pb.RerankResult(index=i, score=score(text)) for i, text in enumerate(request.documents)]
        results.sort(key=lambda result: -result.score)
        return pb.RerankResponse(results=results, prompt_tokens=len(results), model="scripted")

    def Classify(self, request, context):
        labels = [pb.LabelScore(label="short", score=0.25), pb.LabelScore(label="long", score=0.75)]
        return pb.ClassifyResponse(classifications=[pb.Classification(labels=labels) for _ in request.inputs], prompt_tokens=1, model="scripted")


class Gateway:
    """A running gateway: .http is host:port."""

    def __init__(self, servicer=None, env=None):
        self.server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", 1 << 26)])
        pb_grpc.add_EngineServicer_to_server(servicer or Scripted(), self.server)
        if hasattr(servicer, "add_to"):
            servicer.add_to(self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        binary = os.path.join(os.path.dirname(BINARY), "engine-gateway")
        command = [binary, "--port", "0", "--engine", f"http://127.0.0.1:{port}"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {}), "NO_COLOR": "1"})
        self.lines, self.http, ready = [], None, threading.Event()

        def read():
            for line in self.process.stderr:
                self.lines.append(line)
                match = re.search(r"http=(\S+:\d+)", line)
                if match and not self.http:
                    self.http = match[1]
                    ready.set()
            ready.set()

        threading.Thread(target=read, daemon=True).start()
        ready.wait(60)
        assert self.http, f"{binary} did not say where it listens:\n" + "".join(self.lines)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        self.server.stop(0)

"""What protoc makes of the proto: the messages `pb` and the services `pb_grpc`; of speech `speech` and `speech_grpc`."""
import importlib, sys, tempfile

from grpc_tools import protoc

from engine import ROOT

stubs = tempfile.mkdtemp(prefix="hanzo-stubs-")
assert protoc.main(["protoc", f"-I{ROOT}/proto", f"--python_out={stubs}", f"--grpc_python_out={stubs}", *(f"{ROOT}/proto/hanzo/engine/v1/{name}.proto" for name in ["engine", "speech"])]) == 0
sys.path.insert(0, stubs)
pb = importlib.import_module("hanzo.engine.v1.engine_pb2")
pb_grpc = importlib.import_module("hanzo.engine.v1.engine_pb2_grpc")
speech = importlib.import_module("hanzo.engine.v1.speech_pb2")
speech_grpc = importlib.import_module("hanzo.engine.v1.speech_pb2_grpc")

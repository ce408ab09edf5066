"""Streaming: runs a model one sample at a time as machine code, and exports models to ``torch.export`` and ONNX."""

from stablessm.streaming.export import export_sequence, export_step
from stablessm.streaming.streamer import Streamer

__all__ = ["Streamer", "export_sequence", "export_step"]

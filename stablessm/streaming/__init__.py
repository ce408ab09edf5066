"""Streaming: a model's step as machine code that runs one sample at a time, and exported models."""

from stablessm.streaming.export import export_sequence, export_step
from stablessm.streaming.streamer import Streamer

__all__ = ["Streamer", "export_sequence", "export_step"]

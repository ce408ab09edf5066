"""One sample at a time: a model's step as machine code, or exported."""

from stablessm.streaming.export import export_sequence, export_step
from stablessm.streaming.streamer import Streamer

__all__ = ["Streamer", "export_sequence", "export_step"]

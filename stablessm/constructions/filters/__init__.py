"""Long convolution filters as recurrences, one by one or in a whole model."""

from stablessm.constructions.filters.convert import LongFilter, StreamingModel, convert
from stablessm.constructions.filters.from_convolution import from_convolution
from stablessm.constructions.filters.layer import RecurrentConvolution

__all__ = ["LongFilter", "RecurrentConvolution", "StreamingModel", "convert", "from_convolution"]

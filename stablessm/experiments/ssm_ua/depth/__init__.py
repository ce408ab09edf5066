"""The experiment ``su-depth``: the memory of deep linear RNNs (SSM-UA, appendix A)."""

"""The experiment ``ext-gated``: with each map, up to which learning rate of its recurrent weights can a gated layer be
trained?
"""

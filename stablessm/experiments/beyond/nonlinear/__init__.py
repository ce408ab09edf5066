"""The experiment ``ext-nonlinear``: nonlinear targets with slow memory, approximated by RNNs whose recurrent matrix is
given by a stable matrix map. Do such maps make the approximation stable?
"""

"""The experiment ``st-appendix``: statements in the appendix of StableSSM that can be checked by computation (remark
B.2, figure 7, appendices F and G).
"""

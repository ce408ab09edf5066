"""The experiment ``st-appendix`` on remark B.2, figure 7 and the appendices F and G of StableSSM."""

"""Experiment ``st-appendix``: remark B.2, figure 7, appendix F and appendix G of StableSSM."""

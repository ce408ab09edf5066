"""The experiment ``ia-fig6``: how long BERT and a bidirectional LSTM remember repeated words (IAT, figure 6)."""

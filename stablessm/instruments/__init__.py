"""How far does a model remember, and how robust is that memory? For any callable or module, ours or not."""

"""How ranks are arranged, and how a model is sharded or replicated over them."""

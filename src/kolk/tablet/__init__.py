"""One bucket's behaviour: its log and its KV kept in step under one lock."""

"""Data: tasks made of domains, dealt out to clients with budgets."""

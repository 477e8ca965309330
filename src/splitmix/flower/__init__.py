"""Clients on a network: the same jobs and answers, carried by Flower."""

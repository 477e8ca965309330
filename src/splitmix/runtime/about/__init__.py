"""What a bundle shows of itself: a card for readers, and examples for its page."""

"""What an elastic job does next: decisions without clock and effects."""

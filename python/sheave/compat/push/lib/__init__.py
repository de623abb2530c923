"""What PusH is made of: node event loops, their messages, and the caches of particles."""

"""The books: a journal that is only ever added to, and what writes to it."""
